"""Fewer bits, then a longer H, for a link over which answers do not fit in tau steps; and back once they do.

A link stands on one rung of a ladder. `judge` moves it, and says why. What to ask for on a rung is the syncer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

AFTER = 3  # answers in a row that do not fit, or do not come, before a link goes down
BACK_AFTER = 6  # answers in a row that would fit one rung further up, before it goes there
EASE = 2.0  # and so many times over
AHEAD = 1.5  # an answer that is asked for ahead may take so many times what is expected
LOAD = 0.8  # of the time that there is, which answers may be expected to take
LONGEST_H = 8  # rounds between two answers of one fragment, without a base window


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

    def ladder(self, base_window: int) -> tuple[Rung, ...]:
        """From the run's codec and H downwards. With a base window a contribution covers all rounds since the last."""
        longest = base_window + 1 if base_window else LONGEST_H
        every, rungs = 2, [Rung(codec) for codec in self.codecs]
        while every <= longest:
            rungs.append(Rung(self.codecs[-1], every))
            every *= 2
        return tuple(rungs)

    def bytes(self, rung: Rung, fragment: int) -> int:
        """Return the bytes of a contribution."""
        return self.sizes[self.codecs.index(rung.codec)][fragment]

    def mean_bytes(self, rung: Rung) -> float:
        """Return the mean bytes of a round's contributions."""
        sizes = self.sizes[self.codecs.index(rung.codec)]
        return sum(sizes) / len(sizes)


class Clock(NamedTuple):
    """The time in which answers have to arrive."""

    room_s: float  # what quorum, grace and merge leave of tau steps
    round_s: float  # H steps
    fragments: int  # P

    def fits(self, rung: Rung, expected_s: float) -> bool:
        """Whether answers of so many seconds do: in tau steps, or, asked for ahead, in less than a round of the link's.

        Then they have a round each, and all of them together most of the rounds between.
        """
        return expected_s <= self.longest_s(rung)

    def longest_s(self, rung: Rung) -> float:
        """Return how long an answer may take."""
        if rung.every == 1:
            return LOAD * self.room_s
        return min(self.round_s / AHEAD, LOAD * rung.every * self.round_s / self.fragments)


@dataclass
class LadderPlace:
    """The state of one link."""

    rung: int = 0
    tight: int = 0  # answers in a row that did not fit
    easy: int = 0  # answers in a row that would have fitted one rung further up, with ease
    lost: int = 0  # answers in a row that did not come

    def lose(self, ladder: Sequence[Rung]) -> str:
        """Another answer did not come, which says nothing of its rate. Returns as `judge` does."""
        self.lost += 1
        if self.lost % AFTER or self.rung == len(ladder) - 1:
            return ""
        self._move(self.rung + 1)
        return f"{self.lost} answers in a row did not come"

    def judge(self, ladder: Sequence[Rung], expected_s: Callable[[Rung], float], clock: Clock) -> str:
        """Another answer was seen. Moves the link if it is time; returns why, in words, else ""."""
        self.lost = 0
        here = ladder[self.rung]
        if not clock.fits(here, expected_s(here)):
            self.tight, self.easy = self.tight + 1, 0
            if self.tight < AFTER or self.rung == len(ladder) - 1:
                return ""
            told = (
                f"{self.tight} answers in a row took about {expected_s(here):.3g} s, {clock.longest_s(here):.3g} s fit"
            )
            below = range(self.rung + 1, len(ladder))
            fitting = (rung for rung in below if clock.fits(ladder[rung], expected_s(ladder[rung])))
            self._move(next(fitting, self.rung + 1))
            return told
        above = ladder[self.rung - 1] if self.rung else None
        if above is None or not clock.fits(above, EASE * expected_s(above)):
            self.tight = self.easy = 0
            return ""
        self.tight, self.easy = 0, self.easy + 1
        if self.easy < BACK_AFTER:
            return ""
        would_s, fit_s = expected_s(above), clock.longest_s(above)
        told = f"{self.easy} answers in a row would have taken about {would_s:.3g} s, {fit_s:.3g} s fit"
        self._move(self.rung - 1)
        return told

    def _move(self, rung: int) -> None:
        self.rung, self.tight, self.easy = rung, 0, 0
