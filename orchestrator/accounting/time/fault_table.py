"""The summary's table of faults, as a fold. A row is finished once its learner, or the syncer, has contributed again,
and its steps have fates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from orchestrator.accounting.books import Bookkeeper
from orchestrator.accounting.ledger import COMMITTED, FATES, IN_FLIGHT
from orchestrator.accounting.roster import KILLING, SYNCER, Incarnation, InjectedFault, Roster
from orchestrator.eventlog.block import Block, ContributionRows, Floats
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultInjected, LearnerLost, SyncerLost
from outer.protocol.facts import LearnerFenced, LeaseExpired, Quarantined, Refused, SyncerStarted

ROWS = 1000  # that are kept: the newest
EPOCHS_KEPT = 8
_KEPT_FATES = [FATES.index(fate) for fate in (COMMITTED, IN_FLIGHT, "run_ended")]  # such tokens are not lost by a fault
_KILLED = FATES.index("killed")
_SIGNS = {"corrupt": "bad_digest", "non_finite": "non_finite"}  # the refusal, or quarantine, that shows a fault


class FaultTable:
    """A fold. Needs the roster and the bookkeeper to take each block first."""

    def __init__(self, roster: Roster, books: Bookkeeper) -> None:
        self._roster, self._books = roster, books
        self.left_out: dict[str, dict[str, int]] = {}  # by kind, rows that are no longer kept, and their tokens_lost
        self._finished: list[tuple[float, Row]] = []
        self._open: list[OpenFault] = []
        self._outages: list[Outage] = []
        self._commits: dict[int, float] = {}  # by epoch, its newest commit
        self._epochs: list[int] = []  # the newest that said anything
        self._dead: dict[str, int] = {}  # by learner, its newest incarnation whose death is a row

    def take(self, block: Block) -> None:
        for _, event in block.others:
            if event.writer == SYNCER and event.incarnation not in self._epochs:
                self._epochs = [*self._epochs, event.incarnation][-EPOCHS_KEPT:]
            if (follow := _FOLLOW.get(type(event.fact))) is not None:
                follow(self, event, event.fact)
        self._served()
        if self._open:
            self._contributed(block)
            self._lose()
            self._close()
        while len(self._finished) + len(self._open) > ROWS:
            self._leave_out()

    def finish(self) -> None:
        """Count the steps that the end of the log settles."""
        self._lose()

    def rows(self, origin: float | None) -> list[Row]:
        """Injected faults, and deaths that no injected fault explains, by time, `at_s` in seconds after the origin."""
        found = [*self._finished]
        found += [(at, row) for one in self._open if (row := row_of(one)) is not None and (at := one.at) is not None]
        found += [outage_row(outage) for outage in self._outages]
        return [row | {"at_s": None if origin is None else at - origin} for at, row in sorted(found, key=_time)]

    # -------------------------------------------------------------- facts

    def _strike(self, event: Event, fact: FaultInjected) -> None:
        if fact.target == SYNCER:
            if (outage := self._outage(fact.incarnation)) is not None:
                outage.fault = InjectedFault(fact.fault, fact.fault_kind, event.at, fact.duration_s)
            return
        incarnation = self._roster.table.get((fact.target, fact.incarnation))
        if incarnation is None:
            return
        if fact.fault_kind in KILLING:
            if incarnation.kill is not None and incarnation.kill.fault == fact.fault:
                self._open.append(OpenFault("kill", incarnation, incarnation.kill))
            return
        for fault in incarnation.faults:
            if fault.fault == fact.fault:
                self._open.append(OpenFault("freeze" if fact.fault_kind == "freeze" else "other", incarnation, fault))

    def _end(self, event: Event, fact: LearnerFenced | LearnerLost) -> None:
        incarnation = self._roster.table.get((fact.learner, fact.incarnation))
        if incarnation is None or incarnation.over != "killed" or fact.incarnation <= self._dead.get(fact.learner, 0):
            return
        self._dead[fact.learner] = fact.incarnation
        self._open.append(OpenFault("death", incarnation, None))

    def _expire(self, event: Event, fact: LeaseExpired) -> None:
        for one in self._of(fact.learner, fact.incarnation):
            if one.expired is None and one.fault is not None and event.at >= one.fault.at:
                one.expired = event.at

    def _refuse(self, event: Event, fact: Refused | Quarantined) -> None:
        reason = fact.reason if isinstance(fact, Refused) else "non_finite"
        for one in self._of(fact.learner, fact.incarnation):
            if one.refused is None and one.fault is not None and event.at >= one.fault.at:
                one.refused = event.at if _SIGNS.get(one.fault.kind) == reason else None

    def _of(self, learner: str, incarnation: int) -> list[OpenFault]:
        return [one for one in self._open if one.incarnation.key == (learner, incarnation)]

    def _lose_syncer(self, event: Event, fact: SyncerLost) -> None:
        """One that never came up ended the newest that did: the orchestrator that saw that may have died, too."""
        came_up = max((epoch for epoch in self._epochs if epoch <= fact.epoch), default=0)
        if (outage := self._outage(came_up)) is not None and outage.noticed is None:
            outage.noticed = event.at

    def _serve(self, event: Event, fact: SyncerStarted) -> None:
        for outage in self._outages:
            if event.incarnation > outage.epoch:
                outage.served = event.at if outage.served is None else min(outage.served, event.at)

    def _outage(self, epoch: int) -> Outage | None:
        """None of an epoch that never came up: that is part of the outage before."""
        if epoch not in self._epochs:
            return None
        found = [outage for outage in self._outages if outage.epoch == epoch]
        if not found:
            found = [Outage(epoch)]
            self._outages = sorted([*self._outages, *found], key=lambda outage: outage.epoch)[-ROWS:]
        return found[0]

    # -------------------------------------------------------------- commits and steps

    def _served(self) -> None:
        """Follow the syncer's epochs by their commits."""
        commits = self._books.records.commits
        for epoch in np.unique(commits.epoch).tolist():
            at = commits.at[commits.epoch == epoch]
            self._commits[epoch] = max(self._commits.get(epoch, -math.inf), float(at.max()))
            for outage in self._outages:
                if epoch > outage.epoch and outage.committed is None:
                    outage.committed = float(at[0])
        for old in sorted(self._commits)[:-EPOCHS_KEPT]:
            del self._commits[old]
        for outage in self._outages:
            outage.last = self._commits.get(outage.epoch, outage.last)
        for outage in [outage for outage in self._outages if outage.committed is not None and outage.noticed]:
            self._outages.remove(outage)
            self._finished.append(outage_row(outage))

    def _contributed(self, block: Block) -> None:
        """Look for the first contribution after each fault that is still open."""
        parts, commits = self._books.records.contributions, self._books.records.commits
        at = commits.at[parts.commit]
        sources: dict[str, list[int]] = {}
        for place, (learner, _) in enumerate(block.sources):
            sources.setdefault(learner, []).append(place)
        numbers = np.array([number for _, number in block.sources], np.int64)
        mine: dict[str, Any] = {}
        for one in self._open:
            learner, number = one.incarnation.key
            if one.heir is None:
                one.heir = next((other for other in self._roster.of(learner) if other.number > number), None)
            if learner not in mine:
                mine[learner] = np.flatnonzero(np.isin(parts.learner, sources.get(learner, [])))
            self._look(one, parts, numbers, mine[learner], at)

    def _look(self, one: OpenFault, parts: ContributionRows, numbers: Any, mine: Any, at: Floats) -> None:
        learner, number = one.incarnation.key
        if one.contributed is None and len(later := mine[numbers[parts.learner[mine]] > number]):
            one.contributed = float(at[later[0]])
            one.heir = self._roster.table.get((learner, int(numbers[parts.learner[later[0]]])), one.heir)
        if one.again is None and one.healed is not None and len(after := mine[at[mine] >= one.healed]):
            one.again = float(at[after[0]])

    def _lose(self) -> None:
        """Count the tokens that the faults cost, as the books settle the steps."""
        keys = {one.incarnation.key for one in self._open}
        settled = [(key, rows) for key, rows in self._books.settled if key in keys and len(rows)]
        for key, rows in settled:
            killed = int(rows.tokens[rows.fate == _KILLED].sum())
            lost = ~np.isin(rows.fate, _KEPT_FATES)
            for one in self._of(*key):
                one.killed += killed
                one.settled = max(one.settled, float(rows.at.max()))
                if one.fault is not None:
                    until = math.inf if one.ended or one.healed is None else one.healed
                    under = (rows.at >= one.fault.at) & (rows.at <= until)
                    one.lost += int(rows.tokens[lost & under].sum())

    # -------------------------------------------------------------- finished rows

    def _close(self) -> None:
        windows, still = self._books.windows, []
        for one in self._open:
            at, settled = one.at, one.incarnation.key not in windows
            if not one.finished(settled):
                still.append(one)
            elif (row := row_of(one)) is not None and at is not None:
                self._finished.append((at, row))
        self._open = still

    def _leave_out(self) -> None:
        if self._finished:
            oldest = min(self._finished, key=_time)
            self._finished.remove(oldest)
            row: Row | None = oldest[1]
        else:
            row = row_of(self._open.pop(0))
        if row is not None:
            sums = self.left_out.setdefault(row["kind"], {"rows": 0, "tokens_lost": 0})
            sums["rows"] += 1
            sums["tokens_lost"] += row["tokens_lost"] or 0


_FOLLOW: dict[type[Any], Callable[[FaultTable, Event, Any], None]] = {
    FaultInjected: FaultTable._strike,
    LearnerFenced: FaultTable._end,
    LearnerLost: FaultTable._end,
    LeaseExpired: FaultTable._expire,
    Quarantined: FaultTable._refuse,
    Refused: FaultTable._refuse,
    SyncerLost: FaultTable._lose_syncer,
    SyncerStarted: FaultTable._serve,
}


def _time(item: tuple[float, Row]) -> float:
    return item[0]


# ------------------------------------------------------------------ fault rows

# The rows of the summary's table of faults: what each fault and each death did, how long detection and recovery took,
# and what it cost.


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
