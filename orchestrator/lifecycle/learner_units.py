"""The processes of learner units: how an incarnation is created in its place, found again, asked and ended.

The learner manager decides when; what is true of a unit is in the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from learners.checkpoint_writer import SavedPart
from orchestrator.lifecycle.actions import Action
from orchestrator.lifecycle.controller import Controller, RankState, State
from orchestrator.lifecycle.ports import CALL_S, NODE_ENDS, Ports
from orchestrator.lifecycle.standbys import Standby, Standbys
from orchestrator.recipe.config import Recipe
from outer.ports import NoAnswer, Peer, Unreachable, insist, now

CLAIMS_MOST = 32  # that one look asks for: each is a call or two
MISCONFIGURED_S = 30.0  # chaos kills the incarnation at once; if it does not, the fault expires
DRAINED, FINISHED = "drained", "finished"  # how an incarnation ends that is no loss


@dataclass
class LearnerHandle:
    """The processes of a learner's newest incarnation: none, or one for each of its ranks."""

    learner: str
    incarnation: int
    saved: SavedPart | None = None  # what it starts from
    ranks: tuple[Peer, ...] = ()
    answered: bool = True  # when it was found; else it is taken to be as its last status says
    syncer: Peer | None = None  # the epoch that it was told of last
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)  # it has nothing to lose and is ended at once
    reattaching: asyncio.Task[None] | None = None  # the newest call that told it of an epoch

    async def run(self) -> str:
        """Train until the loop ends: `drained` or `finished`. Raises NoAnswer for what the loop raised, or if a process
        ended.

        One that cannot be reached is asked again, and one that is frozen is waited for: how long it may stay so is the
        controller's. Where an earlier orchestrator asked all this, the ranks go on.
        """
        first, *others = self.ranks
        address = await insist(partial(first.ask, "lead", others)) if others else ""
        following = [insist(partial(rank.ask, "follow", address)) for rank in others]
        ended = await _led(insist(partial(first.ask, "run")), following)
        return DRAINED if ended.startswith("drained") else FINISHED


