"""The books as a fold. orchestrator/accounting/ledger.py defines the fates and their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.accounting.ledger import (
    COMMITTED,
    FATE,
    FATES,
    Books,
    Covered,
    LostSteps,
    Refusals,
    Retired,
    Settled,
    Sums,
    TokenFragments,
    nothing,
    reasons,
)
from orchestrator.accounting.records import Records
from orchestrator.accounting.windows import MOST, PENDING, StepWindows, assign
from orchestrator.eventlog.block import NONE, Block, Ints, Key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import LearnerLost, RunFinished, RunResumed
from outer.protocol.facts import (
    FactsLost,
    Finished,
    LearnerAttached,
    LearnerFenced,
    Refused,
    SetAside,
    StepOpened,
    StepPassed,
    SyncerStarted,
)

ENDS_KEPT = 4  # of each learner's newest incarnations it is remembered how they ended


@dataclass
class _End:
    fate: int
    epoch: int = 0  # of the syncer that fenced it; 0: none has yet
    last_open: int = MOST  # the newest syncer step opened by then
    passed: bool = False  # that step has ended


@dataclass
class Bookkeeper:
    """The books as a fold. Needs its `windows` and `records` to take each block first."""

    windows: StepWindows
    records: Records
    settled: list[Settled] = field(default_factory=list)  # by the newest block: every step comes here once
    covered: Covered = field(default_factory=lambda: Covered(*np.zeros((3, 0), np.int64)))  # by its contributions
    committed_at: list[int] = field(default_factory=list)  # by the newest block's commits: tokens committed by then
    committed: int = 0  # counted commit by commit
    lost: dict[Key, LostSteps] = field(default_factory=dict)
    apart: TokenFragments = field(init=False)  # fragment by fragment
    _over: list[Key] = field(default_factory=list)  # with lost facts, forgotten with the next block
    ended: bool = False  # the syncer or the run has finished: nothing merges any more
    _newest_open: int = 0
    _passed: int = 0  # the newest syncer step that has ended
    _ends: dict[str, dict[int, _End]] = field(default_factory=dict)  # learner -> incarnation
    _refusals: Refusals = field(init=False)
    _aside: dict[Key, int] = field(default_factory=dict)  # the step whose samples were set aside
    _gone: dict[str, Sums] = field(default_factory=dict)  # by learner, of what is settled and forgotten
    # By slot:
    _newest: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # the windows' before the block
    _sums: Ints = field(default_factory=lambda: np.zeros((0, len(FATES)), np.int64))  # tokens of settled rows
    _said: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # tokens of all its steps

    def __post_init__(self) -> None:
        self.apart, self._refusals = TokenFragments(self.windows), Refusals(self.windows)

    def take(self, block: Block) -> None:
        windows = self.windows
        for key in self._over:
            self.lost.pop(key, None)
        self._over = []
        self._fit()
        self._processed()
        for position, event in block.others:
            if (handle := _HANDLERS.get(type(event.fact))) is not None:
                handle(self, position, event)
        for key in self.lost:
            self._resume(key)
        self._merge()
        self._overwrite()
        self._hand_on()
        for ends in self._ends.values():  # only now: a learner may end more often in one block
            for number in sorted(ends)[:-ENDS_KEPT]:
                del ends[number]
        self._refusals.wiped, self._newest = windows.wiped.copy(), windows.newest.copy()

    def finish(self) -> None:
        """The log has been read to its end: hand on all steps, as in flight where the log does not say otherwise."""
        self.windows.forget()
        self.settled = []
        for key in [*self.windows]:
            self._retire(key)
        self.windows.forget()

    # -------------------------------------------------------------- tables by slot

    def _fit(self) -> None:
        fit, width = self.windows.fit, self.windows.fragments
        self.apart.done = fit(self.apart.done, NONE, width)
        self._refusals.wiped = fit(self._refusals.wiped, NONE, width)
        self._newest, self._said = fit(self._newest, NONE), fit(self._said, 0)
        self._sums = fit(self._sums, 0, len(FATES))

    def _processed(self) -> None:
        grouped = self.windows.grouped
        assert grouped is not None
        np.add.at(self._said, grouped.step_slots, grouped.steps.tokens)

    # -------------------------------------------------------------- rare facts

    def _on_opened(self, position: int, event: Event) -> None:
        step = event.fact.syncer_step
        self._newest_open = max(self._newest_open, step)
        self._refusals.open(step, position)

    def _on_passed(self, position: int, event: Event) -> None:
        self._passed = max(self._passed, event.fact.syncer_step)

    def _on_ended(self, position: int, event: Event) -> None:
        """The orchestrator's clock may be ahead: only the syncer's own fence tells what may still merge."""
        fact = event.fact
        ends = self._ends.setdefault(fact.learner, {})
        drained = isinstance(fact, LearnerFenced) and fact.reason == "drained"
        fate = "run_ended" if self.ended else "drained" if drained else "killed"
        end = ends.setdefault(fact.incarnation, _End(FATE[fate]))
        if isinstance(fact, LearnerFenced) and not end.epoch:
            end.epoch, end.last_open = event.incarnation, self._newest_open
            end.fate = FATE["drained"] if drained and end.fate == FATE["killed"] else end.fate

    def _on_attached(self, position: int, event: Event) -> None:
        """A fence binds the epoch that set it; a later one is told anew who lives."""
        ends = self._ends.get(event.fact.learner, {})
        end = ends.get(event.fact.incarnation)
        if end is not None and 0 < end.epoch < event.incarnation:
            del ends[event.fact.incarnation]

    def _on_finished(self, position: int, event: Event) -> None:
        self.ended = True

    def _on_resumed(self, position: int, event: Event) -> None:
        """Who ended with the run and continues has not ended; nobody else's contribution is still on its way."""
        self.ended = False
        for learner, ends in self._ends.items():
            stopped = [number for number, end in ends.items() if end.fate == FATE["run_ended"]]
            for number in stopped:
                if learner in event.fact.exact and number == max(ends):
                    del ends[number]
                else:
                    ends[number].passed = True

    def _on_lost(self, position: int, event: Event) -> None:
        key = (event.fact.writer, event.fact.incarnation)
        slot = self.windows.slots.get(key)
        newest = 0
        if slot is not None:
            row = int(self.windows.by(np.array([slot]), np.array([position]))[0]) - 1
            here = row >= 0 and self.windows.rows.slot[row] == slot
            newest = int(self.windows.rows.step[row] if here else self._newest[slot])
        self._resume(key)  # after an earlier loss in this block
        self.lost.setdefault(key, LostSteps()).lose(newest)

    # -------------------------------------------------------------- lost steps

    def _resume(self, key: Key) -> None:
        lost = self.lost.get(key)
        if lost is not None and lost.after != NONE and key in self.windows:
            rows = self.windows[key].rows
            next_ = int(np.searchsorted(rows.step, lost.after, "right"))
            if next_ < len(rows):
                lost.resume(int(rows.step[next_]), int(rows.tokens[next_]))

    def _cover(self, slots: Ints, first: Ints, last: Ints) -> list[tuple[int, int]]:
        """(contribution, tokens of lost steps that it is the first to commit) of this block's contributions."""
        if not self.lost:
            return []
        windows, parts, commits = self.windows, self.records.contributions, self.records.commits
        found = []
        for key, lost in self.lost.items():
            if (slot := windows.slots.get(key)) is None:
                continue
            for row in np.flatnonzero(slots == slot).tolist():
                base_step, step = int(parts.base_step[row]), int(parts.step[row])
                fragment = int(commits.fragment[parts.commit[row]])
                known = int(windows.tokens_in(first[row : row + 1], last[row : row + 1])[0])
                if parts.steps[row] > last[row] - first[row]:
                    found.append((row, lost.cover(base_step, step, fragment, int(parts.tokens[row]), known)))
                # The adoption that it counts from may be lost too.
                windows.wiped[slot, fragment] = max(windows.wiped[slot, fragment], base_step)
        return found

    # -------------------------------------------------------------- commits

    def _merge(self) -> None:
        """Settle what this block's commits cover, and count each step at the first commit that covers it."""
        windows, parts, commits = self.windows, self.records.contributions, self.records.commits
        slots = windows.of_source[parts.learner]
        position = commits.position[parts.commit]
        known = slots >= 0
        first = np.where(known, windows.upto(slots, parts.base_step), 0)
        last = np.where(known, np.minimum(windows.upto(slots, parts.step), windows.by(slots, position)), 0)
        last = np.maximum(first, last)
        self.covered = Covered(slots, first, last)
        at = np.full(len(windows.rows), len(commits.position))  # the first commit that covers each row
        order = np.argsort(slots, kind="stable")
        order = order[known[order]]
        # Most of a contribution was covered before: look only beyond what the incarnation's earlier ones covered.
        reached = np.maximum.accumulate(last[order]) if len(order) else order  # rows ascend by slot
        begin = np.maximum(first[order], np.concatenate([[0], reached[:-1]]))
        assign(at, begin, last[order], parts.commit[order])
        edges = np.bincount(first, minlength=len(at) + 1) - np.bincount(last, minlength=len(at) + 1)
        inside = np.cumsum(edges)[:-1] > 0
        if len(holes := np.flatnonzero(inside & (at == len(commits.position)))):
            again = order[np.searchsorted(holes, first[order]) < np.searchsorted(holes, last[order])]
            whole = np.full(len(at), len(commits.position))
            assign(whole, first[again], last[again], parts.commit[again])
            at[holes] = whole[holes]
        fresh = inside & (windows.rows.fate == PENDING)
        windows.rows.fate[fresh] = FATE[COMMITTED]
        counts = np.zeros(len(commits.position) + 1, np.int64)
        np.add.at(counts, at[fresh], windows.rows.tokens[fresh])
        for row, tokens in self._cover(slots, first, last):
            counts[parts.commit[row]] += tokens
        counted = self.committed + np.cumsum(counts[:-1])
        self.committed_at = counted.tolist()
        self.committed = self.committed_at[-1] if self.committed_at else self.committed
        self._passed = max(self._passed, int(commits.syncer_step.max(initial=0)))
        self.apart.merge(self.records, self._refusals.of, slots, first, last)

    # -------------------------------------------------------------- fates

    def _overwrite(self) -> None:
        """Settle the steps after which every fragment was overwritten: they can no longer be read."""
        windows, rows = self.windows, self.windows.rows
        floor = _floor(windows.wiped, self.apart.count)
        lost = np.flatnonzero((rows.fate == PENDING) & (rows.step <= floor[rows.slot]))
        rows.fate[lost] = FATE["overlap"]
        for key, refusals in self._refusals.of.items():
            here = lost[rows.slot[lost] == windows.slots[key]]
            rows.fate[here] = reasons(rows.step[here], refusals)

    def _end(self, key: Key) -> _End | None:
        ends = self._ends.get(key[0], {})
        if len(ends) >= ENDS_KEPT and key[1] < min(ends):
            return _End(FATE["killed"], passed=True)
        return ends.get(key[1])

    def _hand_on(self) -> None:
        """Hand on what is settled from each incarnation's first step on, and whole incarnations that are over."""
        windows, rows = self.windows, self.windows.rows
        for ends in self._ends.values():
            for end in ends.values():
                end.passed |= end.last_open <= self._passed and end.fate != FATE["run_ended"]
        self.settled = []
        over = [key for key in windows if (ended := self._end(key)) is not None and ended.passed]
        for key in over:
            self._retire(key)
        floor = _floor(self.apart.done, self.apart.count)
        pending = np.flatnonzero((rows.fate == PENDING) & (rows.step <= floor[rows.slot]))
        np.minimum.at(floor, rows.slot[pending], rows.step[pending] - 1)
        slots = np.arange(len(floor))
        first = np.searchsorted(rows.slot, slots).tolist()
        last = windows.upto(slots, floor).tolist()
        for key, slot in windows.slots.items():
            if first[slot] < last[slot] and key not in over:
                self._settle(key, slice(first[slot], last[slot]))
        windows.trim(slots, floor)
        for key in [key for key in self.lost if key in windows and key not in over]:
            self._forget_lost(key, self.lost[key].retire(int(floor[windows.slots[key]]), self.apart.count))
        self._refusals.forget(floor)

    def _settle(self, key: Key, which: slice) -> None:
        rows = self.windows.rows.part(which)
        np.add.at(self._sums[self.windows.slots[key]], rows.fate, rows.tokens)
        self.settled.append(Settled(key, rows))

    def _retire(self, key: Key) -> None:
        """Settle all steps of an incarnation that is over, and forget it."""
        windows, slot, rows = self.windows, self.windows.slots[key], self.windows.rows
        first, last = np.searchsorted(rows.slot, (slot, slot + 1)).tolist()
        otherwise, aside = self._otherwise(key), self._aside_row(key, first, last)
        self.apart.sums += self.apart.beyond(slot, last, otherwise, aside)
        self._aside.pop(key, None)
        fates = rows.fate[first:last]
        fates[:] = _ended(fates, otherwise, aside - first)
        if first < last:
            self._settle(key, slice(first, last))
        if key in self.lost:
            self._forget_lost(key, self.lost[key].retire(MOST, self.apart.count))
            self._over.append(key)
        self._refusals.of.pop(key, None)
        gone = self._gone.setdefault(key[0], Sums())
        gone.fates += self._sums[slot]
        gone.said += int(self._said[slot])
        windows.drop(key)

    def _otherwise(self, key: Key) -> int:
        """The fate of what was neither merged nor overwritten."""
        end = self._end(key)
        if end is not None and (end.fate != FATE["run_ended"] or end.passed):
            return end.fate
        return FATE["run_ended"] if self.ended else PENDING

    def _aside_row(self, key: Key, first: int, last: int) -> int:
        """The row of [first, last) whose samples were set aside; `last` where there is none."""
        steps, aside = self.windows.rows.step[first:last], self._aside.get(key, NONE)
        row = first + int(np.searchsorted(steps, aside))
        return row if row < last and steps[row - first] == aside else last

    def _forget_lost(self, key: Key, gone: Retired) -> None:
        sums = self._gone.setdefault(key[0], Sums())
        sums.fates[FATE[COMMITTED]] += gone.committed
        sums.unknown += gone.unknown
        sums.said += gone.committed + gone.unknown
        self.apart.add_lost(self.apart.sums, self.apart.unknown, gone)

    # -------------------------------------------------------------- the result

    def books(self) -> Books:
        """The books so far: what has no fate yet is in flight, or has the fate of what is left when its learner, or the
        run, has ended.
        """
        windows = self.windows
        windows.forget()
        rows, slots = windows.rows, windows.slots
        learners = {name: Sums(sums.fates.copy(), sums.unknown, sums.said) for name, sums in self._gone.items()}
        shares, unknown = self.apart.sums.copy(), [*self.apart.unknown]
        for key, slot in slots.items():
            sums = learners.setdefault(key[0], Sums())
            first, last = np.searchsorted(rows.slot, (slot, slot + 1)).tolist()
            otherwise, aside = self._otherwise(key), self._aside_row(key, first, last)
            np.add.at(sums.fates, _ended(rows.fate[first:last], otherwise, aside - first), rows.tokens[first:last])
            sums.fates += self._sums[slot]
            sums.said += int(self._said[slot])
            shares += self.apart.beyond(slot, last, otherwise, aside)
            if key in self.lost:
                lost = self.lost[key].sums(self.apart.count)
                sums.fates[FATE[COMMITTED]] += lost.committed
                sums.unknown += lost.unknown
                sums.said += lost.committed + lost.unknown
                self.apart.add_lost(shares, unknown, lost)
        whole = Sums(
            np.sum([sums.fates for sums in learners.values()], axis=0, dtype=np.int64) + nothing(),
            sum(sums.unknown for sums in learners.values()),
            sum(sums.said for sums in learners.values()),
        )
        return Books(
            **vars(whole.ledger),
            by_learner={name: learners[name].ledger for name in sorted(learners) if learners[name].said},
            token_fragments=tuple(Sums(*each, whole.said).ledger for each in zip(shares, unknown, strict=True)),
        )


