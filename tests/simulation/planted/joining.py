"""Bugs in how a learner comes, goes, and passes from one syncer to the next, and in whose state it starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from learners.protocol.events_effects import Hold
from learners.protocol.held_spans import HeldSpans
from learners.protocol.joining import Joining, PendingTransfers
from learners.protocol.learner import Learner
from outer.protocol.coverage import Mark
from outer.protocol.messages import DRAINING, Grant, Welcome
from tests.simulation.planting import Plant, mutant


@mutant
def donor_before_the_clock(plant: Plant) -> None:
    """A donor answers once it has seen the syncer step that the joiner was told."""

    def wrapper(method: Any) -> Any:
        return lambda self, now, syncer_step: method(self, now, 10**9)

    plant.around(PendingTransfers, "ready", wrapper)


@mutant
def donor_not_finite(plant: Plant) -> None:
    """A donor whose loss is not finite declines."""

    def wrapper(method: Any) -> Any:
        def unfit(self: Learner, request: Any) -> str:
            reason: str = method(self, request)
            return "" if reason == "non_finite" else reason

        return unfit

    plant.around(Learner, "_unfit", wrapper)


@mutant
def joiner_takes_the_donors_bases(plant: Plant) -> None:
    """A joiner contributes a fragment only once that came from the syncer: what it copied holds a donor's steps."""

    def wrapper(method: Any) -> Any:
        def inherit(self: Joining, now: float) -> Any:
            effects = method(self, now)
            if effects:
                for base, version in zip(self._adoption._bases, self._welcome.versions, strict=True):
                    base.version, base.since = version, Mark(0, 0)
                self._adoption._counted = None
            return effects

        return inherit

    plant.around(Joining, "inherit", wrapper)


@mutant
def joins_before_it_is_whole(plant: Plant) -> None:
    """From the syncer's snapshot a learner starts once every fragment is there."""

    def wrapper(method: Any) -> Any:
        def join(self: Learner, now: float) -> None:
            if self._joining.source == "syncer":
                self._joining.source = "peer"
            method(self, now)

        return join

    plant.around(Learner, "_join", wrapper)


@mutant
def donor_failure_ends_the_search(plant: Plant) -> None:
    """After a donor's failure another is sought, or the syncer's snapshot is taken."""

    def wrapper(method: Any) -> Any:
        def miss(self: Joining, now: float, event: Any, syncer_step: int) -> Any:
            return method(self, now, event, syncer_step)[:1] if event.donor else method(self, now, event, syncer_step)

        return miss

    plant.around(Joining, "miss", wrapper)


# ---------------------------------------------------------------- from one epoch to the next


@mutant
def does_not_reattach(plant: Plant) -> None:
    """A learner attaches to the next epoch."""

    def wrapper(method: Any) -> Any:
        def attach(self: Learner) -> None:
            if self._epoch is None:
                method(self)

        return attach

    plant.around(Learner, "_attach", wrapper)


@mutant
def older_welcome_taken(plant: Plant) -> None:
    """A learner belongs to the newest epoch that has welcomed it."""

    def wrapper(method: Any) -> Any:
        def on_welcome(self: Learner, now: float, event: Welcome) -> None:
            if self._epoch is not None and event.epoch < self._epoch:
                self._epoch = event.epoch - 1
            method(self, now, event)

        return on_welcome

    plant.around(Learner, "_on_welcome", wrapper)


@mutant
def spans_forgotten_at_reattach(plant: Plant) -> None:
    """What was lent to a learner stays its own when the syncer changes, and is stepped on once."""

    def wrapper(method: Any) -> Any:
        def on_welcome(self: Learner, now: float, event: Welcome) -> None:
            if self._epoch is not None and event.epoch > self._epoch and not self._pipeline.busy:
                self._spans = HeldSpans(self._spans._batch_size, self._spans._span_samples // self._spans._batch_size)
            method(self, now, event)

        return on_welcome

    plant.around(Learner, "_on_welcome", wrapper)


@mutant
def bases_forgotten_at_reattach(plant: Plant) -> None:
    """Bases stay when the syncer changes: what accrued on them still counts."""

    def wrapper(method: Any) -> Any:
        def on_welcome(self: Learner, now: float, event: Welcome) -> None:
            if self._epoch is not None and event.epoch > self._epoch:
                for base, version in zip(self._adoption._bases, event.versions, strict=True):
                    base.version = version
                self._adoption._counted = None
            method(self, now, event)

        return on_welcome

    plant.around(Learner, "_on_welcome", wrapper)


# ---------------------------------------------------------------- stepping, waiting, leaving


@mutant
def steps_while_draining(plant: Plant) -> None:
    """Who leaves steps no more."""

    def wrapper(method: Any) -> Any:
        def obstacle(self: Learner) -> str:
            if self.phase == DRAINING:
                return "drain" if self._spans.empty else ""
            return method(self)

        return obstacle

    plant.around(Learner, "_obstacle", wrapper)


@mutant
def stop_ignored(plant: Plant) -> None:
    """A learner that is told to stop ends its loop."""
    plant.put(Learner, "_on_stop", lambda self, now, event: None)


@mutant
def hold_without_end(plant: Plant) -> None:
    """A loop that waits looks up now and then, and renews its lease."""

    def wrapper(method: Any) -> Any:
        def handle(self: Learner, now: float, event: Any) -> Any:
            effects = method(self, now, event)
            return [replace(each, seconds=1e9) if isinstance(each, Hold) else each for each in effects]

        return handle

    plant.around(Learner, "handle", wrapper)


@mutant
def silent_while_it_waits(plant: Plant) -> None:
    """A loop that waits reports twice a second, and so keeps its lease."""

    def wrapper(method: Any) -> Any:
        def hold(self: Learner, now: float, reason: str) -> None:
            with patch.object(self, "_report", lambda now: None):
                method(self, now, reason)

        return hold

    plant.around(Learner, "_hold", wrapper)


@mutant
def doubled_grant_used_twice(plant: Plant) -> None:
    """A grant that comes twice is taken once."""

    def add(self: HeldSpans, grant: Grant) -> None:
        self.newest = max(self.newest, grant.span)
        self._queue.append(grant)

    plant.put(HeldSpans, "add", add)


@mutant
def next_span_from_its_middle(plant: Plant) -> None:
    """A span is used from its first sample to its last."""

    def use(self: HeldSpans) -> None:
        self._used += self._batch_size
        if self.start + self._batch_size > self._queue[0].stop:
            self._queue.popleft()
            self._used = self._used % self._batch_size + self._batch_size  # of the step that ends

    plant.put(HeldSpans, "use", use)
