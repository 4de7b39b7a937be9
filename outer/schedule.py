"""Which fragment is due at which syncer step (paper section 1: offsets t_p, distinct, in 0..H-1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Fragment p is due at every syncer step t with t mod H = floor(p H / P)."""

    fragments: int  # P
    round_steps: int  # H

    def __post_init__(self) -> None:
        assert 1 <= self.fragments <= self.round_steps, "offsets are distinct only while P <= H"

    def offset(self, fragment: int) -> int:
        """t_p: offsets are spread evenly over the round, so that traffic is too."""
        return fragment * self.round_steps // self.fragments

    def due(self, syncer_step: int) -> int | None:
        """The fragment of this step, or None. At most one: offsets are distinct."""
        phase = syncer_step % self.round_steps
        fragment = -(-phase * self.fragments // self.round_steps)  # the first whose offset is not below the phase
        return fragment if fragment < self.fragments and self.offset(fragment) == phase else None

    def upcoming(self, syncer_step: int, steps: int) -> tuple[int, ...]:
        """Fragments due within the next so many steps, soonest first."""
        due = (self.due(syncer_step + ahead) for ahead in range(1, steps + 1))
        return tuple(dict.fromkeys(fragment for fragment in due if fragment is not None))
