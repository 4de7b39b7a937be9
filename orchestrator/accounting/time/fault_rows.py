"""The rows of the summary's table of faults: what each fault and each death did, how long detection and recovery took,
and what it cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.accounting.roster import SYNCER, Incarnation, InjectedFault

PHASES = ("detect", "decide", "start", "import", "compile", "state", "first_contribution")

Row = dict[str, Any]


@dataclass(eq=False)
class OpenFault:
    """A fault or a death of a learner's incarnation, and what became of it so far. Times are Unix seconds."""

    story: Literal["kill", "freeze", "other", "death"]
    incarnation: Incarnation
    fault: InjectedFault | None  # None: a death that no fault may explain
    expired: float | None = None  # its lease, for the first time since
    refused: float | None = None  # a contribution of it, as this fault makes it
    heir: Incarnation | None = None  # its learner's next incarnation, or the first later one that contributed
    contributed: float | None = None  # a later incarnation
    again: float | None = None  # its learner contributed after the fault had healed
    killed: int = 0  # tokens
    lost: int = 0  # tokens of steps under the fault
    settled: float = -math.inf  # its steps up to then have fates

    @property
    def healed(self) -> float | None:
        return None if self.fault is None else self.fault.healed

    @property
    def at(self) -> float | None:
        return self.incarnation.died if self.fault is None else self.fault.at

    @property
    def ended(self) -> bool:
        """Whether the incarnation ended by this fault: NaN never heals, and a long link cut counts as a death."""
        incarnation, fault = self.incarnation, self.fault
        if fault is None or incarnation.over != "killed" or incarnation.noticed is None:
            return False
        if incarnation.noticed < fault.at:
            return False
        healed = math.inf if fault.healed is None else fault.healed
        return fault.kind == "non_finite" or (fault.kind == "link" and incarnation.noticed <= healed)

    @property
    def fatal(self) -> bool:
        """Whether it is told as a death."""
        if self.story == "freeze":
            return self.incarnation.fatal_freeze is self.fault
        return self.story in ("kill", "death") or self.ended

    def finished(self, settled: bool) -> bool:
        """Whether nothing about it can change. `settled`: whether all steps of its incarnation have fates."""
        if self.fatal:
            return self.contributed is not None and settled
        healed = self.healed
        return self.again is not None and (
            self.story == "freeze" or settled or (healed is not None and self.settled >= healed)
        )


@dataclass(eq=False)
class Outage:
    """The end of one syncer epoch. Times are Unix seconds; None: did not happen."""

    epoch: int
    fault: InjectedFault | None = None
    noticed: float | None = None
    last: float | None = None  # its newest commit
    served: float | None = None  # when a later epoch began
    committed: float | None = None  # when it committed first


def row_of(one: OpenFault) -> Row | None:
    """None for a death that a fault explains: that fault's row tells of it."""
    incarnation, fault = one.incarnation, one.fault
    if fault is None:
        explained = incarnation.killer is not None or incarnation.fatal_freeze is not None or incarnation.misconfigured
        explained = explained or any(OpenFault("other", incarnation, f).ended for f in incarnation.faults)
        return None if explained or incarnation.died is None else _death(one, incarnation.died, "kill", None)
    if one.story == "kill":
        return _death(one, fault.at, fault.kind, None)
    if one.story == "freeze":
        if one.fatal:
            return _death(one, fault.at, "freeze", None)
        late = one.expired is not None and fault.healed is not None and one.expired > fault.healed
        row = _survived(one, fault, None if late else one.expired)  # else another silence
        return row | {"tokens_lost": None if fault.healed is None else 0}
    detected = _shown(one, fault)
    if one.ended:
        return _death(one, fault.at, fault.kind, detected) | {"tokens_lost": one.lost}
    return _survived(one, fault, detected) | {"tokens_lost": None if fault.healed is None else one.lost}


def _shown(one: OpenFault, fault: InjectedFault) -> float | None:
    """When it was first detected: by a refusal, an expired lease, or the end of the incarnation."""
    signs = [one.refused, one.expired if fault.kind == "link" else None, one.incarnation.noticed if one.ended else None]
    healed = math.inf if fault.healed is None else fault.healed
    return min((at for at in signs if at is not None and fault.at <= at <= healed), default=None)


def _death(one: OpenFault, at: float, kind: str, detected: float | None) -> Row:
    """The end of an incarnation, and how a later one took over. After the run's end nobody looks for either.

    `detected`: when the fault that brought it showed, where that was before the end was noticed.
    """
    noticed = one.incarnation.noticed if one.incarnation.over == "killed" else None
    heir, milestones = one.heir, [at, noticed if detected is None else detected]
    if heir is None:
        milestones += [None] * 5
    else:
        milestones += [heir.requested, heir.started]
        milestones += [heir.entered(phase) for phase in ("compiling", "joining", "stepping")]
    phases = _phases([*milestones, one.contributed])
    return {
        "kind": kind,
        "target": one.incarnation.learner,
        "injected": one.fault is not None,
        "at_s": None,
        "detection_s": phases["detect"],
        "recovery_s": None if one.contributed is None else one.contributed - at,
        "recovery_phases": phases,
        "tokens_lost": one.killed if noticed is not None else None,
    }


def _phases(milestones: Sequence[float | None]) -> dict[str, float | None]:
    """Seconds between milestones. A missing one is None, and the next includes its time.

    A milestone that two clocks put before its predecessor counts as at the same time, so that the phases of a
    recovery sum to its length.
    """
    phases: dict[str, float | None] = {}
    reached = milestones[0]
    for name, at in zip(PHASES, milestones[1:], strict=True):
        if at is None or reached is None:
            phases[name] = None
        else:
            phases[name] = max(0.0, at - reached)
            reached = max(reached, at)
    return phases


def _survived(one: OpenFault, fault: InjectedFault, detected: float | None) -> Row:
    """A fault that ended no incarnation, up to the first contribution after it healed."""
    phases: dict[str, float | None] = dict.fromkeys(PHASES)
    if detected is not None:
        phases["detect"] = detected - fault.at
    if one.again is not None and fault.healed is not None:
        phases["first_contribution"] = one.again - fault.healed
    return {
        "kind": fault.kind,
        "target": one.incarnation.learner,
        "injected": True,
        "at_s": None,
        "detection_s": phases["detect"],
        "recovery_s": None if one.again is None else one.again - fault.at,
        "recovery_phases": phases,
        "tokens_lost": None,
    }


def outage_row(outage: Outage) -> tuple[float, Row]:
    """The end of a syncer epoch. No token is lost: what was not committed is read again."""
    began = next((at for at in (outage.last, outage.noticed) if at is not None), 0.0)
    began = began if outage.fault is None else outage.fault.at
    detected = None if outage.noticed is None else outage.noticed - began
    phases: dict[str, float | None] = dict.fromkeys(PHASES) | {"detect": detected}
    if outage.served is not None and outage.noticed is not None:
        phases["start"] = outage.served - outage.noticed
        phases["first_contribution"] = None if outage.committed is None else outage.committed - outage.served
    row = {
        "kind": "death" if outage.fault is None else outage.fault.kind,
        "target": SYNCER,
        "injected": outage.fault is not None,
        "at_s": None,
        "detection_s": detected,
        "recovery_s": None if outage.committed is None else outage.committed - began,
        "recovery_phases": phases,
        "tokens_lost": 0,
    }
    return began, row
