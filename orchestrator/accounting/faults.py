"""The summary's table of faults: what each fault and each death did, how long detection and recovery took, and what it
cost. Computed from the event log alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.accounting.books import COMMITTED, IN_FLIGHT, Books
from orchestrator.accounting.goodput import first_step_at
from orchestrator.accounting.history import SYNCER, History
from orchestrator.accounting.incarnations import Freeze, Incarnation, Said
from orchestrator.eventlog.facts import FaultInjected, SyncerLost
from outer.protocol.facts import Refused, SyncerStarted

PHASES = ("detect", "decide", "start", "import", "compile", "state", "first_contribution")


def fault_rows(history: History, books: Books) -> list[dict[str, Any]]:
    """Injected faults, and deaths that no injected fault explains, by time."""
    origin = first_step_at(history)
    rows: list[tuple[float, dict[str, Any]]] = []
    for incarnation in history.incarnations.values():
        killer, fatal = incarnation.killer, incarnation.fatal_freeze
        for said in incarnation.kills[:1]:
            rows.append((said.at, _death(history, books, incarnation, said.at, True, said.fact.fault_kind)))
        for freeze in incarnation.freezes:
            if freeze is fatal:
                rows.append((freeze.start, _death(history, books, incarnation, freeze.start, True, "freeze")))
            else:
                rows.append((freeze.start, _freeze(history, incarnation, freeze)))
        rows += [(said.at, _other_fault(history, books, incarnation, said)) for said in incarnation.other_faults]
        explained = any(
            _is_its_end(history, incarnation, said) for said in incarnation.other_faults
        ) or _was_misconfigured(history, incarnation)
        if incarnation.died is not None and killer is None and fatal is None and not explained:
            rows.append((incarnation.died, _death(history, books, incarnation, incarnation.died, False)))
    rows += [(outage.began, _outage(outage)) for outage in _outages(history)]
    for at, row in rows:
        row["at_s"] = None if origin is None else at - origin
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def _outage(outage: _Outage) -> dict[str, Any]:
    """The end of a syncer epoch. No token is lost: what was not committed is read again."""
    detected = None if outage.noticed is None else outage.noticed - outage.began
    phases: dict[str, float | None] = dict.fromkeys(PHASES) | {"detect": detected}
    if outage.served is not None and outage.noticed is not None:
        phases["start"] = outage.served - outage.noticed
        phases["first_contribution"] = None if outage.committed is None else outage.committed - outage.served
    return {
        "kind": outage.kind,
        "target": SYNCER,
        "injected": outage.injected,
        "at_s": None,
        "detection_s": detected,
        "recovery_s": None if outage.committed is None else outage.committed - outage.began,
        "recovery_phases": phases,
        "tokens_lost": 0,
    }


def _death(
    history: History,
    books: Books,
    incarnation: Incarnation,
    at: float,
    injected: bool,
    kind: str = "kill",
    detected: float | None = None,
) -> dict[str, Any]:
    """The end of an incarnation, and how a later one took over. After the run's end nobody looks for either.

    `detected`: when the fault that brought it showed, where that was before the end was noticed.
    """
    noticed = incarnation.noticed if incarnation.over == "killed" else None
    contributed = next(
        (
            (said.at, history.incarnations[(one.learner, one.incarnation)])
            for said in history.commits
            for one in said.fact.participants
            if one.learner == incarnation.learner and one.incarnation > incarnation.number
        ),
        None,
    )
    later = [other for other in history.incarnations_of(incarnation.learner) if other.number > incarnation.number]
    heir = contributed[1] if contributed else next(iter(later), None)
    milestones: list[float | None] = [at, noticed if detected is None else detected]
    milestones += (
        [heir.requested, heir.started, *(heir.entered(phase) for phase in ("compiling", "joining", "stepping"))]
        if heir
        else [None] * 5
    )
    milestones.append(contributed[0] if contributed else None)
    phases = _phases(milestones)
    tokens = {(*incarnation.key, step.fact.step): step.fact.tokens for step in incarnation.steps}
    lost = sum(count for unit, count in tokens.items() if books.fates[unit] == "killed")
    return {
        "kind": kind,
        "target": incarnation.learner,
        "injected": injected,
        "at_s": None,
        "detection_s": phases["detect"],
        "recovery_s": contributed[0] - at if contributed else None,
        "recovery_phases": phases,
        "tokens_lost": lost if noticed is not None else None,
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


def _freeze(history: History, incarnation: Incarnation, freeze: Freeze) -> dict[str, Any]:
    """A freeze that was not taken for a death: once it ends, it has lost no tokens."""
    healed = history.healed.get(freeze.fault)
    detected = next((at for at, _ in incarnation.expired if at >= freeze.start), None)
    if detected is not None and healed is not None and detected > healed:
        detected = None  # another silence
    return _survived(history, incarnation, "freeze", freeze.start, detected, healed) | {
        "tokens_lost": None if healed is None else 0
    }


def _other_fault(history: History, books: Books, incarnation: Incarnation, said: Said[FaultInjected]) -> dict[str, Any]:
    """A fault inside a living process, up to its healing, or up to the successor if the incarnation ended by it."""
    kind, healed, ended = (
        said.fact.fault_kind,
        history.healed.get(said.fact.fault),
        _is_its_end(history, incarnation, said),
    )
    detected = _shown(history, incarnation, said, ended)
    if ended:
        row = _death(history, books, incarnation, said.at, True, kind, detected)
    else:
        row = _survived(history, incarnation, kind, said.at, detected, healed)
    until = math.inf if ended else healed
    if until is None:
        return row | {"tokens_lost": None}
    steps = [step.fact for step in incarnation.steps if said.at <= step.at <= until]
    kept = (COMMITTED, IN_FLIGHT, "run_ended")
    return row | {
        "tokens_lost": sum(step.tokens for step in steps if books.fates[(*incarnation.key, step.step)] not in kept)
    }


def _is_its_end(history: History, incarnation: Incarnation, said: Said[FaultInjected]) -> bool:
    """Whether the incarnation ended by this fault: NaN never heals, and a long link cut counts as a death."""
    if incarnation.over != "killed" or incarnation.noticed is None or incarnation.noticed < said.at:
        return False
    healed = history.healed.get(said.fact.fault, math.inf)
    return said.fact.fault_kind == "non_finite" or (said.fact.fault_kind == "link" and incarnation.noticed <= healed)


def _shown(history: History, incarnation: Incarnation, said: Said[FaultInjected], ended: bool) -> float | None:
    """When it was first detected: by a refusal, an expired lease, or the end of the incarnation."""
    reason = {"corrupt": "bad_digest", "non_finite": "non_finite"}.get(said.fact.fault_kind)
    refused = (s for s in history.of(Refused) if (s.fact.learner, s.fact.incarnation) == incarnation.key)
    signs = [refusal.at for refusal in refused if refusal.fact.reason == reason]
    if said.fact.fault_kind == "link":
        signs += [at for at, _ in incarnation.expired]
    if ended and incarnation.noticed is not None:
        signs.append(incarnation.noticed)
    healed = history.healed.get(said.fact.fault, math.inf)
    return min((at for at in signs if said.at <= at <= healed), default=None)


def _was_misconfigured(history: History, incarnation: Incarnation) -> bool:
    """Whether an injected fault started it with another configuration, for which it was refused."""
    before = history.incarnations.get((incarnation.learner, incarnation.number - 1))
    if before is None or not any(kill.fact.fault_kind == "wrong_config" for kill in before.kills):
        return False
    refused = [said.fact for said in history.of(Refused) if said.fact.reason == "wrong_config"]
    return any((fact.learner, fact.incarnation) == incarnation.key for fact in refused)


def _survived(
    history: History, incarnation: Incarnation, kind: str, at: float, detected: float | None, healed: float | None
) -> dict[str, Any]:
    """A fault that ended no incarnation, up to the first contribution after it healed."""
    contributed = next(
        (
            said.at
            for said in history.commits
            if healed is not None
            and said.at >= healed
            and any(one.learner == incarnation.learner for one in said.fact.participants)
        ),
        None,
    )
    phases: dict[str, float | None] = dict.fromkeys(PHASES)
    if detected is not None:
        phases["detect"] = detected - at
    if contributed is not None and healed is not None:
        phases["first_contribution"] = contributed - healed
    return {
        "kind": kind,
        "target": incarnation.learner,
        "injected": True,
        "at_s": None,
        "detection_s": phases["detect"],
        "recovery_s": None if contributed is None else contributed - at,
        "recovery_phases": phases,
        "tokens_lost": None,
    }


# ------------------------------------------------------------------ the syncer's epochs


@dataclass(frozen=True)
class _Outage:
    """The end of one syncer epoch. Times are Unix seconds; None: did not happen."""

    epoch: int
    kind: str  # kill | freeze | death
    injected: bool
    began: float  # when the fault was injected; else its last commit before it was noticed
    noticed: float | None
    served: float | None  # when a later epoch began
    committed: float | None  # when it committed first


def _outages(history: History) -> list[_Outage]:
    """Every noticed or injected end of a syncer epoch, in order."""
    struck = {said.fact.incarnation: said for said in history.of(FaultInjected) if said.fact.target == SYNCER}
    lost = {said.fact.epoch: said for said in history.of(SyncerLost)}
    found = []
    for epoch in sorted(struck.keys() | lost.keys()):
        fault, loss = struck.get(epoch), lost.get(epoch)
        if epoch not in history.epochs:
            continue  # it never came up: that is part of the outage before
        last = max((said.at for said in history.commits if said.incarnation == epoch), default=None)
        began = fault.at if fault is not None else last if last is not None else loss.at if loss is not None else 0.0
        served = min((said.at for said in history.of(SyncerStarted) if said.incarnation > epoch), default=None)
        committed = min((said.at for said in history.commits if said.fact.epoch > epoch), default=None)
        kind = fault.fact.fault_kind if fault is not None else "death"
        noticed = None if loss is None else loss.at
        found.append(_Outage(epoch, kind, fault is not None, began, noticed, served, committed))
    return found
