"""Keeps a learner's numbered facts until they are durable in the log. They travel with its messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

FACTS_MAX = 2**17  # kept at most; then the oldest go
ANSWER_MAX = 4096  # in one message at most
RESEND_S = 2.0  # without an acknowledgement, until facts are sent again

Numbered = tuple[int, float, Any]  # sequence number, wall time, fact

APART_S = 0.01  # most seconds between two clocks that are read together
READS_MOST = 100


def read_clocks(
    monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
) -> tuple[float, float]:
    """The monotonic and the wall clock, in seconds, of one moment: read again when the process was frozen in between,
    which would look like a jump of the wall clock.
    """
    now, at, reads = monotonic(), wall(), 1
    while (read := monotonic()) - now > APART_S and reads <= READS_MOST:
        now, at, reads = read, wall(), reads + 1
    return now, at


class FactBuffer:
    """Sends each fact once, and again only when acknowledgements stop coming or after `rewind`. Any thread may call."""

    carried_max = ANSWER_MAX  # facts of an answer

    def __init__(
        self,
        clock: Callable[[], float],
        first: int = 0,
        limit: int = FACTS_MAX,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: the wall time of facts. `first`: the first fact's number. `limit`: facts kept at most."""
        self._clock, self._monotonic, self._limit = clock, monotonic, limit
        self._next = first
        self._sent: deque[Numbered] = deque()  # not acknowledged
        self._waiting: deque[Numbered] = deque()  # not sent, or to be sent again
        self._moved_at = 0.0  # monotonic: the newest acknowledgement, or the first fact sent after all had theirs
        self._lock = threading.Lock()

    @property
    def recorded(self) -> int | None:
        """The number of facts so far, if all are durable; None while some are not."""
        with self._lock:
            return None if self._sent or self._waiting else self._next

    @property
    def following(self) -> int:
        """The next fact's number."""
        return self._next

    @property
    def oldest(self) -> int:
        """The oldest number still held; of the next fact if none is."""
        with self._lock:
            held = self._sent or self._waiting
            return held[0][0] if held else self._next

    @property
    def behind(self) -> bool:
        """Whether one message could not carry all facts that are not durable."""
        with self._lock:
            return len(self._sent) + len(self._waiting) > self.carried_max

    def add(self, fact: Any, at: float | None = None) -> None:
        """`at`: its wall time, in seconds; by default that of the buffer's clock now."""
        with self._lock:
            self._waiting.append((self._next, self._clock() if at is None else at, fact))
            self._next += 1
            if len(self._sent) + len(self._waiting) > self._limit:
                (self._sent or self._waiting).popleft()

    def pending(self, limit: int = ANSWER_MAX) -> list[Numbered]:
        """The next facts to send, at most `limit`."""
        with self._lock:
            now = self._monotonic()
            if not self._sent:
                self._moved_at = now
            elif now - self._moved_at >= RESEND_S:
                self._rewind(now)
            return self._send(limit)

    def everything(self) -> list[Numbered] | None:
        """All facts that are not durable, for an answer; None when they are too many: their upload comes first."""
        with self._lock:
            if len(self._sent) + len(self._waiting) > self.carried_max:
                return None
            if not self._sent:
                self._moved_at = self._monotonic()
            self._send(self.carried_max)
            return list(self._sent)

    def rewind(self) -> None:
        """Send again all that is not acknowledged: a new epoch of the syncer may not have it."""
        with self._lock:
            self._rewind(self._monotonic())

    def acknowledge(self, sequence: int) -> None:
        """The facts up to and including this number are durable."""
        with self._lock:
            moved = False
            for facts in (self._sent, self._waiting):  # an answer to what was sent before `rewind` may come after it
                while facts and facts[0][0] <= sequence:
                    facts.popleft()
                    moved = True
            if moved:
                self._moved_at = self._monotonic()

    def _send(self, limit: int) -> list[Numbered]:
        if len(self._waiting) <= limit:
            sending = [*self._waiting]
            self._waiting.clear()
        else:
            sending = [self._waiting.popleft() for _ in range(limit)]
        self._sent.extend(sending)
        return sending

    def _rewind(self, now: float) -> None:
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._moved_at = now
