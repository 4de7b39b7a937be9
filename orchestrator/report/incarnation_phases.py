"""What each incarnation of each learner was doing, from when to when. The report draws it as lanes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Incarnation
from outer.protocol.facts import LearnerFenced

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
    reason: str  # why it was fenced or lost; empty while it incarnations
    steps: int
    tokens: int

    @property
    def begun(self) -> float | None:
        """When its first step began."""
        return next((start for start, _, phase in self.phases if phase == "stepping"), None)


def lanes(history: History, origin: float) -> list[Lane]:
    """All incarnations: configured learners first, each one's oldest first."""
    names = list(history.learners)
    names += sorted({name for name, _ in history.incarnations} - set(names))
    end = max((event.at for event in history.events), default=origin)
    reasons = {(s.fact.learner, s.fact.incarnation): s.fact.reason for s in reversed(history.of(LearnerFenced))}
    out = []
    for name in names:
        incarnations = history.incarnations_of(name)
        for incarnation, successor in zip(incarnations, [*incarnations[1:], None], strict=True):
            heir = successor.requested if successor is not None else None
            out.append(_lane(incarnation, end if heir is None else heir, end, origin, reasons.get(incarnation.key, "")))
    return out


def _lane(incarnation: Incarnation, heir: float, end: float, origin: float, reason: str) -> Lane:
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
    if not any(phase == "stepping" for _, phase in marks) and incarnation.steps:
        marks.append((incarnation.steps[0].at - incarnation.steps[0].fact.seconds, "stepping"))
    drawn = [
        (begin, min(until, stop), phase)
        for (begin, phase), (until, _) in pairwise([*marks, (stop, "")])
        if phase not in UNDRAWN and begin < min(until, stop)
    ]

    def spans(intervals: list[tuple[float, float | None]]) -> tuple[Span, ...]:
        cut = [(start, end if until is None else until) for start, until in intervals]
        return tuple((start - origin, until - origin) for start, until in cut if start < until)

    return Lane(
        incarnation.learner,
        incarnation.number,
        None if incarnation.requested is None else incarnation.requested - origin,
        tuple((start - origin, until - origin, phase) for start, until, phase in _joined(drawn)),
        spans([(freeze.start, freeze.stop) for freeze in incarnation.freezes]),
        spans(incarnation.expired),
        (died - origin, max(died, heir) - origin) if died is not None else None,
        reason,
        len(incarnation.steps),
        sum(said.fact.tokens for said in incarnation.steps),
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
