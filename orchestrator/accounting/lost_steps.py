"""Steps of one incarnation whose facts were lost: their number and tokens, as what is known tells them.

Steps missing between two known ones count with the tokens of the next known one. A contribution that covers lost steps
says their tokens: what it counts beyond the known steps in its range. From then on they are committed, with that
number; otherwise they stay unknown for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from orchestrator.eventlog.block import NONE, Ints


class Retired(NamedTuple):
    """Tokens of lost steps that no contribution can cover any more."""

    committed: int
    unknown: int
    fragments: list[int]  # committed, by fragment


@dataclass
class LostSteps:
    step: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # ascending
    tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    fragments: list[set[int]] = field(default_factory=list)  # by step, those it was committed through
    after: int = NONE  # steps after this one are missing, and the next known step tells how many; NONE: none are

    def lose(self, newest: int) -> None:
        """Facts were lost after this step."""
        if self.after == NONE:
            self.after = max(newest, int(self.step.max(initial=0)), 0)

    def resume(self, step: int, tokens: int) -> None:
        """The next known step after a loss."""
        self._add(self.after, step - 1, tokens)
        self.after = NONE

    def cover(self, base_step: int, step: int, fragment: int, tokens: int, known: int) -> int:
        """A contribution of so many tokens, of which `known` are of known steps in its range, merged.

        Returns the tokens of lost steps that no contribution had covered before.
        """
        if self.after != NONE and step > self.after:
            self._add(self.after, step, 0)
            self.after = step
        inside = np.flatnonzero((self.step > base_step) & (self.step <= step)).tolist()
        fresh = [row for row in inside if not self.fragments[row]]
        for row in inside:
            self.fragments[row].add(fragment)
        if not fresh:
            return 0
        counted = max(0, tokens - known - int(self.tokens[[row for row in inside if row not in fresh]].sum()))
        each, rest = divmod(counted, len(fresh))
        self.tokens[fresh] = each
        self.tokens[fresh[:rest]] += 1
        return counted

    def retire(self, upto: int, fragments: int) -> Retired:
        """Forget the steps up to this one."""
        gone = int(np.searchsorted(self.step, upto, "right"))
        total = self._sums(gone, fragments)
        self.step, self.tokens, self.fragments = self.step[gone:], self.tokens[gone:], self.fragments[gone:]
        return total

    def sums(self, fragments: int) -> Retired:
        return self._sums(len(self.step), fragments)

    @property
    def empty(self) -> bool:
        return not len(self.step) and self.after == NONE

    def _add(self, after: int, upto: int, tokens: int) -> None:
        steps = np.arange(max(after, int(self.step.max(initial=0))) + 1, upto + 1)
        self.step = np.concatenate([self.step, steps])
        self.tokens = np.concatenate([self.tokens, np.full(len(steps), tokens)])
        self.fragments += [set() for _ in steps]

    def _sums(self, rows: int, fragments: int) -> Retired:
        tokens, through = self.tokens[:rows].tolist(), self.fragments[:rows]
        committed = sum(count for count, where in zip(tokens, through, strict=True) if where)
        apart = [sum(n for n, where in zip(tokens, through, strict=True) if p in where) for p in range(fragments)]
        return Retired(committed, sum(tokens) - committed, apart)
