"""Bugs in a learner with two steps in flight: what is told, given or counted before a step is done."""

from __future__ import annotations

from typing import Any

from learners.protocol.events_effects import Staged
from learners.protocol.learner import Learner
from learners.protocol.pipeline import Pipeline
from tests.simulation.planting import Plant, around, instead, mutant


@around(Learner, "_on_staged")
def answered_before_the_step_is_done(method: Any, self: Learner, now: float, event: Staged) -> None:
    """A copy of a step in flight answers no read before that step is done."""
    at = self._pipeline.reached
    for request, copy in self._reads.stage(at, self._adoption.counters(at), event.copies):
        self._adoption.note_read(request, copy.read_at)
    self._answer_staged(now)
    method(self, now, Staged({}))


@mutant
def adoption_logged_before_its_step(plant: Plant) -> None:
    """What is adopted after a step is in the log after that step."""
    plant.put(Pipeline, "hold_back", lambda self, fact: False)


@instead(Learner, "_on_staged")
def copy_with_the_completed_steps_counters(self: Learner, now: float, event: Staged) -> None:
    """A copy has the counters of the step that it is of, which may be in flight."""
    counters = self._adoption.counters(self._pipeline.completed)
    for request, copy in self._reads.stage(self._pipeline.reached, counters, event.copies):
        self._adoption.note_read(request, copy.read_at)
    if not self._pipeline.busy:
        self._answer_staged(now)
    self._boundary(now)


@mutant
def given_with_a_step_in_flight(plant: Plant) -> None:
    """A learner gives its state, and leaves, only once every step in flight is done."""
    plant.put(Learner, "_needs_completion", lambda self: False)
