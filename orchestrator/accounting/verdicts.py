"""What a checker says of a promise, and of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "violated", "unknown", "idle"]
STANDING = frozenset({"pass", "idle"})


@dataclass(frozen=True)
class Verdict:
    """What a checker says of one promise.

    A log without evidence is `unknown`, and unknown is never a pass. `idle` is a log that shows that what the promise
    is about did not happen, as when nobody was refused: neither a pass nor a failure.
    """

    name: str
    promise: str
    status: Status
    reason: str

    @property
    def stands(self) -> bool:
        """Whether a run may be called sound with it."""
        return self.status in STANDING


def judge(name: str, promise: str, checked: int, things: str, broken: Sequence[str], idle: str = "") -> Verdict:
    """Violated by the first thing found broken, else pass, if anything was checked.

    If nothing was: idle, where the log itself shows that there was no occasion, `idle` saying how; else unknown.
    """
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        return Verdict(name, promise, "violated", broken[0] + more)
    if checked:
        return Verdict(name, promise, "pass", f"{checked} {things} checked")
    return (
        Verdict(name, promise, "idle", idle) if idle else Verdict(name, promise, "unknown", f"the log has no {things}")
    )


def sound(verdicts: Sequence[Verdict]) -> bool:
    """Whether every promise is kept, of those that the log has an occasion for. What is unknown is not kept."""
    return any(v.status == "pass" for v in verdicts) and all(v.stands for v in verdicts)
