"""How long answers over one learner's link take: a latency, and time for each byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

NEWEST = 0.25  # weight of the newest answer
APART = 0.01  # squared spread of the sizes, relative to their mean, from which latency and rate can be told apart
ANOTHER = 2.0  # an answer this many times slower, or faster, than expected is of another link than before
WINDOW = 4.0  # transfers at a time over a link of which nothing is known, and beyond those that there are
QUEUE, OF_LEAST = 0.05, 0.5  # of a round, of the shortest transfer: the longer of them a transfer may wait for others
ANOTHER_AFTER = 2  # so many in a row, and what is known of the one before is forgotten


@dataclass
class LinkEstimate:
    """A line through the newest answers, bytes against seconds, by least squares with falling weights.

    As long as all answers have one size, all their time is that of their bytes.
    """

    count: int = 0
    size: float = 0.0  # mean, bytes
    seconds: float = 0.0  # mean
    spread: float = 0.0  # mean squared deviation of the sizes
    along: float = 0.0  # mean product of both deviations
    strange: int = 0  # answers in a row far above what was expected; far below: negative

    def note(self, size: int, seconds: float) -> None:
        """An answer of `size` bytes took so long, without what the learner says that it waited itself."""
        if self.count:
            expected = self.expected_s(size)
            far = (seconds > ANOTHER * expected) - (seconds * ANOTHER < expected)
            self.strange = self.strange + far if far and far * self.strange >= 0 else far
            if abs(self.strange) >= ANOTHER_AFTER:
                self.count = self.strange = 0
        self.count += 1
        if self.count == 1:
            self.size, self.seconds, self.spread, self.along = float(size), seconds, 0.0, 0.0
            return
        weight = max(NEWEST, 1.0 / self.count)
        by_size, by_time = size - self.size, seconds - self.seconds
        self.size += weight * by_size
        self.seconds += weight * by_time
        self.spread = (1.0 - weight) * (self.spread + weight * by_size * by_size)
        self.along = (1.0 - weight) * (self.along + weight * by_size * by_time)

    @property
    def known(self) -> bool:
        """Whether any answer was seen."""
        return self.count > 0

    @property
    def byte_s(self) -> float:
        """Seconds a byte."""
        if not self.size:
            return 0.0
        whole = self.seconds / self.size
        if self.spread < APART * self.size * self.size:
            return whole
        return min(max(0.0, self.along / self.spread), whole)

    @property
    def latency_s(self) -> float:
        """Seconds of an answer without bytes."""
        return max(0.0, self.seconds - self.byte_s * self.size)

    def expected_s(self, size: float) -> float:
        """Seconds that an answer of `size` bytes should take; 0 while nothing is known."""
        return self.seconds + self.byte_s * (size - self.size)


@dataclass
class LinkWindow:
    """How many transfers of about one size a link should carry at a time, by their queueing delay (LEDBAT, RFC 6817).

    What a transfer takes beyond the shortest is the wait for others: the longer, the fewer steps are in an answer.
    """

    size: float = WINDOW
    least_s: float = math.inf  # that a transfer took

    def note(self, seconds: float | None, beside: int, round_s: float) -> None:
        """A transfer took so long, None: it crossed no link; as it began so many others were under way."""
        if round_s > 0.0:  # else it is not known yet
            queued = 0.0  # in units of what it may be
            if seconds is not None:
                weight = 0.0 if beside else NEWEST  # alone on the link, which may be another one than before
                self.least_s = min(seconds, self.least_s * (1.0 - weight) + seconds * weight)
                queued = (seconds - self.least_s) / max(QUEUE * round_s, OF_LEAST * self.least_s)
            size = self.size + max(-1.0, 1.0 - queued) / self.size
            self.size = max(1.0, min(size, max(self.size, beside + WINDOW)))
