"""Bugs in standbys and islands: what outlives its place or its rank 0, and whose end is noticed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any

from learners.rank import RankShell
from learners.training.rank_call import RankCall
from orchestrator.lifecycle import learner_units
from orchestrator.lifecycle.learner_manager import LearnerManager
from orchestrator.lifecycle.learner_units import LearnerHandle, LearnerUnits
from orchestrator.lifecycle.ports import CALL_S
from orchestrator.lifecycle.standbys import Standbys
from outer.ports import NoAnswer
from tests.simulation.planting import instead


@instead(Standbys, "release")
def standby_outlives_its_place(self: Standbys, learner: str) -> None:
    """A standby ends when its learner's place is given back."""


@instead(LearnerUnits, "find_standbys")
async def waiting_standbys_left_behind(self: LearnerUnits) -> None:
    """Another orchestrator ends the standbys that wait."""
    for process in await self._processes.left_standbys():
        with contextlib.suppress(NoAnswer, TimeoutError):
            name, incarnation = (await asyncio.wait_for(process.ask("identify"), CALL_S))["key"]
            if incarnation:
                self._promoted[name, incarnation] = process


@instead(learner_units, "_led")
async def ends_of_other_ranks_not_noticed(leading: Coroutine[Any, Any, Any], following: Iterable[Any]) -> str:
    """The end of any rank ends the incarnation."""
    others = [asyncio.ensure_future(each) for each in following]
    ended = str(await leading)
    for each in others:
        each.cancel()
    return ended


@instead(LearnerManager, "_end")
def other_ranks_outlive_rank_0(self: LearnerManager, process: LearnerHandle) -> None:
    """An incarnation ends with all its ranks."""
    for rank in process.ranks[:1]:
        self._ports.processes.end(rank)


@instead(LearnerUnits, "kill")
async def frozen_ranks_not_killed(self: LearnerUnits, process: LearnerHandle, ranks: Any) -> str:
    """A rank that is frozen is killed before the next incarnation steps."""
    self.end(process)
    return ""


@instead(RankShell, "_due")
async def calls_repeated_as_they_come(self: RankShell) -> list[RankCall]:
    """A rank repeats the calls of rank 0 in their order."""
    while not self._calls:
        self._came.clear()
        await self._came.wait()
    due, self._calls = list(self._calls.values()), {}
    self._next += len(due)
    return due
