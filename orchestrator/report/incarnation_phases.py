"""What each incarnation of each learner was doing, from when to when. The report draws it as lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.accounting.roster import Incarnation
from orchestrator.accounting.time.explanations import expired, suspended

Span = tuple[float, float]  # seconds after the origin
PHASES = {"starting": "importing", "importing": "importing", "compiling": "compiling", "joining": "joining"}
UNDRAWN = ("stopped",)


@dataclass(frozen=True)
class Lane:
    """One incarnation. Spans are in seconds after the origin."""

    learner: str
    incarnation: int
    requested: float | None
    phases: tuple[tuple[float, float, str], ...]  # start, stop, phase: placing, importing, compiling, ...
    frozen: tuple[Span, ...]
    expired: tuple[Span, ...]  # without a lease
    dead: Span | None  # from its death to the next incarnation's request, or to the end
    reason: str  # why it was fenced or lost; empty while it lives
    steps: int
    tokens: int

    @property
    def begun(self) -> float | None:
        """When its first step began."""
        return next((start for start, _, phase in self.phases if phase == "stepping"), None)


def lanes(incarnations: Iterable[Incarnation], learners: Sequence[str], end: float, origin: float) -> list[Lane]:
    """The incarnations: of the learners that were wanted first, each one's oldest first. `end`: of the log."""
    by_learner: dict[str, list[Incarnation]] = {name: [] for name in learners}
    for incarnation in sorted(incarnations, key=lambda each: each.key):
        by_learner.setdefault(incarnation.learner, []).append(incarnation)
    out = []
    for each in by_learner.values():
        for incarnation, successor in zip(each, [*each[1:], None], strict=True):
            heir = successor.requested if successor is not None else None
            out.append(_lane(incarnation, end if heir is None else heir, end, origin))
    return out


def _lane(incarnation: Incarnation, heir: float, end: float, origin: float) -> Lane:
    died = incarnation.died if incarnation.over == "killed" else None
    stop = (
        died
        if died is not None
        else incarnation.noticed
        if incarnation.over in ("stopped", "drained") and incarnation.noticed
        else end
    )
    marks = [(incarnation.requested, "placing")] if incarnation.requested is not None else []
    marks += [(at, PHASES.get(phase, phase)) for at, phase in incarnation.phases]
    if not any(phase == "stepping" for _, phase in marks) and incarnation.begun is not None:
        marks.append((incarnation.begun, "stepping"))
    drawn = [
        (begin, min(until, stop), phase)
        for (begin, phase), (until, _) in pairwise([*marks, (stop, "")])
        if phase not in UNDRAWN and begin < min(until, stop)
    ]

    def spans(intervals: Iterable[tuple[float, float]]) -> tuple[Span, ...]:
        return tuple((start - origin, until - origin) for start, until in intervals if start < until)

    return Lane(
        incarnation.learner,
        incarnation.number,
        None if incarnation.requested is None else incarnation.requested - origin,
        tuple((start - origin, until - origin, phase) for start, until, phase in _joined(drawn)),
        spans(suspended(incarnation)),
        spans(expired(incarnation, end)),
        (died - origin, max(died, heir) - origin) if died is not None else None,
        incarnation.reason,
        incarnation.steps,
        incarnation.tokens,
    )


def _joined(phases: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Join neighbouring phases of one kind."""
    out: list[tuple[float, float, str]] = []
    for start, stop, phase in phases:
        if out and out[-1][2] == phase and out[-1][1] == start:
            out[-1] = (out[-1][0], stop, phase)
        else:
            out.append((start, stop, phase))
    return out
