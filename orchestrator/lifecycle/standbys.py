"""Standbys: processes that import and compile ahead, and become the next incarnation of a learner when it is lost."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.lifecycle.controller import State, Unit
from orchestrator.lifecycle.ports import CALL_S, gist
from outer.ports import NoAnswer, Peer, now
from outer.protocol.messages import STEPPING

PREPARE_TIMES = 10.0  # a standby may take so many times `run.start_s`: it yields to everything else
WAIT_S = 30.0  # of one call that waits for a promotion
RETRY_S, RETRY_S_MOST = 10.0, 300.0  # until another is made after one has failed; doubles each time
NO_FAILURE = (0, -math.inf)


@dataclass(eq=False)
class Standby:
    learner: str  # in whose place it waits
    node: str | None  # where that is
    process: Peer | None = None
    ready: bool = False


class Standbys:
    """One per run. `create` starts the process of a standby in its learner's place, `end` ends it; `wanted`: how many a
    learner has; `alike`: whether one that waits for the first learner may be the second one, too, on the same node.
    """

    def __init__(
        self,
        create: Callable[[Standby], Peer],
        end: Callable[[Peer], None],
        wanted: Callable[[str], int],
        alike: Callable[[str, str], bool],
        start_s: float,
    ) -> None:
        self._create, self._end, self._wanted, self._alike = create, end, wanted, alike
        self._prepare_s = PREPARE_TIMES * start_s
        self._made: list[Standby] = []
        self._nodes: dict[str, str | None] = {}  # where each learner stepped last
        self._failures: dict[str, tuple[int, float]] = {}  # by learner: in a row, and when to try again

    def due(self, rows: Sequence[Mapping[str, Any]], units: Mapping[str, Unit]) -> list[Standby]:
        """Standbys to `make` now: of learners that step, one at a time on each node. `rows`: the syncer's."""
        found: list[Standby] = []
        busy = {each.node for each in self._made if not each.ready}
        for row in rows:
            learner, unit = row["name"], units.get(row["name"])
            if row["phase"] != STEPPING or unit is None or unit.state is not State.RUNNING:
                continue
            node = self._nodes[learner] = unit.incarnation.ranks[0].node
            missing = self._wanted(learner) > sum(each.learner == learner for each in self._made)
            if missing and node not in busy and now() >= self._failures.get(learner, NO_FAILURE)[1]:
                found.append(Standby(learner, node))
                busy.add(node)
        self._made += found
        return found

    async def make(self, standby: Standby) -> None:
        """Start a standby, and stay with it until it is promoted or dies."""
        if standby not in self._made:
            return  # it was dropped meanwhile
        try:
            process = standby.process = self._create(standby)
            await asyncio.wait_for(process.ask("prepare"), self._prepare_s)
            standby.ready = True
            self._failures.pop(standby.learner, None)
            while not await asyncio.wait_for(process.ask("stand_by", WAIT_S), WAIT_S + CALL_S):
                pass
        except (NoAnswer, TimeoutError) as error:
            if standby not in self._made:
                return  # it was taken or dropped
            self._drop(standby)
            failures = self._failures.get(standby.learner, NO_FAILURE)[0] + 1
            wait_s = min(RETRY_S_MOST, RETRY_S * 2.0 ** (failures - 1))
            self._failures[standby.learner] = failures, now() + wait_s
            print(f"{standby.learner}: its standby failed; the next in {wait_s:g} s: {gist(error)}", file=sys.stderr)

    def take(self, learner: str) -> Peer | None:
        """The process of a standby that is ready to be this learner: its own, or one of another that is alike."""
        node = self._nodes.get(learner)
        for standby in sorted(self._made, key=lambda each: each.learner != learner):
            own = standby.learner == learner
            if standby.ready and (own or (standby.node == node and self._alike(standby.learner, learner))):
                self._made.remove(standby)
                return standby.process
        return None

    def release(self, learner: str) -> None:
        """End a learner's standbys: its place is given back."""
        for standby in [each for each in self._made if each.learner == learner]:
            self._drop(standby)

    def ready(self, learner: str) -> int:
        return sum(each.ready for each in self._made if each.learner == learner)

    @property
    def processes(self) -> list[Peer]:
        return [each.process for each in self._made if each.process is not None]

    def _drop(self, standby: Standby) -> None:
        self._made.remove(standby)
        if standby.process is not None:
            self._end(standby.process)
