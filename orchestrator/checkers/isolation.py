"""isolation.* (I6): when a learner is lost or falls silent, the others' steps take as long as before.

Before and after are told apart by the commits on both sides: each names the step at which a survivor was read, so that
no clocks are compared. A survivor was held up if, in the WINDOW steps after, its median step took more than RATIO times
that of those before and EXTRA_S, or its longest more than RATIO times their longest and STALL_S. Troubles of a
host itself are not in the log, so losses are judged only where faults were injected: steps of learners with faults of
their own are left out, and the check fails where every other survivor was held up. Waiting time does not count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.accounting.records import Records
from orchestrator.accounting.roster import Incarnation, Roster
from orchestrator.accounting.verdicts import Verdict
from orchestrator.accounting.windows import StepWindows
from orchestrator.checkers.claims import judge
from orchestrator.eventlog.block import Block, Floats, Ints, Key
from outer.protocol.facts import LearnerFenced, LeaseExpired

RATIO, EXTRA_S, STALL_S = 3.0, 0.05, 2.0
WINDOW, FEWEST = 40, 8  # learner steps
LEAVING = frozenset({"stopped", "drained", "superseded"})
BLUR_S = 1.0  # of the dates of two processes, where a survivor's own faults are looked for
LOSSES_KEPT = 64  # that wait for later steps: the newest
FAILURES_KEPT = 8  # in words

Reads = dict[Key, tuple[Ints, Ints]]  # by incarnation, positions and steps of its reads in a block's commits
_NONE = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(eq=False)
class _Newest:
    """One incarnation's newest steps, arrays of [n]: from WINDOW before its newest read on."""

    step: Ints
    at: Floats
    seconds: Floats
    read: int = 0  # the step of its newest read


@dataclass(eq=False)
class _Stretch:
    """A survivor's steps before and after a loss."""

    key: Key
    before: list[float]  # seconds of steps, ascending
    begin: float  # when the first of them ended
    end: float  # when the last of those after ended
    upto: int  # the last step after
    after: list[float]
    again: bool  # it was read after the loss
    told: str | None = None  # how it was held up, once no more steps are awaited; None: it is not judged
    over: bool = False


@dataclass(eq=False)
class _Loss:
    name: str
    stretches: list[_Stretch]


