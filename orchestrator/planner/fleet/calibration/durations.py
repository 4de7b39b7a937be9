"""The durations in a run's log, as a fold: steps, waits, merges, adoptions, in memory that does not grow with the log.

Times of different processes are compared by their wall clocks, as everywhere in the accounts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from orchestrator.accounting.records import Records
from orchestrator.accounting.sketch import Sketch
from orchestrator.eventlog.block import Block, Floats, Ints, Key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, RunStarted

EXACT = 65_536  # numbers of a kind that are kept as they are
STEPS_KEPT = 4_096  # newest syncer steps of which the commit is known
FAULTS_KEPT = 1_000
BETWEEN_KEPT = 16_384  # intervals; of more every second is left out


class Durations:
    """Needs its `records` to take each block first. Durations are seconds."""

    def __init__(self, records: Records, pool_of: Callable[[str], str]) -> None:
        """`pool_of` gives a learner's pool."""
        self.versions: dict[str, str] | None = None  # of RunStarted
        self.injected: deque[Event] = deque(maxlen=FAULTS_KEPT)
        self.steps: dict[str, Sketch] = {}  # by pool: no first steps of an incarnation, and none that a fault disturbed
        self.first_step = Sketch(EXACT)
        self.waits: dict[str, Sketch] = {}  # by what a step waited for
        self.quorum, self.grace, self.sync = Sketch(EXACT), Sketch(EXACT), Sketch(EXACT)
        self.adopted = Sketch(EXACT)  # merged to adopted
        self.between: Floats = np.empty((0, 2))  # a version came after the one time since its commit, before the other
        self._records, self._pool_of = records, pool_of
        self._disturbed: dict[Key, list[tuple[int, float, float]]] = {}  # fault, from, to, in Unix seconds
        self._ends: dict[str, dict[int, tuple[Ints, Floats]]] = {}  # the two newest steps of the newest incarnations
        self._commits: Floats = np.empty((0, 2))  # syncer step, when
        self._every = 1  # of the intervals one is kept

    def take(self, block: Block) -> None:
        for _, event in block.others:
            self._rare(event)
        self._merged(block)
        adopting, adopted = block.adoptions.source, np.argsort(block.adoptions.source, kind="stable")
        stepping, stepped = block.steps.source, np.argsort(block.steps.source, kind="stable")
        for source in np.union1d(adopting, stepping).tolist():
            rows = _of(stepped, stepping, source)
            ends = self._stepped(block, block.sources[source], rows)
            self._adopted(block, ends, _of(adopted, adopting, source))
        for word in {block.names[code] for code in np.unique(block.steps.waited_for).tolist()} - {""}:
            waiting = block.steps.waited_for == block.code(word)
            self.waits.setdefault(word, Sketch(EXACT)).add(block.steps.waited_s[waiting])

    def _rare(self, event: Event) -> None:
        fact = event.fact
        match fact:
            case RunStarted() if self.versions is None:
                self.versions = dict(fact.versions)
            case FaultInjected():
                self.injected.append(event)
                if fact.fault_kind == "freeze" or fact.delay_s:
                    interval = (fact.fault, event.at, event.at + fact.duration_s)
                    self._disturbed.setdefault((fact.target, fact.incarnation), []).append(interval)
                    if sum(map(len, self._disturbed.values())) > FAULTS_KEPT:
                        oldest = next(iter(self._disturbed))
                        del self._disturbed[oldest]
            case FaultHealed():
                for key, intervals in self._disturbed.items():
                    self._disturbed[key] = [
                        (fault, start, max(stop, event.at) if fault == fact.fault else stop)
                        for fault, start, stop in intervals
                    ]

    def _merged(self, block: Block) -> None:
        commits = self._records.commits
        for sketch, column in (
            (self.quorum, commits.quorum_s),
            (self.grace, commits.grace_s),
            (self.sync, commits.sync_s),
        ):
            sketch.add(column)
        self._commits = np.concatenate([self._commits, np.column_stack([commits.syncer_step, commits.at])])

    def _stepped(self, block: Block, key: Key, rows: Ints) -> tuple[Ints, Floats]:
        """Count one incarnation's steps; returns the numbers and ends of its newest ones, this block's included."""
        known = self._ends.setdefault(key[0], {})
        before = known.get(key[1], (np.empty(0, np.int64), np.empty(0)))
        steps = block.steps
        step = np.concatenate([before[0], steps.step[rows]])
        at = np.concatenate([before[1], steps.at[rows]])
        if len(rows):
            seconds, ends = steps.seconds[rows], steps.at[rows]
            alone = np.ones(len(rows), bool)
            if key[1] not in known:
                self.first_step.add(seconds[0])
                alone[0] = False
            for _, start, stop in self._disturbed.get(key, ()):
                alone &= ~((start < ends) & (ends - seconds < stop))
            self.steps.setdefault(self._pool_of(key[0]), Sketch(EXACT)).add(seconds[alone])
            known[key[1]] = step[-2:], at[-2:]
            while len(known) > 2:
                del known[min(known)]
        return step, at

    def _adopted(self, block: Block, ends: tuple[Ints, Floats], rows: Ints) -> None:
        adoptions, (step, at) = block.adoptions, ends
        rows = rows[adoptions.mode[rows] != block.code("bootstrap")]
        if not len(rows) or not len(step) or not len(self._commits):
            return
        version, after, when = adoptions.version[rows], adoptions.after_step[rows], adoptions.at[rows]
        made = np.minimum(np.searchsorted(self._commits[:, 0], version), len(self._commits) - 1)
        since = when - self._commits[made, 1]
        last = np.minimum(np.searchsorted(step, after), len(step) - 1)
        known = (self._commits[made, 0] == version) & (step[last] == after) & (since >= 0)
        self.adopted.add(since[known])
        prior = np.minimum(np.searchsorted(step, after - 1), len(step) - 1)
        first = np.where(step[prior] == after - 1, np.maximum(0.0, at[prior] - self._commits[made, 1]), 0.0)
        self.between = np.concatenate([self.between, np.column_stack([first, since])[known][:: self._every]])
        if len(self.between) > BETWEEN_KEPT:
            self.between, self._every = self.between[::2], 2 * self._every
        self._commits = self._commits[-STEPS_KEPT:]


def _of(order: Ints, sources: Ints, source: int) -> Ints:
    """The rows of this source, of rows that were put in the order of their sources."""
    first, last = np.searchsorted(sources[order], [source, source + 1]).tolist()
    return order[first:last]
