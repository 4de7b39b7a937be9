"""Which fragment is due at which syncer step, and when the run ends.

Fragments have distinct offsets t_p in 0..H-1 (paper section 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Schedule:
    """Fragment p is due at every syncer step t with t mod H = floor(p H / P)."""

    fragments: int  # P
    round_steps: int  # H

    def __post_init__(self) -> None:
        assert 1 <= self.fragments <= self.round_steps, "offsets are distinct only while P <= H"

    @cached_property
    def _table(self) -> tuple[int | None, ...]:
        """The fragment due at each phase of the round."""
        by_offset = {self.offset(fragment): fragment for fragment in range(self.fragments)}
        return tuple(by_offset.get(phase) for phase in range(self.round_steps))

    def offset(self, fragment: int) -> int:
        """t_p of a fragment. Offsets are spread evenly over the round, and so is the traffic."""
        return fragment * self.round_steps // self.fragments

    @property
    def gap(self) -> int:
        """The largest number of steps between two fragments that are due one after the other."""
        return -(-self.round_steps // self.fragments)

    def due(self, syncer_step: int) -> int | None:
        """The fragment due at this syncer step, or None."""
        return self._table[syncer_step % self.round_steps]

    def upcoming(self, syncer_step: int, steps: int) -> tuple[int, ...]:
        """The fragments due within the next `steps` syncer steps, soonest first."""
        due = (self._table[(syncer_step + ahead) % self.round_steps] for ahead in range(1, steps + 1))
        return tuple(dict.fromkeys(fragment for fragment in due if fragment is not None))


@dataclass(frozen=True)
class Budget:
    """When the run ends: after a number of committed tokens, a number of syncer steps, or whichever comes first."""

    tokens: int | None
    syncer_steps: int | None

    def progress(self, tokens: int, syncer_step: int) -> float:
        """The committed share of the budget, 0 to 1. Tokens decide where both limits are set."""
        if self.tokens is not None:
            return min(1.0, tokens / self.tokens)
        assert self.syncer_steps is not None
        return min(1.0, syncer_step / self.syncer_steps)

    def reached(self, tokens: int, syncer_step: int) -> str:
        """Why the run is over; empty while it is not."""
        if self.tokens is not None and tokens >= self.tokens:
            return f"{tokens:,} tokens are committed"
        if self.syncer_steps is not None and syncer_step >= self.syncer_steps:
            return f"syncer step {syncer_step} is reached"
        return ""
