"""The summary's table of faults, as a fold. A row is finished once its learner, or the syncer, has contributed again,
and its steps have fates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from orchestrator.accounting.books import Bookkeeper
from orchestrator.accounting.ledger import COMMITTED, FATES, IN_FLIGHT
from orchestrator.accounting.roster import KILLING, SYNCER, InjectedFault, Roster
from orchestrator.accounting.time.fault_rows import OpenFault, Outage, Row, outage_row, row_of
from orchestrator.eventlog.block import Block, ContributionRows, Floats
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultInjected, LearnerLost, SyncerLost
from outer.protocol.facts import LearnerFenced, LeaseExpired, Refused, SyncerStarted

ROWS = 1000  # that are kept: the newest
EPOCHS_KEPT = 8
_KEPT_FATES = [FATES.index(fate) for fate in (COMMITTED, IN_FLIGHT, "run_ended")]  # such tokens are not lost by a fault
_KILLED = FATES.index("killed")
_SIGNS = {"corrupt": "bad_digest", "non_finite": "non_finite"}  # the refusal that shows a fault


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

    def _refuse(self, event: Event, fact: Refused) -> None:
        for one in self._of(fact.learner, fact.incarnation):
            if one.refused is None and one.fault is not None and event.at >= one.fault.at:
                one.refused = event.at if _SIGNS.get(one.fault.kind) == fact.reason else None

    def _of(self, learner: str, incarnation: int) -> list[OpenFault]:
        return [one for one in self._open if one.incarnation.key == (learner, incarnation)]

    def _lose_syncer(self, event: Event, fact: SyncerLost) -> None:
        if (outage := self._outage(fact.epoch)) is not None:
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
    Refused: FaultTable._refuse,
    SyncerLost: FaultTable._lose_syncer,
    SyncerStarted: FaultTable._serve,
}


def _time(item: tuple[float, Row]) -> float:
    return item[0]
