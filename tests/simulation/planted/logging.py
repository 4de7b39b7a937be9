"""Bugs in what becomes of learners' facts: acknowledged too early, or waited for although they will never come."""

from __future__ import annotations

from typing import Any

from outer.protocol.recorder import Recorder
from tests.simulation.planting import Plant, around, mutant


@around(Recorder, "take")
def gap_waited_for(method: Any, self: Recorder, writer: str, incarnation: int, oldest: int, facts: Any) -> Any:
    """Where facts will never come, the syncer says so and takes the next ones."""
    taken = self._taken.get((writer, incarnation), -1)
    come = facts if facts and facts[0][0] <= taken + 1 else []
    return method(self, writer, incarnation, min(oldest, taken + 1), come)


def taken(self: Recorder, writer: str, incarnation: int) -> int:
    return self._taken.get((writer, incarnation), -1)


@mutant
def acknowledged_when_taken(plant: Plant) -> None:
    """A fact is acknowledged only once it is durable."""
    plant.put(Recorder, "durable", taken)


@mutant
def silenced_by_a_deposed_epoch(plant: Plant) -> None:
    """An epoch that is deposed and does not know it acknowledges nothing that its successor waits for."""
    acknowledged_when_taken(plant)
    gap_waited_for(plant)
