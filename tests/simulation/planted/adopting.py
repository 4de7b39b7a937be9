"""Bugs in a learner's fragments: which version it adopts, from where it counts, and what it answers to a read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learners.protocol.adoption import Adoption
from learners.protocol.events_effects import Apply, Fetched
from learners.protocol.learner import Learner
from learners.protocol.staged_reads import Copy, StagedReads
from outer.protocol.coverage import Mark
from tests.simulation.planting import Plant, around, mutant


@around(Adoption, "_adopt")
def counters_not_reset(method: Any, self: Adoption, fragment: int, version: int, payload: Any, at: Mark) -> Any:
    """Adoption that overwrites sets the fragment's counters to zero."""
    base = self._bases[fragment]
    before, first = base.since, base.version is None
    effects = method(self, fragment, version, payload, at)
    if not first and self._config.adopt != "rebase":
        base.since = before
    return effects


@around(Adoption, "_adopt")
def rebased_from_the_base(method: Any, self: Adoption, *given: Any) -> Any:
    """Rebase subtracts what was read, where that read is in the new version."""
    effects = method(self, *given)
    return [replace(each, read_at=None) if isinstance(each, Apply) else each for each in effects]


@around(Adoption, "_adopt")
def rebased_and_counted_on(method: Any, self: Adoption, fragment: int, *given: Any) -> Any:
    """After a rebase only what accrued since the merged read counts."""
    before, first = self._bases[fragment].since, self._bases[fragment].version is None
    effects = method(self, fragment, *given)
    if self._config.adopt == "rebase" and not first:
        self._bases[fragment].since = before
    return effects


@around(Adoption, "arrive")
def any_version_of_a_fetch(method: Any, self: Adoption, event: Fetched) -> None:
    """What is adopted is the version that came, which may be newer than the one that was asked for."""
    version = self._fetching.get(event.fragment, event.version)
    method(self, replace(event, version=version))


# ---------------------------------------------------------------- reads


@mutant
def copy_from_before_the_adoption(plant: Plant) -> None:
    """No read is answered from a copy that was made before an adoption."""

    def wrapper(method: Any) -> Any:
        def answer(self: Learner, request: Any, copy: Copy) -> None:
            base = self._adoption.counters(self._pipeline.completed)[request.fragment]
            counters = copy.counters._replace(base_version=base.base_version)
            method(self, request, Copy(copy.read_at, counters, copy.payload))

        return answer

    plant.put(StagedReads, "forget", lambda self, fragments: None)
    plant.around(Learner, "_answer", wrapper)


@mutant
def read_not_noted(plant: Plant) -> None:
    """A learner remembers what it handed out until that is merged, or cannot be."""
    plant.put(Adoption, "note_read", lambda self, fragment, at: None)
