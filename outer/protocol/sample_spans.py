"""Lends samples to learners in spans of one endless, deterministic order, and takes back what they did not use."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

SPAN_STEPS_MAX = 1_000_000  # steps' worth of samples in one span
RETURNED_MAX = 1024  # ranges in the pool
SUSPECTS_MAX = 256  # batches that one incarnation ended on
LENT_MAX = 256  # spans of one loan that no commit has reached


def span_size(span_steps: int, ahead_s: float, step_s: float) -> int:
    """Steps' worth of samples to lend at a time. `step_s`: the learner's average step; 0 while it is not known.

    A learner asks when it holds samples for less than `ahead_s`, so it holds them for 1.5 times that at most.
    """
    ahead = min(ahead_s / (2.0 * step_s), SPAN_STEPS_MAX) if step_s > 0.0 else 0.0
    return max(span_steps, math.ceil(ahead))


@dataclass(frozen=True)
class Span:
    """Samples [start, stop), lent to one incarnation."""

    identifier: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        return self.stop - self.start


@dataclass
class _Borrower:
    finished: int = 0  # samples of the spans that were trimmed, most of them as fully committed
    lent: int = 0  # samples of all spans
    spans: deque[Span] = field(default_factory=deque)

    def add(self, span: Span) -> None:
        """Add a span. Of too many the oldest is dropped: it never returns to the pool."""
        self.spans.append(span)
        self.lent += span.samples
        if len(self.spans) > LENT_MAX:
            self.finished += self.spans.popleft().samples


@dataclass(frozen=True)
class Borrowed:
    """The spans that one incarnation has on loan, as plain values for the journal."""

    learner: str
    incarnation: int
    finished: int
    spans: list[tuple[int, int, int]]  # (identifier, start, stop)


class SpanPool:
    """All loans of a run. Returned ranges are lent again before new samples."""

    def __init__(self) -> None:
        self._next_sample = 0
        self._next_identifier = 0
        self._returned: list[tuple[int, int]] = []  # (start, stop)
        self._borrowers: dict[tuple[str, int], _Borrower] = {}

    @classmethod
    def of(
        cls, next_sample: int, next_identifier: int, returned: Iterable[tuple[int, int]], borrowed: Iterable[Borrowed]
    ) -> SpanPool:
        """Rebuild a pool from the values that `state` returned."""
        pool = cls()
        pool._next_sample, pool._next_identifier = next_sample, next_identifier
        pool._returned = list(returned)
        for each in borrowed:
            spans = deque(Span(*span) for span in each.spans)
            loan = _Borrower(each.finished, each.finished + sum(span.samples for span in spans), spans)
            pool._borrowers[each.learner, each.incarnation] = loan
        return pool

    def state(self) -> tuple[int, int, list[tuple[int, int]], list[Borrowed]]:
        """(next sample, next identifier, returned ranges, loans), as `of` takes them."""
        borrowed = [
            Borrowed(*key, loan.finished, [(span.identifier, span.start, span.stop) for span in loan.spans])
            for key, loan in self._borrowers.items()
        ]
        return self._next_sample, self._next_identifier, list(self._returned), borrowed

    def grant(self, learner: str, incarnation: int, samples: int, batch_size: int) -> Span:
        """Lend up to `samples` samples: a whole number of batches, at least one."""
        assert samples % batch_size == 0 and samples > 0
        start, stop = self._next_range(samples, batch_size)
        span = Span(self._next_identifier, start, stop)
        self._next_identifier += 1
        self._borrowers.setdefault((learner, incarnation), _Borrower()).add(span)
        return span

    def lent(self, learner: str, incarnation: int) -> int:
        """How many samples this incarnation was ever lent."""
        borrower = self._borrowers.get((learner, incarnation))
        return borrower.lent if borrower else 0

    def newest(self, learner: str, incarnation: int) -> Span | None:
        borrower = self._borrowers.get((learner, incarnation))
        return borrower.spans[-1] if borrower and borrower.spans else None

    def trim(self, learner: str, incarnation: int, committed: int) -> None:
        """Forget the spans that lie within the first `committed` samples of this loan, except the newest span."""
        borrower = self._borrowers.get((learner, incarnation))
        if borrower is None:
            return
        while len(borrower.spans) > 1 and borrower.finished + borrower.spans[0].samples <= committed:
            borrower.finished += borrower.spans.popleft().samples

    def part(self, learner: str, incarnation: int, used: int, samples: int) -> tuple[int, int] | None:
        """The samples [start, stop) that follow the first `used` of a loan: at most so many, of one span."""
        borrower = self._borrowers.get((learner, incarnation), _Borrower())
        used -= borrower.finished
        for span in borrower.spans:
            if 0 <= used < span.samples:
                return span.start + used, min(span.start + used + samples, span.stop)
            used -= span.samples
        return None

    def release(
        self, learner: str, incarnation: int, committed: int, aside: tuple[int, int] = (0, 0)
    ) -> list[tuple[Span, bool]]:
        """End a loan. Everything after its first `committed` samples returns to the pool, but for those set aside.

        Returns those ranges, of each span the last one first, and whether each returned.
        """
        borrower = self._borrowers.pop((learner, incarnation), None)
        if borrower is None:
            return []
        used = committed - borrower.finished
        back = []
        for span in borrower.spans:
            start = span.start + min(max(used, 0), span.samples)
            used -= span.samples
            begin, end = (min(max(place, start), span.stop) for place in aside)
            for first, last, returns in ((end, span.stop, True), (begin, end, False), (start, begin, True)):
                if first < last:
                    back.append((Span(span.identifier, first, last), returns))
                    if returns:
                        self._add_returned(first, last)
        return back

    def _add_returned(self, start: int, stop: int) -> None:
        """Return a range; adjacent ranges merge, because a batch may need samples of both.

        Rests that are too small for anybody's batch stay until a neighbour returns. Of too many ranges the smallest
        goes, and its samples are not lent again.
        """
        for other in [each for each in self._returned if each[0] == stop or each[1] == start]:
            self._returned.remove(other)
            start, stop = min(start, other[0]), max(stop, other[1])
        self._returned.append((start, stop))
        if len(self._returned) > RETURNED_MAX:
            self._returned.remove(min(self._returned, key=lambda each: (each[1] - each[0], each)))

    def replay_grant(self, learner: str, incarnation: int, span: Span) -> None:
        """Replay a grant that an earlier epoch made."""
        if (source := next((each for each in self._returned if each[0] == span.start), None)) is not None:
            self._remove_returned(source, span.stop)
        self._next_sample = max(self._next_sample, span.stop)
        self._next_identifier = max(self._next_identifier, span.identifier + 1)
        self._borrowers.setdefault((learner, incarnation), _Borrower()).add(span)

    def replay_return(self, learner: str, incarnation: int, back: Span, returns: bool) -> None:
        """Replay one of the ranges of `release`: the borrower keeps the part of the span before it."""
        borrower = self._borrowers[learner, incarnation]
        remaining = (
            Span(s.identifier, s.start, back.start) if s.identifier == back.identifier else s for s in borrower.spans
        )
        borrower.spans = deque(remaining)
        if returns:
            self._add_returned(back.start, back.stop)

    def forget(self, learner: str) -> None:
        """Nothing that this learner's incarnations have borrowed comes back any more."""
        for key in [key for key in self._borrowers if key[0] == learner]:
            del self._borrowers[key]

    def _next_range(self, samples: int, batch_size: int) -> tuple[int, int]:
        for start, stop in sorted(self._returned):
            usable = (stop - start) // batch_size * batch_size
            if usable:
                taken = start + min(usable, samples)
                self._remove_returned((start, stop), taken)
                return start, taken
        start = self._next_sample
        self._next_sample += samples
        return start, self._next_sample

    def _remove_returned(self, source: tuple[int, int], taken: int) -> None:
        """Lend the part of a returned range before `taken`."""
        self._returned.remove(source)
        if taken < source[1]:
            self._returned.append((taken, source[1]))
