"""Bugs in how a learner comes, goes, and passes from one syncer to the next, and in whose state it starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from learners.protocol.events_effects import Hold
from learners.protocol.held_spans import HeldSpans
from learners.protocol.joining import Joining
from learners.protocol.learner import Learner
from outer.protocol.coverage import Mark
from outer.protocol.messages import DRAINING, Grant, Welcome
from tests.simulation.planting import around, instead


@around(Joining, "inherit")
def joiner_takes_the_donors_bases(method: Any, self: Joining, now: float) -> Any:
    """A joiner contributes a fragment only once that came from the syncer: what it copied holds a donor's steps."""
    effects = method(self, now)
    if effects:
        for base, version in zip(self._adoption._bases, self._welcome.versions, strict=True):
            base.version, base.since = version, Mark(0, 0)
        self._adoption._counted = None
    return effects


@around(Learner, "_join")
def joins_before_it_is_whole(method: Any, self: Learner, now: float) -> None:
    """From the syncer's snapshot a learner starts once every fragment is there."""
    if self._joining.source == "syncer":
        self._joining.source = "peer"
    method(self, now)


# ---------------------------------------------------------------- from one epoch to the next


@around(Learner, "_attach")
def does_not_reattach(method: Any, self: Learner) -> None:
    """A learner attaches to the next epoch."""
    if self._epoch is None:
        method(self)


@around(Learner, "_on_welcome")
def older_welcome_taken(method: Any, self: Learner, now: float, event: Welcome) -> None:
    """A learner belongs to the newest epoch that has welcomed it."""
    if self._epoch is not None and event.epoch < self._epoch:
        self._epoch = event.epoch - 1
    method(self, now, event)


@around(Learner, "_on_welcome")
def spans_forgotten_at_reattach(method: Any, self: Learner, now: float, event: Welcome) -> None:
    """What was lent to a learner stays its own when the syncer changes, and is stepped on once."""
    if self._epoch is not None and event.epoch > self._epoch and not self._pipeline.busy:
        self._spans = HeldSpans(self._spans._batch_size, self._spans._span_samples // self._spans._batch_size)
    method(self, now, event)


@around(Learner, "_on_welcome")
def bases_forgotten_at_reattach(method: Any, self: Learner, now: float, event: Welcome) -> None:
    """Bases stay when the syncer changes: what accrued on them still counts."""
    if self._epoch is not None and event.epoch > self._epoch:
        for base, version in zip(self._adoption._bases, event.versions, strict=True):
            base.version = version
        self._adoption._counted = None
    method(self, now, event)


# ---------------------------------------------------------------- stepping, waiting, leaving


@around(Learner, "_obstacle")
def steps_while_draining(method: Any, self: Learner) -> str:
    """Who leaves steps no more."""
    if self.phase == DRAINING:
        return "drain" if self._spans.empty else ""
    return method(self)


@instead(Learner, "_on_stop")
def stop_ignored(self: Learner, now: float, event: Any) -> None:
    """A learner that is told to stop ends its loop."""


@around(Learner, "handle")
def hold_without_end(method: Any, self: Learner, now: float, event: Any) -> Any:
    """A loop that waits looks up now and then, and renews its lease."""
    effects = method(self, now, event)
    return [replace(each, seconds=1e9) if isinstance(each, Hold) else each for each in effects]


@around(Learner, "_hold")
def silent_while_it_waits(method: Any, self: Learner, now: float, reason: str) -> None:
    """A loop that waits reports twice a second, and so keeps its lease."""
    with patch.object(self, "_report", lambda now: None):
        method(self, now, reason)


@instead(HeldSpans, "add")
def doubled_grant_used_twice(self: HeldSpans, grant: Grant) -> None:
    """A grant that comes twice is taken once."""
    self.newest = max(self.newest, grant.span)
    self._queue.append(grant)


@instead(HeldSpans, "use")
def next_span_from_its_middle(self: HeldSpans) -> None:
    """A span is used from its first sample to its last."""
    self._used += self._batch_size
    if self.start + self._batch_size > self._queue[0].stop:
        self._queue.popleft()
        self._used = self._used % self._batch_size + self._batch_size  # of the step that ends
