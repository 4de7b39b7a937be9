"""The result of a check: passed, violated, unknown or not exercised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "violated", "unknown", "idle"]  # idle: not exercised
NOT_FAILED = frozenset({"pass", "idle"})


@dataclass(frozen=True)
class Verdict:
    """One check's result on one log.

    `unknown`: the log lacks the evidence; that is never a pass. `idle`: the log shows that the case which the check is
    about did not occur, for example that nobody was refused; that is neither a pass nor a failure.
    """

    name: str
    claim: str  # what must hold
    status: Status
    reason: str

    @property
    def stands(self) -> bool:
        """Whether a run with this verdict may be called sound."""
        return self.status in NOT_FAILED


def sound(verdicts: Sequence[Verdict]) -> bool:
    """Whether something passed, and nothing is violated or unknown."""
    return any(v.status == "pass" for v in verdicts) and all(v.stands for v in verdicts)
