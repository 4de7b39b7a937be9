"""Processes that wait, imported and compiled, in their learners' places, each to become one incarnation.

The learner manager says which learners step; `take` hands a ready one over. A standby has no incarnation before that,
so leases, the log's accounts and fencing know nothing of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from orchestrator.lifecycle.controller import State, Unit
from orchestrator.runtime.placement import label
from orchestrator.runtime.ray_await import CALL_S, gist, within
from outer.protocol.messages import STEPPING

PREPARE_TIMES = 10.0  # a standby may take so many times `run.start_s`: it yields to everything else
WAIT_S = 30.0  # of one call that waits for a promotion
RETRY_S, RETRY_S_MOST = 10.0, 300.0  # until another is made after one has failed; doubles each time
NO_FAILURE = (0, -math.inf)


def standby_label(learner: str, incarnation: int) -> str:
    """The name of the actor that waits to be this incarnation."""
    return f"{label(learner, incarnation)}.standby"


@dataclass
class Standby:
    learner: str
    incarnation: int  # which it will be
    node: str | None  # where its learner is
    actor: Any = None
    ready: bool = False

    def kill(self) -> None:
        if self.actor is not None:
            ray.kill(self.actor)


class Standbys:
    """One per run. `create` starts the actor of a standby, in its learner's place; `wanted` how many a learner has."""

    def __init__(
        self,
        create: Callable[[Standby], Any],
        wanted: Callable[[str], int],
        start_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create, self._wanted, self._prepare_s, self._clock = create, wanted, PREPARE_TIMES * start_s, clock
        self._made: dict[tuple[str, int], Standby] = {}
        self._failures: dict[str, tuple[int, float]] = {}  # by learner: in a row, and when to try again

    def due(self, rows: Sequence[Mapping[str, Any]], units: Mapping[str, Unit]) -> list[Standby]:
        """Standbys to `make` now: of learners that step, one at a time on each node. `rows`: the syncer's."""
        found: list[Standby] = []
        busy = {each.node for each in self._made.values() if not each.ready}
        for row in rows:
            learner, newest, unit = row["name"], row["incarnation"], units.get(row["name"])
            if row["phase"] != STEPPING or unit is None or unit.state is not State.RUNNING:
                continue
            node, numbers = unit.incarnation.ranks[0].node, range(newest + 1, newest + 1 + self._wanted(learner))
            missing = [number for number in numbers if (learner, number) not in self._made]
            if missing and node not in busy and self._clock() >= self._failures.get(learner, NO_FAILURE)[1]:
                found.append(Standby(learner, missing[0], node))
                self._made[learner, missing[0]] = found[-1]
                busy.add(node)
        return found

    async def make(self, standby: Standby) -> None:
        """Start a standby, and stay with it until it is promoted or dies."""
        try:
            standby.actor = self._create(standby)
            await within(self._prepare_s, standby.actor.prepare.remote())
            standby.ready = True
            self._failures.pop(standby.learner, None)
            while not await within(WAIT_S + CALL_S, standby.actor.stand_by.remote(WAIT_S)):
                pass
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:  # ValueError: its name is still taken
            if self._made.get((standby.learner, standby.incarnation)) is not standby:
                return  # it was taken or dropped
            self._drop(standby)
            failures = self._failures.get(standby.learner, NO_FAILURE)[0] + 1
            wait_s = min(RETRY_S_MOST, RETRY_S * 2.0 ** (failures - 1))
            self._failures[standby.learner] = failures, self._clock() + wait_s
            print(f"{standby.learner}: a standby failed, another follows in {wait_s:g} s: {gist(error)}", flush=True)

    def take(self, learner: str, incarnation: int) -> Any | None:
        """The actor that waits to be this incarnation, if it is ready. Those for earlier ones are ended, too."""
        taken = self._made.pop((learner, incarnation), None)
        for standby in [each for each in self._made.values() if each.learner == learner]:
            if standby.incarnation <= incarnation:
                self._drop(standby)
        if taken is not None and not taken.ready:
            taken.kill()
            return None
        return taken and taken.actor

    def release(self, learner: str) -> None:
        """End a learner's standbys: its place is given back."""
        for standby in [each for each in self._made.values() if each.learner == learner]:
            self._drop(standby)

    def ready(self, learner: str) -> int:
        return sum(each.ready for each in self._made.values() if each.learner == learner)

    @property
    def handles(self) -> list[Any]:
        return [each.actor for each in self._made.values() if each.actor is not None]

    def _drop(self, standby: Standby) -> None:
        del self._made[standby.learner, standby.incarnation]
        standby.kill()


def end_left(learner: str, newest: int, wanted: int, namespace: str) -> None:
    """End the standbys that an earlier orchestrator has left behind the newest incarnation."""
    for number in range(newest + 1, newest + 1 + wanted):
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(standby_label(learner, number), namespace))
