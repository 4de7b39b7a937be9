"""One simulated fleet: the processes of orchestrator/simulation with a fleet's durations plugged into them.

What a fragment holds is not followed. What is counted of a run is here: steps and commits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from learners.protocol.learner import Learner
from orchestrator.eventlog.facts import SyncerLost
from orchestrator.planner.fleet.description import Fleet
from orchestrator.planner.fleet.durations import FleetDurations, Stepped
from orchestrator.planner.fleet.network import FleetNetwork
from orchestrator.planner.fleet.planned_faults import PlannedFaults
from orchestrator.recipe.config import SYNCER
from orchestrator.simulation.context import Group, Observer, SimContext, SimLearner
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.process import Host, Process
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer import weights
from outer.numeric.uplinks import uplinks
from outer.protocol import recovery
from outer.protocol.events_effects import Merge, Merged, Publish
from outer.protocol.facts import Committed
from outer.protocol.syncer import Syncer


class Commit(NamedTuple):
    """One commit, as far as it is counted."""

    at: float  # virtual seconds
    participants: tuple[str, ...]  # with a weight above 0
    live: int
    tokens_committed: int  # with it


class World:
    """One per simulation. `commits` are in order; `steps` are by learner."""

    def __init__(self, fleet: Fleet, keeps_journal: bool) -> None:
        self.fleet, self.time = fleet, Timeline()
        self.commits: list[Commit] = []
        self._processes: dict[str, Process] = {}  # the newest of each learner, and of the syncer
        self._handled = 0  # events that processes before those have handled
        self._journal: list[recovery.Entry] = []  # outlives every epoch
        self._keeps_journal = keeps_journal
        self.durations = FleetDurations(fleet, self.time)
        self.network = FleetNetwork(fleet, self.time)
        faults = PlannedFaults(fleet, self.time, self._count_process)
        self.context = SimContext(
            time=self.time,
            network=self.network,
            durations=self.durations,
            sync=fleet.sync,
            specs={
                member.name: SimLearner(Host(member.pool), member.batch_size, member.pool, member.region or None)
                for member in fleet.members
            },
            manifest={},
            model=Numbers(),
            make_learner=self._learner,
            make_values=lambda key: NoValues(),
            make_journal=lambda syncer, durable, refused: TimedJournal(self, syncer),
            faults=faults,
            observer=CommitCounter(self.time, self.commits),
            recording=fleet.recorded,
            fetches_newest=True,
            fetchers=len(fleet.fragments),  # links are what limits them
        )
        self.supervisor = Supervisor(self.context, self._first, self._begin_epoch)
        faults.arm(self.context, self.supervisor)

    @property
    def learners(self) -> dict[str, LearnerProcess]:
        """The newest incarnation of each."""
        return self.supervisor.learners

    @property
    def steps(self) -> dict[str, list[Stepped]]:
        return self.durations.steps

    @property
    def events(self) -> int:
        """Handed to machines."""
        return self._handled + sum(process.handled for process in self._processes.values())

    def _count_process(self, name: str, process: Process) -> None:
        if name in self._processes:
            self._handled += self._processes[name].handled
        self._processes[name] = process

    @property
    def _first(self) -> list[str]:
        """Learners that are wanted from the start."""
        return [member.name for member in self.fleet.members if not member.since_s]

    def _learner(self, name: str, incarnation: int) -> Learner:
        fleet = self.fleet
        return Learner(
            name=name,
            incarnation=incarnation,
            config=fleet.sync,
            fragments=len(fleet.fragments),
            batch_size=self.context.specs[name].batch_size,
            span_steps=fleet.span_steps,
            start_s=fleet.timing.start_s,
            ahead_s=fleet.ahead_s,
        )

    def _begin_epoch(self, epoch: int) -> SyncerProcess:
        fleet, recovered = self.fleet, None
        if epoch > 1:
            self.supervisor.emit(SyncerLost(epoch - 1, "died", ""))
            recovered = recovery.recover(self._journal, len(fleet.fragments))
        batch_sizes = {member.name: member.batch_size for member in fleet.members}
        machine = Syncer(
            epoch=epoch,
            config=fleet.sync,
            fragments=fleet.fragments,
            learners={name: batch_sizes[name] for name in self._first},
            quorum=fleet.quorum,
            span_steps=fleet.span_steps,
            budget=fleet.budget,
            manifest={},
            recovered=recovered,
            ahead_s=fleet.ahead_s,
            weight=weights.named(fleet.sync.weights),
            uplinks=uplinks(fleet.sync, fleet.fragments),
        )
        values = [Number(number, fragment) for fragment, number in enumerate(machine.versions)]
        syncer = SyncerProcess(self.context, Host("syncer"), epoch, machine, values, self.supervisor.on_syncer_death)
        self._count_process(SYNCER, syncer)
        return syncer

    def durable(self, syncer: SyncerProcess, group: Group) -> None:
        """A group is in the journal."""
        if self.context.recording:
            self.context.log.append(group)
        if self._keeps_journal:
            self._journal += [recovery.Entry(syncer.epoch, each.sequence, each.record) for each in group.records]


class CommitCounter(Observer):
    """Appends every commit to `commits`, unless an earlier epoch has recorded it."""

    def __init__(self, time: Timeline, commits: list[Commit]) -> None:
        self._time, self._commits = time, commits

    def emitted(self, syncer: SyncerProcess, fact: Any) -> None:
        if type(fact) is Committed and fact.epoch == syncer.epoch:
            weighty = tuple(one.learner for one in fact.participants if one.weight > 0.0)
            self._commits.append(Commit(self._time.now, weighty, fact.live, fact.tokens_committed))


class Number(NamedTuple):
    """A version without its value."""

    number: int
    fragment: int


class Numbers:
    """Merges nothing into the next version."""

    def merged(self, syncer: SyncerProcess, effect: Merge) -> Merged:
        return Merged(effect.syncer_step, Number(effect.syncer_step, effect.fragment), "", 1.0, True)

    def published(self, syncer: SyncerProcess, effect: Publish) -> Any:
        return effect.proposal


class NoValues:
    """A learner's fragments, which hold nothing."""

    def __init__(self) -> None:
        self.step = 0

    def copies(self, fragments: tuple[int, ...]) -> dict[int, Any]:
        return dict.fromkeys(fragments)

    def read(self, contribution: Any) -> None: ...
    def apply(self, effect: Any) -> None: ...
    def packed(self, poisoned: bool) -> None: ...
    def gave(self, step: int, payload: Any) -> None: ...
    def inherit(self, state: Any) -> None: ...


class TimedJournal:
    """Commits take time, in order. Whatever else waits is written along with them."""

    def __init__(self, world: World, syncer: SyncerProcess) -> None:
        self._world, self._syncer = world, syncer
        self._group: Group | None = None  # under way

    def put(self, group: Group) -> None:
        world, self._group = self._world, group
        commits = [each.record for each in group.records if isinstance(each.record, Committed)]
        takes_s = sum(world.durations.append_s(commit.fragment) for commit in commits)
        world.time.reach(takes_s, self._syncer, self._land, group)

    def _land(self, group: Group) -> None:
        self._group = None
        self._world.durable(self._syncer, group)
        self._syncer.on_durable(group)

    def finish(self, group: Group) -> None:
        for each in (self._group, group):
            if each is not None:
                self._world.durable(self._syncer, each)
        self._group = None

    def crash(self) -> None:
        """What was under way is lost with its process."""
