"""The orchestrators of a simulated run, one after another: the production shell, on ports that are virtual time's.

Processes come up, places are found and deaths are noticed after durations that the world draws. Whatever takes a
decision is in orchestrator/lifecycle; here is what a cluster, a run's folder and the user who starts it again are.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from pydantic import NonNegativeInt

from learners.checkpoint_writer import SavedPart
from orchestrator.eventlog.reader import ChainReader, Findings, records
from orchestrator.lifecycle.controller import Controller, RankState
from orchestrator.lifecycle.orchestrator import SNAPSHOT_S, OrchestratorShell
from orchestrator.lifecycle.pools import request_file, requested
from orchestrator.lifecycle.ports import ORCHESTRATOR, Ports
from orchestrator.lifecycle.requests import STOP_FILE
from orchestrator.recipe.config import BudgetConfig, DurabilityConfig, PoolConfig, Recipe, RunConfig
from orchestrator.regions.gateway import GatewayShell, RegionPeer, say_over
from orchestrator.regions.joined import JoinedPlaces, JoinedProcesses
from orchestrator.regions.mail import LOOK_S, Mail
from orchestrator.simulation.context import SimContext
from orchestrator.simulation.learner_process import STRANGE, LearnerProcess, RankProcess, learner_spec
from orchestrator.simulation.peers import SimPeer
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.store.run_store import RunStore
from outer.journal.chain import Segmented
from outer.journal.framing import Damaged
from outer.journal.groups import SYNCER
from outer.journal.object_store import Objects
from outer.journal.rebuild import RecoverySources
from outer.ports import Peer
from outer.spec import SyncerSpec

HOME = "home"  # the region of the syncer and the orchestrator
SYNCER_LEASE_S = 3.0
LINGER_S = 3.0  # until a process that is slow to end has ended
ZOMBIE_S = 2.0  # for a process that was frozen when it was to end
PAUSE_S = 2.0  # between two sessions
LOCK_S = 2.0  # between two looks of an orchestrator whether the run's lock is another's
WATCH_S = 5.0  # after which the lock of an orchestrator that is frozen is taken


class SimPool(PoolConfig):
    """A pool whose learners have names of their own. It may begin without any."""

    name: str
    learners: NonNegativeInt = 0
    members: list[str]  # every learner that it may have, in the order in which they are added

    def names(self, learners: int) -> list[str]:
        return self.members[:learners]


class SimRecipe(Recipe):
    """What the orchestrator reads of a recipe. `fewest`: the pools cannot be scaled down to fewer learners."""

    fewest: int
    homes: dict[str, SimPool]  # by learner: its pool, with what is its own

    @property
    def quorum(self) -> int:
        return self.fewest

    @property
    def joined(self) -> tuple[str, ...]:
        return tuple({pool.region for pool in self.homes.values() if pool.joined and pool.region})

    @property
    def config_hash(self) -> str:
        return ""

    def pool_of(self, learner: str) -> PoolConfig:
        return self.homes[learner]

    def is_learner(self, name: str) -> bool:
        return name in self.homes


def _recipe(context: SimContext, first: Collection[str], quorum: int, every_s: float) -> SimRecipe:
    """`first`: the learners that are wanted from the start."""
    members: dict[str, list[str]] = {}
    for name in sorted(context.specs, key=lambda name: name not in first):
        members.setdefault(context.specs[name].pool, []).append(name)
    pools = [
        SimPool(
            name=pool,
            learners=sum(name in first for name in names),
            min=0,
            max=len(names),
            members=names,
            opportunistic=context.opportunistic,
        )
        for pool, names in members.items()
    ]
    homes: dict[str, SimPool] = {}
    alike: dict[tuple[Any, ...], SimPool] = {}
    for name, spec in context.specs.items():
        pool = next(pool for pool in pools if pool.name == spec.pool)
        own = {"batch_size": spec.batch_size, "region": spec.region}
        own |= {"standby": spec.standbys, "processes": 1 + len(spec.ranks)}
        own["joined"] = bool(context.joined) and spec.region == context.joined
        homes[name] = alike.setdefault((pool.name, *own.values()), pool.model_copy(update=own))
    durations = context.durations
    run = RunConfig.model_construct(
        restart_backoff_s=durations.backoff_s,
        hang_s=durations.hang_s,
        unreachable_s=durations.unreachable_s,
        start_s=durations.start_s,
        syncer_lease_s=SYNCER_LEASE_S,
        idle_s=math.inf,
    )
    return SimRecipe.model_construct(
        name="virtual",
        sync=context.sync,
        budget=BudgetConfig(syncer_steps=1),
        pools=tuple(pools),
        run=run,
        durability=DurabilityConfig(every_s=every_s),
        fewest=quorum,
        homes=homes,
    )


class SimRunStore(RunStore):
    """A run's folder in memory, as far as the orchestrator uses it. `away`: its file system does not answer."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}
        self.away = False
        self._grants: dict[tuple[str, str], int] = {}

    def _there(self) -> None:
        if self.away:
            raise OSError(errno.ESTALE, "the folder is away")

    def grant(self, kind: str, who: str) -> int:
        self._grants[kind, who] = self.granted(kind, who) + 1
        return self._grants[kind, who]

    def granted(self, kind: str, who: str) -> int:
        self._there()
        return self._grants.get((kind, who), 0)

    def holders(self, kind: str) -> list[str]:
        self._there()
        return sorted(who for each, who in self._grants if each == kind)

    def read_json(self, name: str) -> Any:
        self._there()
        return self.files.get(name)

    def write_json(self, name: str, value: Any) -> None:
        self._there()
        self.files[name] = value


