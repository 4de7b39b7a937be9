"""The samples that are lent to one incarnation and not yet used. Knows nothing of who lends them, or why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from outer.protocol.messages import Grant


class HeldSpans:
    """Grants in the order in which they are used up; a rest too small for a batch is left."""

    def __init__(self, batch_size: int, span_steps: int) -> None:
        self.newest = -1
        self._batch_size, self._span_samples = batch_size, span_steps * batch_size
        self._queue: deque[Grant] = deque()
        self._used = 0  # samples of the first span that are used

    def low(self, ahead_steps: float) -> bool:
        """Whether half a span or less is left, or no more than so many steps' worth."""
        held = sum(grant.stop - grant.start for grant in self._queue) - self._used
        return held <= max(self._span_samples // 2, ahead_steps * self._batch_size)

    @property
    def empty(self) -> bool:
        return not self._queue

    @property
    def current(self) -> int:
        """The span that the next batch is of."""
        return self._queue[0].span

    @property
    def start(self) -> int:
        """The next batch's first sample."""
        return self._queue[0].start + self._used

    def state(self) -> tuple[list[tuple[int, int, int]], int]:
        """((span, start, stop) in the order in which they are used up, samples used of the first)."""
        return [(grant.span, grant.start, grant.stop) for grant in self._queue], self._used

    def restore(self, newest: int, spans: Iterable[tuple[int, int, int]], used: int) -> None:
        """As `state` told."""
        self.newest, self._used = newest, used
        self._queue.extend(Grant(0, 0, *span) for span in spans)

    def add(self, grant: Grant) -> None:
        """Take a grant, unless it has come before."""
        if grant.span > self.newest:
            self.newest = grant.span
            self._queue.append(grant)

    def use(self) -> None:
        """A batch was stepped on."""
        self._used += self._batch_size
        if self.start + self._batch_size > self._queue[0].stop:
            self._queue.popleft()
            self._used = 0
