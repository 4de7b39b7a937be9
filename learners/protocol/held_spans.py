"""The samples that the syncer has lent to this incarnation and that it has not used yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from outer.protocol.messages import Grant


class HeldSpans:
    """Grants in the order of use. A rest that is too small for a batch is skipped."""

    def __init__(self, batch_size: int, span_steps: int) -> None:
        self.newest = -1
        self._batch_size, self._span_samples = batch_size, span_steps * batch_size
        self._queue: deque[Grant] = deque()
        self._used = 0  # used samples of the first span

    def low(self, ahead_steps: float) -> bool:
        """Whether to ask for more: half a span or less is left, or at most `ahead_steps` steps' worth."""
        held = sum(grant.stop - grant.start for grant in self._queue) - self._used
        return held <= max(self._span_samples // 2, ahead_steps * self._batch_size)

    @property
    def empty(self) -> bool:
        return not self._queue

    @property
    def current(self) -> int:
        """The span of the next batch."""
        return self._queue[0].span

    @property
    def start(self) -> int:
        """The next batch's first sample."""
        return self._queue[0].start + self._used

    def ahead(self, count: int) -> tuple[int, ...]:
        """The first samples of the next `count` batches, as far as they are lent."""
        starts: list[int] = []
        used = self._used
        for grant in self._queue:
            starts += range(grant.start + used, grant.stop - self._batch_size + 1, self._batch_size)[
                : count - len(starts)
            ]
            used = 0
            if len(starts) == count:
                break
        return tuple(starts)

    def state(self) -> tuple[list[tuple[int, int, int]], int]:
        """((span, start, stop) in the order of use, used samples of the first span)."""
        return [(grant.span, grant.start, grant.stop) for grant in self._queue], self._used

    def restore(self, newest: int, spans: Iterable[tuple[int, int, int]], used: int) -> None:
        """Restore what `state` returned."""
        self.newest, self._used = newest, used
        self._queue.extend(Grant(0, 0, *span) for span in spans)

    def add(self, grant: Grant) -> None:
        """Add a grant, unless it is a duplicate."""
        if grant.span > self.newest:
            self.newest = grant.span
            self._queue.append(grant)

    def use(self) -> None:
        """Count one batch as used."""
        self._used += self._batch_size
        if self.start + self._batch_size > self._queue[0].stop:
            self._queue.popleft()
            self._used = 0
