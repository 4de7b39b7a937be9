"""Keeps the wanted learners running: reports to the controller what happens, and carries out its actions.

Owned by the orchestrator. What is true of a learner unit is in the controller; its processes are in learner_units.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from learners.checkpoint_writer import SavedPart
from orchestrator.eventlog.facts import LearnerLost, LearnerRequested, LearnerStarted, NodePreempted, PoolScaled
from orchestrator.lifecycle.actions import Action, AskToLeave, End, Probe, Release, Start
from orchestrator.lifecycle.controller import Controller, RankState
from orchestrator.lifecycle.learner_units import DRAINED, FINISHED, LearnerHandle, LearnerUnits
from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.pools import request_file
from orchestrator.lifecycle.ports import NoSlice, Ports, gist
from orchestrator.lifecycle.standbys import Standby
from orchestrator.lifecycle.syncer_manager import SyncerManager
from orchestrator.recipe.config import Recipe
from orchestrator.store.readers import object_of
from orchestrator.store.status_model import LearnerPlace
from outer.background import Background
from outer.ports import NoAnswer, Peer, Raised, insist, now
from outer.protocol.events_effects import DrainRequested, Expect
from outer.protocol.messages import COMPILING, IMPORTING, STARTING

SYNCER_S = 240.0  # for a syncer to come up and hear of a learner
REATTACH_S = 60.0
GRANT_S = 0.2  # between two looks whether an incarnation has its number
NOTICES_S = 1.0  # between two looks for nodes that have announced their end
PLACES_S = 2.0  # between two looks for places
UNHEARD = "it steps, but its reports do not arrive"
STARTS = (STARTING, IMPORTING, COMPILING)


class LearnerManager:
    """`over` tells whether the run has ended, and no learner is replaced any more. `number`: the orchestrator's."""

    def __init__(self, recipe: Recipe, ports: Ports, over: Callable[[], bool], patience: Patience, number: int) -> None:
        self.failure: BaseException | None = None  # of this manager itself
        self.controller = Controller(
            recipe.learners,
            backoff_s=recipe.run.restart_backoff_s,
            hang_s=recipe.run.hang_s,
            unreachable_s=recipe.run.unreachable_s,
            drain_s=recipe.sync.drain_s,
            pools=recipe.pools,
            quorum=recipe.quorum,
            local=ports.local,
        )
        self.processes = LearnerUnits(recipe, ports)
        self._recipe, self._ports, self._emit, self._over = recipe, ports, ports.emit, over
        self._patience, self._number, self._start_s = patience, number, recipe.run.start_s
        self._syncer: SyncerManager | None = None
        self._processes: dict[str, LearnerHandle] = {}
        self._granting: set[str] = set()  # learners whose next incarnation waits for its number
        self._tasks, self._probes = Background(self._fail), Background(self._fail)
        self._starts: dict[str, asyncio.Task[None]] = {}  # of each learner's newest incarnation
        self._notices_at = self._places_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None  # the newest look for places
        self._saved: dict[str, SavedPart] = {}  # what each may start from the first time
        self._phases: dict[str, str] = {}  # as the syncer was told last
        self._found: dict[str, tuple[LearnerHandle, tuple[RankState, ...]]] = {}  # left by an earlier orchestrator

    def start(self, syncer: SyncerManager, saved: Mapping[str, SavedPart], again: bool = False) -> None:
        """Start all wanted learners, beside the syncer's first epoch; `saved`: what some of them continue from.

        `again`: an earlier orchestrator ran some.
        """
        self._syncer, self._saved = syncer, dict(saved)
        if again:
            self._act(self.controller.rejoin([*self._found, *saved]))
        strays = [name for name in self._found if name not in self.controller.wanted]
        for name in strays:
            self.controller.want(name)
        self._advance()
        for name in strays:
            self._act(self.controller.unwant(name, "its pool was scaled down", now()))

    async def find(self, statuses: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Look for learners that an earlier orchestrator has left; `statuses`: the last status of each, by name.

        It may have died before any status showed those that it had added last.
        """
        self._scale()
        await self.processes.find_standbys()

        async def find(name: str) -> tuple[LearnerHandle, tuple[RankState, ...]] | None:
            incarnation = self._ports.records.granted("incarnation", name)
            return await self.processes.find(name, incarnation, statuses.get(name, {}))

        names = [name for name in self._ports.records.holders("incarnation") if self._recipe.is_learner(name)]
        found = await asyncio.gather(*map(find, names))
        self._found = {name: each for name, each in zip(names, found, strict=True) if each is not None}
        return list(self._found)

    def silent(self) -> set[str]:
        """Of those found the ones in other regions that did not answer: who knows whether they are there."""
        found, apart = self._found.items(), self._recipe.joined_region
        return {name for name, (process, _) in found if apart(name) and not process.answered}

    def give_up(self) -> None:
        """End those that were found."""
        for process, _ in self._found.values():
            self.processes.end(process)
        self._found = {}

    def reattach(self, syncer: Peer) -> None:
        """A new epoch of the syncer serves: every learner attaches to it, and it hears of the drains under way."""
        for process in self._living():
            if process.ranks and process.syncer is not syncer:
                self._start_reattach(process, syncer)
        for drain in self.controller.leaving(now()):
            self._tasks.spawn(self._drain(drain))

    def _start_reattach(self, process: LearnerHandle, syncer: Peer) -> None:
        assert self._syncer is not None
        process.syncer = syncer
        process.reattaching = self._tasks.spawn(self._reattach(process, self._syncer.epoch, syncer))

    async def _reattach(self, process: LearnerHandle, epoch: int, syncer: Peer) -> None:
        try:
            ask = partial(process.ranks[0].ask, "reattach", self._number, epoch, syncer)
            refusal = await asyncio.wait_for(insist(ask), REATTACH_S)
        except (NoAnswer, TimeoutError):
            return  # dead or frozen: the end of its call tells, or its lease
        if refusal:
            reason = f"refused by the syncer: {refusal}"
            self._act(self.controller.end(process.learner, process.incarnation, reason))

    async def _call(self, method: str, *arguments: Any) -> Any:
        assert self._syncer is not None
        return await self._syncer.call(method, *arguments, patience_s=SYNCER_S)

    # -------------------------------------------------------------- what others may ask

    def expected(self) -> tuple[Expect, ...]:
        """The incarnations that live, or are about to."""
        return tuple(map(self._expect, self._living()))

    def _living(self) -> list[LearnerHandle]:
        alive = self.controller.alive
        return [each for name, each in self._processes.items() if alive(name, each.incarnation)]

    def _expect(self, process: LearnerHandle) -> Expect:
        pool = self._recipe.pool_of(process.learner)
        return Expect(process.learner, process.incarnation, self._start_s, pool.batch_size, pool.region or "")

    @property
    def faults(self) -> dict[str, str]:
        """The last thing that went wrong with each learner."""
        return {name: unit.fault for name, unit in self.controller.units.items() if unit.fault}

    def misconfigure(self, learner: str, incarnation: int) -> bool:
        """For chaos: give the next incarnation another recipe. False: this incarnation is gone."""
        process = self._processes.get(learner)
        if process is None or process.incarnation != incarnation:
            return False
        self.processes.misconfigure(learner)
        return True

    @property
    def placed(self) -> dict[str, LearnerPlace]:
        """Where each learner is, for the status."""
        return {
            name: LearnerPlace(
                first.pid,
                first.node,
                unit.fault or None,
                unit.no_place,
                self.processes.standbys.ready(name),
                tuple((each.pid, each.node) for each in others),
                dict(unit.restarts),
                unit.recoveries,
                unit.recovery_s,
            )
            for name, unit in self.controller.units.items()
            for first, *others in [unit.incarnation.ranks or (RankState(),)]
        }

    # -------------------------------------------------------------- the end

    async def leave(self, seconds: float) -> bool:
        """Wait until every training loop has returned, but no longer; whether some have not.

        Learners that wait for a place wait no more. One that missed the newest epoch, which would tell it that the run
        is over, is told of it.
        """
        for name, task in self._starts.items():
            if (process := self._processes.get(name)) is None or not process.ranks:
                task.cancel()
        give_up_at = now() + seconds
        while self._tasks.running and now() < give_up_at:
            await asyncio.wait(self._tasks.running, timeout=PLACES_S)
            for process in self._living():
                self._probes.spawn(self._probe(Probe(process.learner, process.incarnation)))
        return bool(self._tasks.running)

    def cancel(self) -> None:
        for task in self._tasks.running | self._probes.running:
            task.cancel()

    def savers(self, gone: bool = False) -> list[tuple[str, int, Peer]]:
        """(learner, incarnation, process) of those that may have a state to save; `gone`: whose loops have returned."""
        alive = self.controller.alive
        return [
            (name, each.incarnation, each.ranks[0])
            for name, each in self._processes.items()
            if each.ranks and alive(name, each.incarnation) is not gone
        ]

    @property
    def peers(self) -> list[Peer]:
        """Every process that it knows of, standbys included."""
        ranks = [rank for each in self._processes.values() for rank in each.ranks]
        return ranks + self.processes.standbys.processes

    # -------------------------------------------------------------- looking

    def watch(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Report what can be seen now; `rows`: what the syncer knows of the learners. Called several times a second."""
        at = now()
        self._watch_leases(rows)
        self._scale()
        if at - self._places_at >= PLACES_S and (self._looking is None or self._looking.done()):
            self._places_at = at
            self._looking = self._probes.spawn(self._watch_places())
        if at - self._notices_at >= NOTICES_S:
            self._notices_at = at
            for node, remaining_s in self._ports.processes.notices().items():
                self._act(self.controller.node_notice(at, node, remaining_s))
        self._advance()
        for standby in self.processes.standbys.due(rows, self.controller.units):
            self._probes.spawn(self._stand_by(standby))

    async def _stand_by(self, standby: Standby) -> None:
        """Nobody would find what is started after another orchestrator has looked for standbys."""
        await self._patience.granted(self._ports.require, self._number)
        await self.processes.standbys.make(standby)

    def _scale(self) -> None:
        for pool in self.controller.pools.sizes:
            self._act(self.controller.scale(now(), pool, object_of(self._ports.records, request_file(pool))))

    def _watch_leases(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            name, incarnation, silent_s = row["name"], row["incarnation"], row["lease_age_s"]
            self._phases[name] = row["phase"]
            if name not in self.controller.units:
                continue  # added by scaling under an earlier orchestrator; this one has yet to read the request
            if row["merged"]:
                self.controller.contributed(now(), name, incarnation)
            if row["alive"]:
                self.controller.reachable(name, incarnation)
            elif silent_s is not None:
                self._act(self.controller.silent(name, incarnation, silent_s))

    async def _probe(self, probe: Probe) -> None:
        """Ask a silent learner itself, and look for its nodes; tell the controller why it is out of reach, if it is."""
        process, why = self._processes.get(probe.learner), ""
        if process is not None and process.incarnation == probe.incarnation:
            ranks = self.controller.units[probe.learner].incarnation.ranks
            progress, unseen = await asyncio.gather(self.processes.progress(process), self.processes.unseen(ranks))
            why = unseen
            if isinstance(progress, str):
                why = unseen or progress
            elif progress is not None:
                alive, epoch = progress
                why = UNHEARD if alive else ""
                self._remind(process, epoch)
        self.controller.probed(probe.learner, probe.incarnation, why)

    def _remind(self, process: LearnerHandle, epoch: int | None) -> None:
        """Tell a learner that missed the newest epoch of it again."""
        syncer, telling = self._syncer, process.reattaching is not None and not process.reattaching.done()
        if syncer is None or syncer.peer is None or telling:
            return
        if epoch != syncer.epoch and process.syncer is syncer.peer:
            self._start_reattach(process, syncer.peer)

    async def _watch_places(self) -> None:
        actions = await self.processes.look(self.controller)
        if not self._over():
            self._act(actions)
            self._advance()

    # -------------------------------------------------------------- the controller's actions

    def _advance(self) -> None:
        self._act(self.controller.advance(now()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._starts[name] = self._tasks.spawn(self._start(name))
                case AskToLeave():
                    self._tasks.spawn(self._drain(action))
                case Probe():
                    self._probes.spawn(self._probe(action))
                case End():
                    self._tasks.spawn(self._kill(action))
                case Release(name):
                    self.processes.release(name)
                case PoolScaled() | NodePreempted():
                    self._emit(action)

    async def _drain(self, action: AskToLeave) -> None:
        """Ask a learner to leave. One that does not step yet has nothing to lose, and is killed at once."""
        while action.learner in self._granting:
            await asyncio.sleep(GRANT_S)
        process = self._processes[action.learner]
        request = DrainRequested(action.learner, process.incarnation, action.reason, action.deadline_s)
        if not await self._call("drain", request):
            process.dismissed.set()
            self.processes.end(process)

    async def _kill(self, action: End) -> None:
        """The call of the training loop then fails, and `_attend` goes on from there."""
        process = self._processes[action.learner]
        if error := await self.processes.kill(process, self.controller.units[action.learner].incarnation.ranks):
            await self._lost(process, "lease_expired", f"{action.reason}; {error}")

    # -------------------------------------------------------------- one incarnation, from its grant to its end

    async def _start(self, name: str) -> None:
        if (found := self._found.pop(name, None)) is not None:
            process, ranks = found
            self._processes[name] = process
            self.controller.started(name, process.incarnation, len(ranks))
            await self._attend(process, self._adopt(process, ranks))
            return
        saved = self._saved.pop(name, None)
        exact = saved is not None and saved.exact
        if saved is not None and exact:
            incarnation = saved.incarnation
        else:
            self._granting.add(name)
            incarnation = await self._patience.granted(self._ports.grant, self._number, "incarnation", name)
            self._granting.discard(name)
        process = self._processes[name] = LearnerHandle(name, incarnation, saved)
        self.controller.started(name, incarnation, self._recipe.pool_of(name).processes, resumed=exact)
        await self._attend(process, self._run(process))

    async def _attend(self, process: LearnerHandle, run: Coroutine[Any, Any, str]) -> None:
        """Wait until the incarnation ends, and do what follows from that."""
        name = process.learner
        try:
            cause, detail = await run, ""
        except Raised as error:
            cause, detail = "failed", gist(error)
        except NoAnswer as error:
            ending = self.controller.units[name].incarnation.ending
            cause, detail = "lease_expired" if ending else "died", ending or gist(error)
        except NoSlice as error:
            cause, detail = "failed", str(error)
        except TimeoutError:
            why = "".join(f": {reason}" for reason in (await self.processes.places.pending([name]) or {}).values())
            cause, detail = "failed", f"not placed and started within {self._start_s:g} s{why}"
        if cause == DRAINED or process.dismissed.is_set():
            await self._left(process)
        elif cause == FINISHED:
            self.controller.finished(name, process.incarnation)
        else:
            await self._lost(process, cause, detail)

    async def _adopt(self, process: LearnerHandle, ranks: Sequence[RankState]) -> str:
        """The rest of an incarnation that an earlier orchestrator started."""
        self.processes.places.adopt(process.learner)
        self._answered(process, [(rank.pid, rank.node) for rank in ranks])
        await self._call("expect", self._expect(process))  # that orchestrator may have died before it said so
        return await process.run()

    async def _run(self, process: LearnerHandle) -> str:
        """From the request of an incarnation to the end of its training loop."""
        name, incarnation, pool = process.learner, process.incarnation, self._recipe.pool_of(process.learner)
        if process.saved is None or not process.saved.exact:
            self._emit(LearnerRequested(name, incarnation, pool.name, pool.region))
        expected = asyncio.ensure_future(self._call("expect", self._expect(process)))
        if not await self.processes.place(process):
            return DRAINED
        permitted = partial(self._patience.granted, self._ports.require, self._number)
        await permitted()  # the place may have come after a freeze
        assert self._syncer is not None and self._syncer.peer is not None
        ranks = await self.processes.create(process, self._syncer.peer, self._number, permitted)
        pids, nodes = zip(*ranks, strict=True)
        self._emit(LearnerStarted(name, incarnation, pids[0], nodes[0], pids[1:], nodes[1:]))
        self._answered(process, ranks)
        await expected
        return await process.run()

    def _answered(self, process: LearnerHandle, ranks: Sequence[tuple[int | None, str | None]]) -> None:
        for rank, (pid, node) in enumerate(ranks):
            self.controller.answered(process.learner, process.incarnation, pid, node, rank)

    async def _lost(self, process: LearnerHandle, cause: str, detail: str) -> None:
        """It is gone, with everything that it had not delivered.

        Here and in `_left` the controller hears of it last: it may start the successor at once, which must not come
        before the syncer knows, nor into a place that is being given back.
        """
        name, incarnation = process.learner, process.incarnation
        told, phase = f"{cause}: {detail}", self._phases.get(name)
        if phase in STARTS and (cause == "lease_expired" or detail.startswith("not placed")):
            told += f"; {phase} made no progress for run.start_s = {self._start_s:g}; raise that if it takes longer"
        if not self.controller.ended(name, incarnation, told):
            return
        self._emit(LearnerLost(name, incarnation, cause, detail))
        self._end(process)
        await self._call("fence", name, incarnation, {"died": "killed"}.get(cause, cause))
        self.controller.lost(now(), name, incarnation, cause)
        if not self.controller.units[name].wanted:
            self.processes.release(name)
        if not self._over():
            self._advance()

    async def _left(self, process: LearnerHandle) -> None:
        """It is gone and has lost nothing. Its place is given back: that may be on a node that is ending, too."""
        name, incarnation = process.learner, process.incarnation
        why = self.controller.units[name].incarnation.leaving or "its process was asked to end"
        if not self.controller.ended(name, incarnation, f"drained: {why}"):
            return
        # Its own last report has done this, unless that was lost on the way.
        await self._call("fence", name, incarnation, "drained")
        self._end(process)
        self.processes.release(name)
        self.controller.left(name, incarnation)
        if not self._over():
            self._advance()

    def _end(self, process: LearnerHandle) -> None:
        self.processes.end(process)  # a living process whose loop failed
        if process.ranks[1:]:  # and ranks that are frozen
            self._probes.spawn(self.processes.kill(process, self.controller.units[process.learner].incarnation.ranks))

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
