"""time.* (I12): every second of every learner has one category, and almost none is unexplained.

The accounts use the wall clocks of several processes. Where these contradict causal order or a learner's own count of
seconds, the check is unknown; also where the log lacks a learner's request or its last facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from orchestrator.accounting.records import Records
from orchestrator.accounting.roster import Roster
from orchestrator.accounting.time.accounts import Goodput
from orchestrator.accounting.time.explanations import BLUR_S
from orchestrator.accounting.verdicts import Verdict
from orchestrator.accounting.windows import StepWindows
from orchestrator.checkers.claims import judge, unknown
from orchestrator.eventlog.block import Block, Floats, Ints, Key

UNEXPLAINED_MAX = 0.01  # of the learners' time,
UNEXPLAINED_S = 0.25  # or so many seconds of each, whichever is more
VERSIONS_KEPT = 4096  # commits whose dates adoptions are compared with

NAME = "accounted.time"


class TimeAccounted:
    """A fold. Needs roster, windows and records to take each block first."""

    def __init__(self, roster: Roster, windows: StepWindows, records: Records) -> None:
        self._roster, self._windows, self._records = roster, windows, records
        self._commits = False
        self._unasked: set[Key] = set()  # incarnations that step, though nobody asked for them
        self._never_asked = False  # for one that is gone
        self._told = ""  # the first contradiction
        self._ended: dict[Key, tuple[int, float]] = {}  # the newest step, and when it ended
        self._versions = np.zeros(0, np.int64)  # ascending
        self._made = np.zeros(0)  # when each was, by an epoch of its own

    def take(self, block: Block) -> None:
        self._commits = self._commits or len(self._records.commits.at) > 0
        self._asked()
        if not self._told:
            self._told = next(self._contradictions(block), "")
        for key in [key for key in self._ended if key not in self._windows]:
            del self._ended[key]

    def verdicts(self, goodput: Goodput | None, wanted: dict[str, float]) -> list[Verdict]:
        """`wanted`: for how many seconds of the window each learner was wanted."""
        if not self._commits or self._unasked or self._never_asked:
            return [unknown(NAME, "the log does not tell when every learner was asked for")]
        if self._told:
            return [unknown(NAME, self._told)]
        if goodput is None:
            return [unknown(NAME, "the log has no step before a commit")]
        failures: list[str] = []
        for learner, seconds in goodput.seconds.items():
            total = math.fsum(seconds.values())
            if not abs(total - wanted[learner]) <= 1e-6 * max(1.0, wanted[learner]) or min(seconds.values()) < 0.0:
                failures.append(f"the categories of {learner} sum to {total:.6f} s of {wanted[learner]:.6f} s")
        most = max(UNEXPLAINED_MAX * math.fsum(wanted.values()), UNEXPLAINED_S * len(wanted))
        unexplained = math.fsum(seconds["unattributed"] for seconds in goodput.seconds.values())
        silent = dict(self._silent(goodput))
        if unexplained > most >= unexplained - math.fsum(silent.values()):
            told = f"the log lacks facts of {', '.join(silent)}"
            return [unknown(NAME, told)]
        if unexplained > most:
            worst = max(goodput.seconds, key=lambda learner: goodput.seconds[learner]["unattributed"])
            failures.append(f"{unexplained:.2f} s are unexplained, most of them of {worst}; allowed are {most:.2f} s")
        return [judge(NAME, len(wanted), "learners", failures)]

    def _silent(self, goodput: Goodput) -> Iterator[tuple[str, float]]:
        """Learners whose facts were lost, or without a recorded end though nobody had noticed when the run ended:
        (name, seconds).
        """
        for learner, seconds in goodput.seconds.items():
            newest = self._roster.of(learner)[-1:]
            if learner in self._roster.facts_lost:
                yield learner, seconds["unattributed"]
            elif (
                self._roster.ended
                and newest
                and newest[0].over in ("", "stopped")
                and newest[0].entered("stopped") is None
                and newest[0].stepped is not None
            ):
                silent_s = goodput.stop - newest[0].stepped
                if silent_s > BLUR_S:
                    yield learner, silent_s

    def _asked(self) -> None:
        for key in self._windows.slots:
            incarnation = self._roster.table.get(key)
            if incarnation is not None and incarnation.steps and incarnation.requested is None:
                self._unasked.add(key)
        for key in [*self._unasked]:
            incarnation = self._roster.table.get(key)
            if incarnation is None or incarnation.requested is not None:
                self._unasked.discard(key)
                self._never_asked = self._never_asked or incarnation is None

    # -------------------------------------------------------------- clocks

    def _contradictions(self, block: Block) -> Iterator[str]:
        """Clocks that contradict causality: a step ends before it is merged, a version is adopted after it was made.

        A commit that only a later epoch recorded is left out: its time is unknown.
        """
        commits, parts = self._records.commits, self._records.contributions
        epochs = np.array([number for _, number in block.sources], np.int64)[commits.source]
        own = epochs == commits.epoch
        self._date(commits.syncer_step[own], commits.at[own])
        yield from self._jumps()
        grouped, windows = self._windows.grouped, self._windows
        assert grouped is not None
        adopted, names = grouped.adoptions, {slot: f"{key[0]} {key[1]}" for key, slot in windows.slots.items()}
        if len(self._versions):
            place = np.minimum(np.searchsorted(self._versions, adopted.version), len(self._versions) - 1)
            made = np.where(self._versions[place] == adopted.version, self._made[place], -math.inf)
            for row in np.flatnonzero(adopted.at < made - BLUR_S)[:1].tolist():
                name = names[int(grouped.adoption_slots[row])]
                yield f"{name} adopted version {adopted.version[row]} before it was made: wall clocks differ"
        slots = windows.of_source[parts.learner]
        last = windows.upto(np.maximum(slots, 0), parts.step) - 1
        here = (slots >= 0) & (last >= 0)
        here[here] &= windows.rows.slot[last[here]] == slots[here]
        late = np.flatnonzero(here)[windows.rows.at[last[here]] > commits.at[parts.commit[here]] + BLUR_S]
        for row in late[:1].tolist():
            yield f"{names[int(slots[row])]} finished step {parts.step[row]} after it was merged: wall clocks differ"

    def _date(self, versions: Ints, at: Floats) -> None:
        if len(versions):
            versions, at = np.concatenate([self._versions, versions]), np.concatenate([self._made, at])
            order = np.argsort(versions, kind="stable")[-VERSIONS_KEPT:]
            self._versions, self._made = versions[order], at[order]

    def _jumps(self) -> Iterator[str]:
        grouped, windows = self._windows.grouped, self._windows
        assert grouped is not None
        slots, steps = grouped.step_slots, grouped.steps
        if not len(slots):
            return
        keys = {slot: key for key, slot in windows.slots.items()}
        opens = np.diff(slots, prepend=-1) != 0
        before, number = np.concatenate([[math.nan], steps.at[:-1]]), np.concatenate([[0], steps.step[:-1]])
        first = np.flatnonzero(opens)
        for row in first.tolist():
            number[row], before[row] = self._ended.get(keys[int(slots[row])], (0, math.nan))
        for row in [*(first[1:] - 1).tolist(), len(slots) - 1]:
            self._ended[keys[int(slots[row])]] = (int(steps.step[row]), float(steps.at[row]))
        off = np.abs(steps.at - before - steps.seconds - steps.waited_s) > BLUR_S
        off &= steps.step == number + 1
        for row in np.flatnonzero(off).tolist():
            key = keys[int(slots[row])]
            incarnation = self._roster.table.get(key)
            resumed = () if incarnation is None else incarnation.resumed
            if not any(before[row] < at <= steps.at[row] for at in resumed):  # else in between there was nothing of it
                yield f"the wall clock of {key[0]} {key[1]} jumped before its step {steps.step[row]}"
                return
