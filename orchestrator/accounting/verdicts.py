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


@dataclass
class Failures:
    """What a check found: how many, and the first of them in words."""

    count: int = 0
    first: str = ""
    at: int = 0  # the position that the first is about

    def add(self, told: str, count: int = 1, at: int = 0) -> None:
        """Add one failure, or several alike. Of those with a position in the log, the earliest is the first."""
        if not self.count or at < self.at:
            self.first, self.at = told, at
        self.count += count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        return self.first


def judge(
    name: str, claim: str, checked: int, things: str, failures: Sequence[str] | Failures, not_exercised: str = ""
) -> Verdict:
    """Violated by the first failure; else pass if anything was checked.

    Where nothing was: idle if `not_exercised` says why the case did not occur, else unknown.
    """
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return Verdict(name, claim, "violated", failures[0] + more)
    if checked:
        return Verdict(name, claim, "pass", f"{checked} {things} checked")
    if not_exercised:
        return Verdict(name, claim, "idle", not_exercised)
    return Verdict(name, claim, "unknown", f"the log has no {things}")


def sound(verdicts: Sequence[Verdict]) -> bool:
    """Whether something passed, and nothing is violated or unknown."""
    return any(v.status == "pass" for v in verdicts) and all(v.stands for v in verdicts)
