"""Fewer bits, then a longer H, for a link that carries too little for every round; and back once it carries more.

A link stands on one rung of a ladder. `judge` moves it, and says why. What to ask for on a rung is the syncer's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

AFTER = 3  # answers in a row that do not fit, or do not come, before a link goes down
BACK_AFTER = 6  # answers in a row that would fit one rung further up, before it goes there
EASE = 2.0  # and so many times over
FALLS_MAX = 5  # doublings of that, one each time that it came down from there
AHEAD = 1.5  # an answer that is asked for ahead may take so many times what is expected
FITS = 0.5  # of a round, which an answer that is asked for ahead may be expected to take: the rest is the version's
LONGER = 2, 4, 8  # rounds between two answers of one fragment


class Rung(NamedTuple):
    """How a learner's contributions travel."""

    codec: str = ""  # "": the run's
    every: int = 1  # rounds between two contributions of a fragment


@dataclass(frozen=True)
class Uplinks:
    """The bytes of contributions on the wire.

    `codecs`: the run's, as "", then those with fewer bits that the run's mathematics allows. `sizes`: bytes of each
    fragment, by codec.
    """

    codecs: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]

    def ladder(self) -> tuple[Rung, ...]:
        """From the run's codec and H downwards."""
        return (*map(Rung, self.codecs), *(Rung(self.codecs[-1], every) for every in LONGER))

    def bytes(self, rung: Rung, fragment: int) -> int:
        """Return the bytes of a contribution."""
        return self.sizes[self.codecs.index(rung.codec)][fragment]

    def mean_bytes(self, rung: Rung) -> float:
        """Return the mean bytes of a round's contributions."""
        sizes = self.sizes[self.codecs.index(rung.codec)]
        return sum(sizes) / len(sizes)


@dataclass
class LadderPlace:
    """The state of one link."""

    rung: int = 0
    tight: int = 0  # answers in a row that did not fit
    easy: int = 0  # answers in a row that would have fitted one rung further up, with ease
    lost: int = 0  # answers in a row that did not come
    falls: Counter[int] = field(default_factory=Counter)  # by rung: how often it went down from there
    waiting: int = 0  # answers that were asked for before it did, and do not count

    def lose(self, ladder: Sequence[Rung], under_way: int) -> str:
        """Another answer did not come, which says nothing of its rate. Returns as `judge` does."""
        self.lost, self.waiting = self.lost + 1, max(0, self.waiting - 1)
        if self.lost % AFTER or self.rung == len(ladder) - 1:
            return ""
        self._move(self.rung + 1, under_way)
        return f"{self.lost} answers in a row did not come"

    def starve(self, ladder: Sequence[Rung], under_way: int) -> str:
        """AFTER more versions were out of date than were not when they were adopted. Returns as `judge` does."""
        if self.rung == len(ladder) - 1:
            return ""
        self._move(self.rung + 1, under_way)
        return "versions are out of date when they come"

    def judge(
        self, ladder: Sequence[Rung], expected_s: Callable[[Rung], float], round_s: float, under_way: int
    ) -> str:
        """Another answer was seen. Moves the link if it is time; returns why, in words, else "".

        Answers wait for each other on a link that carries too little: they take longer and longer.
        """
        self.lost = 0
        if self.waiting:
            self.waiting -= 1
            return ""
        here, fit_s = ladder[self.rung], FITS * round_s
        if expected_s(here) > fit_s:
            self.tight, self.easy = self.tight + 1, 0
            if self.tight < AFTER or self.rung == len(ladder) - 1:
                return ""
            told = f"{self.tight} answers in a row took about {expected_s(here):.3g} s, {fit_s:.3g} s fit"
            below = range(self.rung + 1, len(ladder))
            self._move(next((rung for rung in below if expected_s(ladder[rung]) <= fit_s), self.rung + 1), under_way)
            return told
        would_s = expected_s(ladder[self.rung - 1]) if self.rung else math.inf
        self.tight, self.easy = 0, self.easy + 1 if EASE * would_s <= fit_s else 0
        if self.easy < BACK_AFTER << min(self.falls[self.rung - 1], FALLS_MAX):
            return ""
        told = f"{self.easy} answers in a row would have taken about {would_s:.3g} s, {fit_s:.3g} s fit"
        self._move(self.rung - 1, 0)
        return told

    def _move(self, rung: int, waiting: int) -> None:
        self.falls[self.rung] += rung > self.rung
        self.rung, self.tight, self.easy, self.waiting = rung, 0, 0, waiting