class LearnerUnits:
    """One per run."""

    def __init__(self, recipe: Recipe, ports: Ports) -> None:
        self._recipe, self._ports, self._processes, self.places = recipe, ports, ports.processes, ports.places
        end, start_s = self._processes.end, recipe.run.start_s
        self.standbys = Standbys(self._stand_by, end, lambda name: recipe.pool_of(name).standby, self._alike, start_s)
        self._promoted: dict[tuple[str, int], Peer] = {}  # standbys that an earlier orchestrator promoted
        self._shown: dict[str, Mapping[str, str]] = {}  # what shows a learner of accelerators its devices
        self._misconfigured: dict[str, float] = {}  # learner -> until when its next incarnation gets another recipe
        self._without: set[str] = set()  # learners without a place at the last look

    async def find(
        self, name: str, incarnation: int, status: Mapping[str, Any]
    ) -> tuple[LearnerHandle, tuple[RankState, ...]] | None:
        """A learner that an earlier orchestrator left, with all its ranks; `status`: the last that was shown of it."""
        numbers = range(self._recipe.pool_of(name).processes)
        found = [self._processes.left_rank(name, incarnation, rank) for rank in numbers]
        found[0] = self._promoted.get((name, incarnation), found[0])
        ranks = tuple(rank for rank in found if rank is not None)
        if None not in found:
            with contextlib.suppress(NoAnswer, TimeoutError):
                answers = await asyncio.gather(*map(_known, ranks))
                answered = answers[0] is not None
                info, *others = [answers[0] or status, *[each or {} for each in answers[1:]]]
                self._identified(name, info)
                states = tuple(RankState(True, each.get("pid"), each.get("node")) for each in (info, *others))
                return LearnerHandle(name, incarnation, ranks=ranks, answered=answered), states
        for rank in ranks:  # what is left of a gang: it is whole or gone
            self._processes.end(rank)
        return None

    async def find_standbys(self) -> None:
        """Look for the standbys that an earlier orchestrator has left, and end those that are no learner now, or do not
        answer.
        """

        async def look(process: Peer) -> None:
            with contextlib.suppress(NoAnswer, TimeoutError):
                name, incarnation = (await _identity(process))["key"]
                if incarnation:
                    self._promoted[name, incarnation] = process
                    return
            self._processes.end(process)

        await asyncio.gather(*map(look, await self._processes.left_standbys()))

    def _identified(self, name: str, info: Mapping[str, Any]) -> None:
        if self._recipe.pool_of(name).accelerated:
            self._shown[name] = info.get("shown") or {}

    async def place(self, process: LearnerHandle) -> bool:
        """Wait for the learner's place. False: it was dismissed before there was one. Raises TimeoutError, and as
        Places.wait.
        """
        placing = asyncio.ensure_future(asyncio.wait_for(self.places.wait(process.learner), self._recipe.run.start_s))
        dismissed = asyncio.ensure_future(process.dismissed.wait())
        try:
            await asyncio.wait({placing, dismissed}, return_when=FIRST_COMPLETED)
            if placing.done():
                placing.result()
            return not process.dismissed.is_set()
        finally:
            placing.cancel()
            dismissed.cancel()

    async def create(
        self, process: LearnerHandle, syncer: Peer, number: int, permitted: Callable[[], Awaitable[None]]
    ) -> list[tuple[int, str]]:
        """Start the learner's processes in its place, or promote a standby. Returns the pid and node of each rank.

        `number`: the orchestrator's, which may have been frozen, and followed, while it waited for the standby.
        """
        name, incarnation = process.learner, process.incarnation
        process.syncer = syncer
        if (standby := self.standbys.take(name)) is not None:
            if name not in self._misconfigured:
                process.ranks = (standby,)
                with contextlib.suppress(NoAnswer, TimeoutError):
                    promoted = number, name, incarnation, self._processes.core(name), syncer
                    info = await asyncio.wait_for(standby.ask("promote", *promoted), CALL_S)
                    return [(info["pid"], info["node"])]
            self._processes.end(standby)  # it cannot be it
            await permitted()
        strange = now() < self._misconfigured.pop(name, 0.0)
        process.ranks = tuple(self._processes.start_learner(name, incarnation, process.saved, syncer, strange))
        up = [asyncio.wait_for(rank.ask("identify"), self._recipe.run.start_s) for rank in process.ranks]
        infos = await asyncio.gather(*up)
        self._identified(name, infos[0])
        return [(info["pid"], info["node"]) for info in infos]

    def _alike(self, one: str, other: str) -> bool:
        """Whether a standby in the place of one learner can be another: on CPUs, which are nobody's."""
        pool = self._recipe.pool_of(one)
        return pool is self._recipe.pool_of(other) and not pool.accelerated

    def _stand_by(self, standby: Standby) -> Peer:
        return self._processes.start_standby(standby.learner, standby.node, self._shown.get(standby.learner, {}))

    def misconfigure(self, name: str) -> None:
        """For chaos: give the learner's next incarnation, and only that, another recipe."""
        self._misconfigured[name] = now() + MISCONFIGURED_S

    def end(self, process: LearnerHandle) -> None:
        """End every rank; no harm is done to one that is dead or does not exist yet."""
        for rank in process.ranks:
            self._processes.end(rank)

    async def kill(self, process: LearnerHandle, ranks: Iterable[RankState]) -> str:
        """Kill processes that do not answer. Returns the name of a node's error that did not do it."""
        self.end(process)
        return await self._processes.kill(ranks)

    async def progress(self, process: LearnerHandle) -> tuple[bool, int | None] | str | None:
        """Ask a learner itself: see LearnerShell.progress. A string: it cannot be reached; None: it does not answer."""
        if not process.ranks:
            return None
        try:
            deadline_s = min(CALL_S, self._recipe.run.hang_s / 2.0)
            answer: tuple[bool, int | None] = await asyncio.wait_for(process.ranks[0].ask("progress"), deadline_s)
            return answer
        except Unreachable:
            return "its process cannot be reached"
        except (NoAnswer, TimeoutError):
            return None

    async def unseen(self, ranks: Iterable[RankState]) -> str:
        """Why the node of one of these ranks cannot be seen; empty when all can.

        A local cluster has one, ours; those of other regions begin with the region.
        """
        nodes = [rank.node for rank in ranks if rank.node and ("/" in rank.node or not self._ports.local)]
        try:
            reasons = [await self._processes.unseen(node) for node in nodes]
        except Exception:  # whatever the cluster's state API raises: the hang deadline holds
            return ""
        return next((reason for reason in reasons if reason), "")

    async def look(self, controller: Controller) -> list[Action]:
        """Tell the controller who has no place at two looks in a row; returns what it does about free ones."""
        places = self.places
        claims, asked = controller.claims(), {*places.names}
        with _asking_again():
            places.claim([name for name in claims if name not in asked][:CLAIMS_MOST])
        waiting = _without_process(controller)
        pending = await places.pending([*waiting, *claims])
        if pending is None:
            return []
        with _asking_again():
            for name in claims:
                if pending.get(name) == NODE_ENDS:
                    self.release(name)
        twice = self._without.intersection(_without_process(controller))  # who started since has a place
        for name in controller.units:
            controller.place(name, pending.get(name, "") if name in twice else "")
        self._without = set(pending)
        return controller.follow(now(), {*places.names}.intersection([*waiting, *claims]) - pending.keys())

    def release(self, name: str) -> None:
        """Give the learner's place back."""
        self.standbys.release(name)
        self.places.release(name)

    def release_all(self) -> None:
        for name in self.places.names:
            self.release(name)


async def _identity(process: Peer) -> Mapping[str, Any]:
    info: Mapping[str, Any] = await asyncio.wait_for(process.ask("identify"), CALL_S)
    return info


async def _known(process: Peer) -> Mapping[str, Any] | None:
    """What it says it is. None: it may be frozen, or cut off, and its lease will tell. Raises NoAnswer."""
    try:
        return await asyncio.wait_for(insist(partial(process.ask, "identify")), CALL_S)
    except TimeoutError:
        return None


@contextlib.contextmanager
def _asking_again() -> Iterator[None]:
    """Where the cluster's control store does not answer, the next look asks again."""
    try:
        yield
    except Exception as error:
        print(f"places: {type(error).__name__}: {error}", file=sys.stderr)


def _without_process(controller: Controller) -> list[str]:
    return [name for name, unit in controller.units.items() if unit.state in (State.WAITING, State.STARTING)]


async def _led(leading: Coroutine[Any, Any, Any], following: Iterable[Coroutine[Any, Any, Any]]) -> str:
    """Rank 0's answer, unless any rank's call raises: raises what that raised."""
    lead, *_ = tasks = [asyncio.ensure_future(each) for each in (leading, *following)]
    try:
        while not lead.done():
            done, _ = await asyncio.wait([each for each in tasks if not each.done()], return_when=FIRST_COMPLETED)
            for task in done:
                task.result()
        return str(lead.result())
    finally:
        for task in tasks:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else asks
            task.cancel()