class SimPlaces:
    """The port orchestrator.lifecycle.ports.Places. A learner's place is lost with its process."""

    def __init__(self, context: SimContext) -> None:
        self.taken: set[str] = set()  # learners whose place has, or had, a process
        self.given_back: dict[str, tuple[float, Any]] = {}  # by learner: when last, and by which orchestrator
        self.lost_until = dict[str, float]()  # virtual seconds from which there is hardware for a learner again
        self._context, self._ready_at = context, dict[str, float]()
        self._before: set[str] = set()  # learners that had a place before

    @property
    def names(self) -> list[str]:
        return list(self._ready_at)

    def claim(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._ready_at:
                ready_at = self._context.time.now + self._context.durations.place_s(name in self._before)
                self._ready_at[name] = max(ready_at, self.lost_until.get(name, 0.0))
                self._before.add(name)

    async def wait(self, name: str) -> None:
        if name in self.taken:
            self._lose(name)
        self.claim([name])
        await asyncio.sleep(max(0.0, self._ready_at[name] - self._context.time.now))

    async def pending(self, names: Iterable[str]) -> dict[str, str]:
        now = self._context.time.now
        return {name: "no node has room" for name in names if self._ready_at.get(name, 0.0) > now}

    def adopt(self, name: str) -> None:
        self._ready_at[name] = self._context.time.now
        self.taken.add(name)

    def release(self, name: str) -> None:
        self.given_back[name] = self._context.time.now, asyncio.get_running_loop()
        self._lose(name)

    def _lose(self, name: str) -> None:
        self._ready_at.pop(name, None)
        self.taken.discard(name)


class OrchestratorProcess(Process):
    """One orchestrator."""

    shell: ObservedOrchestrator

    def __init__(self, cluster: VirtualCluster, number: int) -> None:
        super().__init__(cluster.time, cluster.host, (ORCHESTRATOR, number))
        context = cluster.context
        self.jobs.takes, self.raised = context.durations.job, context.observer.raised
        self.shell = ObservedOrchestrator(self, cluster, number)

    def notice_s(self, target: Process) -> float:
        durations = self.shell.cluster.context.durations
        if isinstance(target, LearnerProcess | RankProcess):
            return 0.0 if getattr(target, "detected", False) else durations.notice_s()
        return durations.outage_s()


class ObservedOrchestrator(OrchestratorShell):
    """The production shell, whose doings are told to the world."""

    def __init__(self, process: OrchestratorProcess, cluster: VirtualCluster, number: int) -> None:
        self.process, self.cluster = process, cluster
        self.poll_s = cluster.context.durations.look_s
        recipe, where, to = cluster.recipe, cluster.recipe.joined_region, partial(RegionPeer, cluster.door(HOME))
        ports = Ports(
            cluster.records,
            JoinedProcesses(cluster, recipe, where, to, _label) if recipe.joined else cluster,
            JoinedPlaces(cluster.places, where, to) if recipe.joined else cluster.places,
            cluster.context.store,
            lambda: records(ChainReader(self._objects, SYNCER, Findings()).poll()),
            self._said,
            lambda why: process.end(),
            local=False,
        )
        super().__init__(cluster.recipe, ports, cluster.spec, number, {})

    @property
    def controller(self) -> Controller:
        return self._learners.controller

    def _said(self, fact: Any) -> None:
        """What one that was succeeded says is in no log."""
        cluster, context = self.cluster, self.cluster.context
        if cluster.process is self.process:
            context.said.append((context.time.now, self._number, fact))
        if context.trace is not None:
            context.trace(context.time.now, self.process.label, fact)

    async def begin(self) -> None:
        await super().begin()
        self.process.spawn(self._hold_lock())
        await self.result()
        if self._state == "failed":
            self.cluster.context.observer.raised(self.process, RuntimeError(self._reason))
        self.process.time.after(0.0, self.cluster.ended, self.process)

    async def _hold_lock(self) -> None:
        while True:
            await asyncio.sleep(LOCK_S)
            if self.cluster.process is not self.process:
                self._ports.replaced("another has the lock of the run")

    async def _look(self) -> bool:
        served = await super()._look()
        if self._view.get("finished"):
            self.cluster.finish(self._view["finished"])
        return served

    async def _end(self) -> None:
        if not self.cluster.suspending:
            self.cluster.finish(self._stop_reason or self._view["finished"])
        await super()._end()

    async def _sum_up(self, syncer: Segmented | None) -> dict[str, Any]:
        await self._patience.granted(self._records.write_json, "summary.json", {})  # waits for the run's folder
        return {}

    async def _ended(self) -> None:
        if self.cluster.doors:
            await say_over(self.cluster.door(HOME))

    async def _conclude(self) -> None:
        """The result is the newest version of every fragment."""
        _, thetas, _ = await self._syncer.newest(SNAPSHOT_S)
        self.cluster.context.observer.concluded(thetas)

    def _write_status(self) -> None:
        if self.cluster.shows:
            super()._write_status()


class GatewayProcess(Process):
    """A region's gateway: the production shell, which is started again when it has died."""

    def __init__(self, cluster: VirtualCluster, region: str, number: int) -> None:
        super().__init__(cluster.time, cluster.gateway_hosts[region], (f"gateway.{region}", number))
        context, joined = cluster.context, region != HOME
        self.jobs.takes, self.raised = context.durations.job, context.observer.raised
        self.me = SimPeer(context.network, self)
        self.shell = SimGateway(
            region,
            HOME,
            _RegionsStore(context.store, region, cluster.cut_off),
            cluster.door(region),
            partial(cluster.find, region),
            lambda peer: peer.process.label,  # type: ignore[attr-defined]
            partial(cluster.mail_fails, self),
            cluster.places if joined else None,
            cluster if joined else None,
        )
        self.deliver(lambda: self.spawn(self.shell.view()))  # who joins a region asks for that
        if joined:
            cluster.time.after(LOOK_S, cluster.look_over, self)
        self.mourn(lambda: cluster.time.after(context.durations.outage_s(), cluster.open_door, region))


class _SmallMail(Mail):
    large = 0  # an array is one number


class SimGateway(GatewayShell):
    _made = _SmallMail


class _RegionsStore:
    """The run's store, as far as a region reaches it."""

    def __init__(self, store: Objects, region: str, cut_off: Collection[str]) -> None:
        self._store, self._region, self._cut_off = store, region, cut_off

    def __getattr__(self, name: str) -> Any:
        def asked(*given: Any) -> Any:
            if self._region in self._cut_off:
                raise OSError(errno.ETIMEDOUT, "no answer")
            return getattr(self._store, name)(*given)

        return asked


@dataclass(frozen=True)
class SimDoor:
    """A region's gateway, whichever process that is."""

    cluster: VirtualCluster
    region: str

    def ask(self, method: str, *arguments: Any) -> Awaitable[Any]:
        return self.cluster.doors[self.region].me.ask(method, *arguments)

    def tell(self, method: str, *arguments: Any) -> None:
        self.cluster.doors[self.region].me.tell(method, *arguments)


def _label(learner: str, incarnation: int, rank: int) -> str:
    return f"{learner}/{rank} {incarnation}" if rank else f"{learner} {incarnation}"


class VirtualCluster:
    """A cluster, with the processes of one run, and who starts its next orchestrator. `learners`: wanted at first.

    It is the port orchestrator.lifecycle.ports.Processes. `spec`: the syncer's, for epoch 0; `quorum`: the pools cannot
    be scaled down to fewer learners; `every_s`: between two checkpoints; `shows`: the status is written.
    """

    def __init__(
        self,
        context: SimContext,
        learners: Iterable[str],
        spec: SyncerSpec,
        syncer_host: Host,
        quorum: int = 0,
        every_s: float = 0.0,
        shows: bool = False,
    ) -> None:
        self.context, self.time, self.spec, self.shows = context, context.time, spec, shows
        self.recipe = _recipe(context, list(learners), quorum, every_s)
        self.learners: dict[str, LearnerProcess] = {}  # the newest incarnation of each, once its process is up
        self.syncer: SyncerProcess | None = None  # the newest epoch
        self.crash_after = math.inf  # effects of the first epoch
        self.finished_at: float | None = None  # when an orchestrator first saw the run finished
        self.finished = ""  # why it is
        self.suspending = False  # nobody is replaced any more
        self.paused = False  # between two sessions there is nothing
        self.done = self.over = False  # at home, and everywhere
        self.unseen_nodes: set[str] = set()  # the cluster has lost sight of them
        self.cut_off: set[str] = set()  # regions that do not reach the store
        self.doors: dict[str, GatewayProcess] = {}  # by region
        self.records, self.places, self.host = SimRunStore(), SimPlaces(context), Host(ORCHESTRATOR)
        self.gateway_hosts = {region: Host(f"gateway.{region}") for region in (HOME, context.joined)}
        self._syncer_host = syncer_host
        self.ranks: list[RankProcess] = []  # all that there ever were, but for ranks 0
        self.standbys: list[LearnerProcess] = []  # likewise, promoted or not
        self._made: dict[tuple[str, int], tuple[LearnerProcess | RankProcess, ...]] = {}  # by rank
        self._noticed: dict[str, LearnerProcess] = {}  # by node: whom its end was announced to
        self._gateways = count(1)
        self.process: OrchestratorProcess = self._next()
        if context.joined:
            for region in (HOME, context.joined):
                self.open_door(region)

    # -------------------------------------------------------------- regions

    def door(self, region: str) -> Peer:
        return SimDoor(self, region)

    def open_door(self, region: str) -> None:
        """Start a region's gateway, unless there is one, or no session at home."""
        if not self.over and not (region == HOME and (self.paused or self.done)) and not self._opened(region):
            self.doors[region] = GatewayProcess(self, region, next(self._gateways))

    def _opened(self, region: str) -> bool:
        there = self.doors.get(region)
        return there is not None and there.alive

    def look_over(self, gateway: GatewayProcess) -> None:
        """Who has joined sees that the session is over, ends what is left there, and joins again after a while."""
        if not gateway.alive:
            return
        if not gateway.shell._mail.over:
            self.time.after(LOOK_S, self.look_over, gateway)
            return
        for process in self.time.processes:
            if isinstance(process, LearnerProcess | RankProcess) and self.recipe.joined_region(process.name):
                process.die()
        gateway.die()
        self.over = self.done
        self.time.after(PAUSE_S, self.open_door, gateway.shell.region)

    def find(self, region: str, name: str) -> Peer | None:
        """A process of a region by its label."""
        there = [each for each in self.time.processes if each.label == name and each.alive]
        for process in there:
            learner = isinstance(process, LearnerProcess | RankProcess)
            where = (learner and self.recipe.joined_region(process.name)) or HOME
            if where == region and hasattr(process, "me"):
                return SimPeer(self.context.network, process)
        return None

    def mail_fails(self, process: Process, error: BaseException) -> None:
        """What a gateway passes over."""
        if not isinstance(error, Damaged | ValueError):  # torn, or garbled
            process.raised(process, error)

    # -------------------------------------------------------------- orchestrators

    def _next(self) -> OrchestratorProcess:
        process = OrchestratorProcess(self, self.records.grant("incarnation", ORCHESTRATOR))
        process.mourn(lambda: self.time.after(self.context.durations.outage_s(), self._succeed, process))
        return process

    def start(self) -> None:
        process = self.process
        process.deliver(lambda: process.spawn(process.shell.begin()))

    def _succeed(self, before: OrchestratorProcess) -> None:
        """Start another orchestrator, unless there is one. Without the run's folder none starts."""
        if self.records.away:
            self.time.after(PAUSE_S, self._succeed, before)
        elif before is self.process and not (self.done or self.paused or before.running):
            self.process = self._next()
            self.start()

    def ended(self, process: OrchestratorProcess) -> None:
        """An orchestrator has ended the run, or this session of it."""
        if process is not self.process:
            return
        self.paused = self.suspending and self.finished_at is None
        self.done = not self.paused
        self.over = self.done and not self.doors  # else once who has joined sees it
        process.die()
        if self.doors:
            self.doors[HOME].die()
        if self.paused:
            self.time.after(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self.records.away:
            self.time.after(PAUSE_S, self._resume)
            return
        self.records.files.pop(STOP_FILE, None)
        self.suspending = self.paused = False
        if self.doors:
            self.open_door(HOME)
        self.process = self._next()
        self.start()

    def finish(self, reason: str) -> None:
        """An orchestrator sees the run finished."""
        if self.finished_at is None:
            self.finished_at, self.finished = self.time.now, reason

    @property
    def controller(self) -> Controller:
        return self.process.shell.controller

    # -------------------------------------------------------------- what people, chaos and nodes do

    def freeze(self) -> OrchestratorProcess | None:
        """Freeze the orchestrator. If it is for long, another takes its place."""
        process = self.process
        if not process.running or self.finished_at is not None or self.suspending:
            return None
        process.freeze()
        self.time.after(WATCH_S, self._succeed, process)
        return process

    def crash(self, name: str, detected: bool = False) -> bool:
        """Kill a learner's process. The death is detected at once or after a while. False: there is none."""
        learner = self.learners.get(name)
        if learner is None or not learner.alive:
            return False
        learner.detected = detected
        learner.die()
        return True

    def preempt(self, name: str) -> bool:
        """The learner's node announces its end. False: no learner is there that would be asked to leave."""
        learner = self.learners.get(name)
        if learner is None or not learner.alive or self._noticed.get(learner.host.name) is learner:
            return False
        self._noticed[learner.host.name] = learner
        return not self.controller.units[name].incarnation.leaving

    def stop(self, reason: str) -> None:
        """End the run early."""
        self.records.files.setdefault(STOP_FILE, {"reason": reason})

    def suspend(self, reason: str) -> bool:
        """End this session, and resume the run in another one. False: there is nothing to suspend now."""
        if self.suspending or self.over or self.finished_at is not None or not self.context.saving:
            return False
        self.suspending = True
        self.stop(reason)
        return True

    def resize(self, pool: str, change: int) -> bool:
        """Ask for so many learners more in a pool, or fewer. False: nothing changes."""
        return self.scale(pool, self.controller.pools.sizes[pool] + change)

    def scale(self, pool: str, learners: int) -> bool:
        """The same, by the number of all."""
        sizes, [config] = self.controller.pools.sizes, [each for each in self.recipe.pools if each.name == pool]
        request = {"learners": learners}
        scaled = requested(request, config, sizes[pool], False)
        if scaled != learners or sum((sizes | {pool: learners}).values()) < self.recipe.quorum:
            return False
        self.records.files[request_file(pool)] = request
        return sizes[pool] != learners

    def restore(self, pool: str) -> None:
        """Undo scaling below the pool's first size."""
        first = next(each.learners for each in self.recipe.pools if each.name == pool)
        self.scale(pool, max(first, self.controller.pools.sizes[pool]))

    # -------------------------------------------------------------- processes

    def _come(self, process: Process) -> None:
        """It takes a while to come up: until then nothing reaches it."""
        seconds = self.context.durations.begin_s()
        if seconds:
            process.freeze()
        self.time.after(seconds, self._up, process)

    def _up(self, process: Process) -> None:
        if process.alive:
            if isinstance(process, LearnerProcess) and process.incarnation:
                before = self.learners.get(process.name)
                if before is None or before.incarnation <= process.incarnation:
                    self.learners[process.name] = process
                self.context.faults.started(process)
            process.thaw()

    def start_syncer(self, spec: SyncerSpec, sources: RecoverySources | None) -> Peer:
        before, process = self.syncer, SyncerProcess(self.context, self._syncer_host, spec, sources)
        if before is not None and before.alive and not before.running:
            self.context.fault_counts["zombie"] += 1
        if spec.epoch == 1:
            process.crash_at = self.crash_after
        self.syncer = process
        self._come(process)
        return process.me

    def left_syncer(self, epoch: int) -> Peer | None:
        there = self.syncer
        return there.me if there is not None and there.epoch == epoch and there.alive else None

    def start_learner(
        self, name: str, incarnation: int, saved: SavedPart | None, syncer: Peer, strange: bool
    ) -> Sequence[Peer]:
        spec = replace(learner_spec(self.context, name, incarnation), saved=saved)
        process = LearnerProcess(self.context, spec, syncer)
        if strange:
            process.device.manifest = STRANGE
        process.started_by = asyncio.get_running_loop()
        process.elders = [each for each in self.ranks if each.name == name and each.alive]
        others = [RankProcess(process, *each) for each in enumerate(self.context.specs[name].ranks, 1)]
        self.ranks += others
        made = self._made[name, incarnation] = process, *others
        self.places.taken.add(name)
        for each in made:
            self._come(each)
        return [each.me for each in made]

    def left_rank(self, name: str, incarnation: int, rank: int) -> Peer | None:
        there = self._made.get((name, incarnation), ())[rank : rank + 1]
        return there[0].me if there and there[0].alive else None

    def start_standby(self, name: str, node: str | None, shown: Mapping[str, str]) -> Peer:
        process = LearnerProcess(self.context, learner_spec(self.context, name, 0), None)
        process.promoted = self._promoted
        self.standbys.append(process)
        self._come(process)
        return process.me

    def _promoted(self, process: LearnerProcess) -> None:
        if process.key not in self._made:  # else it heard of that too late, and another process was started
            self.places.taken.add(process.name)
            self._up(process)

    async def left_standbys(self) -> Sequence[Peer]:
        return [each.me for each in self.standbys if each.alive]

    def core(self, name: str) -> int | None:
        return None

    def end(self, process: Peer) -> None:
        """A frozen syncer, or a rank of an island, is not ended before it thaws: its node may be cut off."""
        assert isinstance(process, SimPeer)
        ending = process.process
        if ending.host.name in self.unseen_nodes:
            self.time.after(ZOMBIE_S, self.end, process)
            return
        if isinstance(ending, SyncerProcess) and not ending.running and ending.alive:
            self.time.reach(0.0, ending, self.time.after, ZOMBIE_S, ending.die)
            return
        if isinstance(ending, RankProcess) and not ending.running:
            self.time.reach(0.0, ending, ending.end)
            return
        lingers = isinstance(ending, LearnerProcess) and ending.exited and self.context.faults.damages("linger")
        self.time.after(self.context.durations.end_s + (LINGER_S if lingers else 0.0), ending.die)

    async def kill(self, ranks: Iterable[RankState]) -> str:
        there = {(rank.node, rank.pid) for rank in ranks}
        if any(node in self.unseen_nodes for node, _ in there):
            return "NodeAway"
        for each in self.ranks:
            if (each.host.name, each.leader.incarnation) in there:
                self.time.after(self.context.durations.end_s, each.die)
        return ""

    async def unseen(self, node: str) -> str:
        return "its node cannot be seen" if node in self.unseen_nodes else ""

    def notices(self) -> Mapping[str, float | None]:
        return {
            node: None
            for node, learner in self._noticed.items()
            if learner.alive and self.learners.get(learner.name) is learner
        }
