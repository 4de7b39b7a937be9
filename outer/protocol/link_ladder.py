"""Fewer bits for a link whose answers take long; and more again once they do not.

A link stands on one rung of a ladder, a codec. `judge` moves it, and says why. When to ask is the syncer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

AFTER = 3  # answers in a row that do not fit, or do not come, before a link goes down
BACK_AFTER = 6  # answers in a row that would fit one rung further up, before it goes there
EASE = 2.0  # and so many times over


@dataclass(frozen=True)
class Uplinks:
    """The bytes of contributions on the wire.

    `codecs`: the run's, as "", then those with fewer bits that the run's mathematics allows. `sizes`: bytes of each
    fragment, by codec.
    """

    codecs: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]

    def bytes(self, codec: str, fragment: int) -> int:
        """Return the bytes of a contribution."""
        return self.sizes[self.codecs.index(codec)][fragment]

    def mean_bytes(self, codec: str) -> float:
        """Return the mean bytes of a round's contributions."""
        sizes = self.sizes[self.codecs.index(codec)]
        return sum(sizes) / len(sizes)


@dataclass
class LadderPlace:
    """The state of one link."""

    rung: int = 0
    tight: int = 0  # answers in a row that did not fit
    easy: int = 0  # answers in a row that would have fitted one rung further up, with ease
    lost: int = 0  # answers in a row that did not come

    def lose(self, codecs: Sequence[str]) -> str:
        """Another answer did not come, which says nothing of its rate. Returns as `judge` does."""
        self.lost += 1
        if self.lost % AFTER or self.rung == len(codecs) - 1:
            return ""
        self._move(self.rung + 1)
        return f"{self.lost} answers in a row did not come"

    def judge(self, codecs: Sequence[str], expected_s: Callable[[str], float], fit_s: float) -> str:
        """Another answer was seen. Moves the link if it is time; returns why, in words, else ""."""
        self.lost = 0
        if (takes_s := expected_s(codecs[self.rung])) > fit_s:
            self.tight, self.easy = self.tight + 1, 0
            if self.tight < AFTER or self.rung == len(codecs) - 1:
                return ""
            told = f"{self.tight} answers in a row took about {takes_s:.3g} s, {fit_s:.3g} s fit"
            below = range(self.rung + 1, len(codecs))
            self._move(next((rung for rung in below if expected_s(codecs[rung]) <= fit_s), self.rung + 1))
            return told
        self.tight = 0
        would_s = expected_s(codecs[self.rung - 1]) if self.rung else 0.0
        self.easy = self.easy + 1 if self.rung and EASE * would_s <= fit_s else 0
        if self.easy < BACK_AFTER:
            return ""
        told = f"{self.easy} answers in a row would have taken about {would_s:.3g} s, {fit_s:.3g} s fit"
        self._move(self.rung - 1)
        return told

    def _move(self, rung: int) -> None:
        self.rung, self.tight, self.easy = rung, 0, 0