class Isolation:
    """A fold. Needs roster, windows and records to take each block first."""

    def __init__(self, roster: Roster, windows: StepWindows, records: Records) -> None:
        self._roster, self._windows, self._records = roster, windows, records
        self._newest: dict[Key, _Newest] = {}
        self._losses: deque[_Loss] = deque()
        self._committed, self._lost = False, False
        self._checked, self._failures = 0, 0
        self._words: list[str] = []

    def take(self, block: Block) -> None:
        self._committed = self._committed or len(self._records.commits.at) > 0
        reads = self._reads(block)
        for loss in self._losses:
            for stretch in loss.stretches:
                stretch.again = stretch.again or stretch.key in reads
        self._append()
        for position, event in block.others:
            fact = event.fact
            if isinstance(fact, LeaseExpired) or (isinstance(fact, LearnerFenced) and fact.reason not in LEAVING):
                self._lose(position, (fact.learner, fact.incarnation), reads)
        self._extend()
        self._trim(reads)

    def verdicts(self) -> list[Verdict]:
        not_exercised = "no learner was lost while others stepped on" if self._committed else ""
        checked, failures = self._checked, self._words + ["another"] * (self._failures - len(self._words))
        for loss in self._losses:
            told = [stretch.told if stretch.over else self._told(stretch) for stretch in loss.stretches]
            checked, failures = checked + _judged(told), failures + _failure(loss, told)
        if self._lost and not self._roster.faults:
            checked, failures = 0, []
            not_exercised = "no fault was injected: troubles of the hosts are not in the log"
        return [judge("isolation.steps", checked, "losses", failures, not_exercised)]

    # -------------------------------------------------------------- steps and reads

    def _reads(self, block: Block) -> Reads:
        parts, commits = self._records.contributions, self._records.commits
        if not len(parts.step):
            return {}
        order = np.argsort(parts.learner, kind="stable")
        first = np.flatnonzero(np.diff(parts.learner[order], prepend=-1))
        positions = np.split(commits.position[parts.commit[order]], first[1:])
        steps = np.split(parts.step[order], first[1:])
        keys = [block.sources[source] for source in parts.learner[order][first].tolist()]
        return dict(zip(keys, zip(positions, steps, strict=True), strict=True))

    def _append(self) -> None:
        grouped = self._windows.grouped
        assert grouped is not None
        if not len(grouped.step_slots):
            return
        keys = {slot: key for key, slot in self._windows.slots.items()}
        first = np.flatnonzero(np.diff(grouped.step_slots, prepend=-1))
        steps = grouped.steps
        for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(steps.step)], strict=True):
            key = keys[int(grouped.step_slots[begin])]
            new = _Newest(steps.step[begin:end], steps.at[begin:end], steps.seconds[begin:end])
            if (one := self._newest.get(key)) is not None:
                new.step, new.at = np.concatenate([one.step, new.step]), np.concatenate([one.at, new.at])
                new.seconds, new.read = np.concatenate([one.seconds, new.seconds]), one.read
            self._newest[key] = new

    def _trim(self, reads: Reads) -> None:
        for key in [key for key in self._newest if key not in self._windows]:
            del self._newest[key]
        for key, (_, steps) in reads.items():
            if (one := self._newest.get(key)) is not None:
                one.read = int(steps[-1])
                begin = max(0, int(np.searchsorted(one.step, one.read, "right")) - WINDOW)
                one.step, one.at, one.seconds = one.step[begin:], one.at[begin:], one.seconds[begin:]

    # -------------------------------------------------------------- losses

    def _lose(self, position: int, lost: Key, reads: Reads) -> None:
        stretches = []
        for key, one in self._newest.items():
            positions, steps = reads.get(key, _NONE)
            last = int(np.searchsorted(positions, position))
            read = int(steps[last - 1]) if last else one.read
            middle = int(np.searchsorted(one.step, read, "right"))
            first = max(0, middle - WINDOW)
            if key[0] != lost[0] and read and middle - first >= FEWEST:
                begin, before = float(one.at[first]), sorted(one.seconds[first:middle].tolist())
                stretches.append(_Stretch(key, before, begin, begin, read, [], last < len(positions)))
        self._lost = True
        self._losses.append(_Loss(f"{lost[0]} {lost[1]}", stretches))

    def _extend(self) -> None:
        """Add the steps after each loss, and judge those that no more is awaited of."""
        for loss in self._losses:
            for stretch in loss.stretches:
                if not stretch.over:
                    one = self._newest[stretch.key]
                    first = int(np.searchsorted(one.step, stretch.upto, "right"))
                    after = slice(first, first + WINDOW - len(stretch.after))
                    if len(steps := one.step[after]):
                        stretch.after += one.seconds[after].tolist()
                        stretch.upto, stretch.end = int(steps[-1]), float(one.at[after][-1])
                    full = stretch.again and len(stretch.after) == WINDOW
                    stretch.over = full or stretch.key not in self._windows
                    stretch.told = self._told(stretch) if stretch.over else None
        while self._losses and (len(self._losses) > LOSSES_KEPT or all(one.over for one in self._losses[0].stretches)):
            loss = self._losses.popleft()
            told = [stretch.told for stretch in loss.stretches]
            self._checked += _judged(told)
            if failure := _failure(loss, told):
                self._failures += 1
                self._words = [*self._words, *failure][:FAILURES_KEPT]

    def _told(self, stretch: _Stretch) -> str | None:
        """How it was held up, in words; empty if it was not; None if it is not judged."""
        incarnation = self._roster.table.get(stretch.key)
        if incarnation is None or not stretch.again or len(stretch.after) < FEWEST:
            return None
        if _had_faults(incarnation, stretch.begin, stretch.end):
            return None
        return _held_up(stretch.key, stretch.before, sorted(stretch.after))


def _judged(told: Sequence[str | None]) -> bool:
    return any(words is not None for words in told)


def _failure(loss: _Loss, told: Sequence[str | None]) -> list[str]:
    """In words, if every survivor that is judged was held up."""
    judged = [words for words in told if words is not None]
    return [f"when {loss.name} was lost, {judged[0]}"] if judged and all(judged) else []


def _held_up(key: Key, before: Sequence[float], after: Sequence[float]) -> str:
    """How it was held up, in words; empty if it was not. Inputs: step seconds, ascending."""
    name = f"step of {key[0]} {key[1]} rose from"
    medians = before[len(before) // 2], after[len(after) // 2]
    if medians[1] > RATIO * medians[0] + EXTRA_S:
        return f"the median {name} {medians[0]:.3f} s to {medians[1]:.3f} s"
    if after[-1] > RATIO * before[-1] + STALL_S:
        return f"the longest {name} {before[-1]:.3f} s to {after[-1]:.3f} s"
    return ""


def _had_faults(incarnation: Incarnation, start: float, stop: float) -> bool:
    """Whether it had faults of its own in this interval, by the recorded times."""
    times = [(at, math.inf if until is None else until) for at, until in incarnation.expired]
    times += [(begin, end) for _, begin, end in incarnation.freezes]
    times += [(one.at, one.at + one.duration_s) for one in incarnation.faults if one.kind != "freeze"]
    return any(begin <= stop + BLUR_S and end >= start - BLUR_S for begin, end in times)