_HANDLERS: dict[type[Any], Any] = {
    SyncerStarted: lambda keeper, position, event: keeper.apart.widen(len(event.fact.sizes)),
    StepOpened: Bookkeeper._on_opened,
    StepPassed: Bookkeeper._on_passed,
    LearnerAttached: Bookkeeper._on_attached,
    LearnerFenced: Bookkeeper._on_ended,
    LearnerLost: Bookkeeper._on_ended,
    Finished: Bookkeeper._on_finished,
    RunFinished: Bookkeeper._on_finished,
    RunResumed: Bookkeeper._on_resumed,
    SetAside: lambda keeper, position, event: keeper._aside.__setitem__(
        (event.fact.learner, event.fact.incarnation), event.fact.step
    ),
    Refused: lambda keeper, position, event: keeper._refusals.refuse(position, event.fact),
    FactsLost: Bookkeeper._on_lost,
}


def _ended(fates: NDArray[Any], otherwise: int, aside: int) -> Ints:
    """The fates of an incarnation's steps: what is pending has that of its end, or its samples were set aside."""
    ends = np.full(len(fates), otherwise)
    ends[aside : aside + 1] = FATE["set_aside"]
    return np.where(fates == PENDING, ends, fates)


def _floor(table: Ints, fragments: int) -> Ints:
    """By slot, the least over the fragments."""
    if not fragments:
        return np.full(len(table), NONE)
    floor: Ints = table[:, :fragments].min(axis=1)
    return floor
