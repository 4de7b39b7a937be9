"""live.* (I5): while K learners are alive every fragment keeps committing, and it does so again after a fault.

Between two commits of a fragment each participant of the second has finished some steps. A gap is too long if each of
them finished more than PACE x (H + tau) in it, and took for them, by its own monotonic clock, more than

    PACE x (H + tau) x the slowest learner's median step + H x the longest grace + (1 + troubles) x patience

seconds, and if the syncer's own times agree, unless they run backwards. Patience is a read timeout, a lease and 1 s
to resend. Troubles are the facts in between other than steps, spans and commits; of those that a step may repeat
(reopened, read failed, refused) one of a kind counts per syncer step, so retrying for ever is no excuse. Gaps without
trouble are checked as the rate, those with trouble as the recovery. Time for which the store was away (StoreWaited)
does not count. A gap is not judged if fewer than K learners may
have been healthy: alive by the syncer's facts, not leaving, and without a fault that prevents contributions. No two
clocks are compared, so a clock that jumps makes no gap too long.

The slowest median and the longest grace are known at the end, so the longest gaps are kept until then. Medians of many
steps are known to 1 %: the smaller value counts, so the limit is never too high.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from orchestrator.accounting.records import Records
from orchestrator.accounting.roster import Roster
from orchestrator.accounting.sketch import Sketch
from orchestrator.accounting.verdicts import Verdict
from orchestrator.accounting.windows import StepWindows
from orchestrator.checkers.claims import judge
from orchestrator.checkers.timeline import Gap, LogTimeline, TimelineMark
from orchestrator.eventlog.block import NONE, Block, Floats, Ints, Key
from outer.protocol.facts import SyncerStarted
from outer.protocol.leases import longest_s

PACE = 3  # so many rounds, where one would do
LEASE_STEPS = 5.0  # a lease lasts at least so many steps
RESEND_S = 1.0
LONG_GAPS = 256  # that are kept


class Liveness:
    """A fold. Needs roster, windows and records to take each block first."""

    def __init__(self, roster: Roster, windows: StepWindows, records: Records) -> None:
        self._roster, self._windows, self._records = roster, windows, records
        self._timeline = LogTimeline()
        self._commits = 0
        self._calm, self._troubled = 0, 0
        self._long: list[Gap] = []
        self._marks: dict[int, TimelineMark] = {}  # by fragment, its newest commit
        self._reads: dict[int, dict[Key, tuple[int, float]]] = {}  # by fragment, of that commit: steps and clock read
        self._rebased: dict[tuple[Key, int], tuple[int, int]] = {}  # (version, after step) adopted last, by fragment
        self._grace_s = 0.0
        self._seconds: dict[Key, Sketch] = {}  # of steps
        self._stepped: dict[Key, tuple[int, float]] = {}  # steps finished, and the seconds they took
        self._slowest_s = 0.0  # the slowest median of incarnations that are gone

    def take(self, block: Block) -> None:
        self._pace()
        commits = self._records.commits
        fewest, least = self._progress(block)
        if len(commits.at):
            self._commits += len(commits.at)
            self._grace_s = max(self._grace_s, float(commits.grace_s.max()))
        for index, mark in self._timeline.follow(block, commits):
            fragment = int(commits.fragment[index])
            before, self._marks[fragment] = self._marks.get(fragment), mark
            if self._roster.rules is not None:
                self._judge(self._roster.rules, fragment, before, mark, int(fewest[index]), float(least[index]))
        self._timeline.forget(self._marks.values())

    def verdicts(self) -> list[Verdict]:
        rules = self._roster.rules
        long, calm, troubled = [*self._long], self._calm, self._troubled
        slow: list[str] = []
        lost: list[str] = []
        if rules is None or not (self._commits or self._timeline.finished):
            calm = troubled = 0
        else:
            for gap in self._last(rules):
                calm, troubled = (calm + 1, troubled) if gap.calm else (calm, troubled + 1)
                long.append(gap)
            limits = _Limits(rules, self._slowest(), self._grace_s)
            for gap in long:
                if limits.exceeded(gap, self._timeline):
                    (slow if gap.calm else lost).append(limits.words(gap))
        not_exercised = (
            "whenever there was trouble, fewer than K learners may have been alive"
            if self._timeline.losses
            else "nothing went wrong"
        )
        return [
            judge("live.rate", calm, "gaps between commits", slow),
            judge("live.recovery", troubled, "gaps with trouble", lost, not_exercised if calm else ""),
        ]

    # -------------------------------------------------------------- gaps

    def _judge(
        self,
        rules: SyncerStarted,
        fragment: int,
        before: TimelineMark | None,
        now: TimelineMark,
        steps: int,
        seconds: float,
    ) -> None:
        if self._timeline.alive(before, now, rules.quorum) < rules.quorum:
            return
        gap = self._timeline.gap(fragment, before, now, steps, seconds)
        self._calm, self._troubled = (self._calm + gap.calm, self._troubled + (not gap.calm))
        if steps > _steps_allowed(rules):
            self._long = _longest([*self._long, gap])

    def _last(self, rules: SyncerStarted) -> Iterator[Gap]:
        """The gaps from each fragment's last commit, or from the start, to the end."""
        end, table = self._timeline.end, self._roster.table
        left = [key for key in self._stepped if key in table and table[key].over in ("", "stopped")]
        for fragment in range(len(rules.sizes)):
            before, since = self._marks.get(fragment), self._reads.get(fragment)
            begins = dict.fromkeys(left, (0, 0.0)) if since is None else since
            spans = [(*self._stepped[key], *begins[key]) for key in left if key in begins]
            if len(spans) < rules.quorum or self._timeline.alive(before, end, rules.quorum) < rules.quorum:
                continue
            fewest = min(steps - first for steps, _, first, _ in spans)
            least = min(clock - begin for _, clock, _, begin in spans)
            yield self._timeline.gap(fragment, before, end, fewest, least)

    # -------------------------------------------------------------- the learners' progress

    def _progress(self, block: Block) -> tuple[Ints, Floats]:
        """By commit, the steps that each participant finished in the gap before it, and their seconds, at least.

        An old base was there before the gap: of its steps nobody knows how many are in it. None are, where all are old.
        """
        windows, parts, commits = self._windows, self._records.contributions, self._records.commits
        slots = windows.of_source[parts.learner]
        fragments = commits.fragment[parts.commit]
        last = self._finished(slots, parts.step)
        first = self._finished(slots, np.maximum(parts.base_step, self._adopted(slots, fragments)))
        self._resume(block, fragments, last, first)
        sizes = np.diff(commits.first)
        fewest, least = np.full(len(sizes), sys.maxsize), np.full(len(sizes), math.inf)
        if len(parts.step):
            some, late = np.flatnonzero(sizes), parts.age > 0
            fewest[some] = np.minimum.reduceat(np.where(late, sys.maxsize, last[0] - first[0]), commits.first[some])
            least[some] = np.minimum.reduceat(np.where(late, math.inf, last[1] - first[1]), commits.first[some])
            fewest[some[np.isinf(least[some])]] = 0
        return fewest, least

    def _finished(self, slots: Ints, steps: Ints) -> tuple[Ints, Floats]:
        """How many steps each of these incarnations had finished by this step, and the seconds they took."""
        windows, rows = self._windows, self._windows.rows
        if not len(rows):
            return np.zeros(len(slots), np.int64), np.zeros(len(slots))
        known, slots = slots >= 0, np.maximum(slots, 0)
        begin, end = np.searchsorted(rows.slot, slots), np.searchsorted(rows.slot, slots, "right")
        after = np.clip(windows.upto(slots, steps), begin, end)
        count = np.where(known, windows.count[slots] - (end - after), 0)
        row = np.minimum(np.maximum(after - 1, begin), len(rows) - 1)
        clock = rows.clock_upto[row] - np.where(after > begin, 0.0, rows.seconds[row] + rows.waited_s[row])
        clock = np.where(end > begin, clock, windows.clock[slots])
        return count, np.where(known, clock, 0.0)

    def _adopted(self, slots: Ints, fragments: Ints) -> Ints:
        """By contribution, the step after which the base was adopted, where a rebase lets it count from earlier."""
        windows, commits, parts = self._windows, self._records.commits, self._records.contributions
        grouped = windows.grouped
        assert grouped is not None
        after = np.full(len(slots), NONE)
        keys = (
            {slot: key for key, slot in windows.slots.items()} if self._rebased or len(grouped.adoption_slots) else {}
        )
        table = [
            (slot, fragment, version, step)
            for (key, fragment), (version, step) in self._rebased.items()
            if (slot := windows.slots.get(key)) is not None
        ]
        rebased = np.flatnonzero(~grouped.overwrites)
        adopted = grouped.adoptions
        columns = (grouped.adoption_slots, adopted.fragment, adopted.version, adopted.after_step)
        table += zip(*(column[rebased].tolist() for column in columns), strict=True)
        if not table:
            return after
        found = {row[:3]: row[3] for row in table}
        bases = commits.base_version[parts.commit]
        for place, row in enumerate(zip(slots.tolist(), fragments.tolist(), bases.tolist(), strict=True)):
            after[place] = found.get(row, NONE)
        self._rebased = {(keys[slot], fragment): (version, step) for slot, fragment, version, step in table}
        return after

    def _resume(self, block: Block, fragments: Ints, last: tuple[Ints, Floats], first: tuple[Ints, Floats]) -> None:
        """Where a learner took part in the fragment's commit before, its progress counts from what was read then."""
        parts, commits = self._records.contributions, self._records.commits
        previous = np.full(len(commits.at), NONE)
        newest: dict[int, int] = {}
        for index, fragment in enumerate(commits.fragment.tolist()):
            previous[index] = newest.get(fragment, NONE)
            newest[fragment] = index
        if not len(parts.step):
            self._reads |= {fragment: {} for fragment in newest}
            return
        before = previous[parts.commit]
        width = len(block.sources)
        place, wanted = parts.commit * width + parts.learner, before * width + parts.learner
        order = np.argsort(place, kind="stable")
        found = order[np.minimum(np.searchsorted(place[order], wanted, "right") - 1, len(order) - 1)]
        same = (before != NONE) & (place[found] == wanted)
        for values, origin in zip(last, first, strict=True):
            origin[same] = values[found[same]]
        for row in np.flatnonzero(before == NONE).tolist():
            since = self._reads.get(int(fragments[row]), {}).get(block.sources[int(parts.learner[row])])
            if since is not None:
                first[0][row], first[1][row] = since
        for fragment, index in newest.items():
            rows = range(int(commits.first[index]), int(commits.first[index + 1]))
            self._reads[fragment] = {
                block.sources[int(parts.learner[row])]: (int(last[0][row]), float(last[1][row])) for row in rows
            }

    # -------------------------------------------------------------- how long steps take

    def _pace(self) -> None:
        windows = self._windows
        grouped = windows.grouped
        assert grouped is not None
        if len(grouped.step_slots):
            keys = {slot: key for key, slot in windows.slots.items()}
            first = np.flatnonzero(np.diff(grouped.step_slots, prepend=-1))
            for begin, seconds in zip(first.tolist(), np.split(grouped.steps.seconds, first[1:]), strict=True):
                slot = int(grouped.step_slots[begin])
                self._seconds.setdefault(keys[slot], Sketch()).add(seconds)
                self._stepped[keys[slot]] = (int(windows.count[slot]), float(windows.clock[slot]))
        for key in [key for key in self._seconds if key not in windows]:
            self._slowest_s = max(self._slowest_s, median_at_least(self._seconds.pop(key)))
            del self._stepped[key]

    def _slowest(self) -> float:
        return max([self._slowest_s, *map(median_at_least, self._seconds.values())])


def median_at_least(seconds: Sketch) -> float:
    """The median seconds of three steps or more, or up to 1 % less; 0 of fewer."""
    count = seconds.count
    return seconds.quantile((count // 2 + 0.5) / count)[0] if count >= 3 else 0.0


def _steps_allowed(rules: SyncerStarted) -> int:
    return PACE * (rules.round_steps + rules.overlap_steps)


def _longest(gaps: list[Gap]) -> list[Gap]:
    """Without those that cannot exceed a limit unless another one does, which has fewer troubles and is longer."""
    kept: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: (gap.calm, gap.troubles, -gap.least)):
        if not kept or gap.calm != kept[-1].calm or gap.least > kept[-1].least:
            kept.append(gap)
    return kept if len(kept) <= LONG_GAPS else sorted(kept, key=lambda gap: -gap.least)[:LONG_GAPS]


class _Limits:
    """The longest gap that is allowed."""

    def __init__(self, rules: SyncerStarted, slowest_s: float, grace_s: float) -> None:
        lease = max(rules.lease_s, LEASE_STEPS * slowest_s)
        self._steps = _steps_allowed(rules)
        self._seconds = self._steps * slowest_s + rules.round_steps * grace_s
        largest = 4 * max(rules.sizes, default=0)
        self._patience_s = longest_s(rules.read_timeout_s, largest) + lease + RESEND_S

    def _allowed(self, gap: Gap) -> float:
        return self._seconds + (1 + gap.troubles) * self._patience_s

    def exceeded(self, gap: Gap, timeline: LogTimeline) -> bool:
        """Whether every measure of the gap exceeds its limit."""
        allowed = self._allowed(gap)
        if gap.steps <= self._steps or gap.seconds <= allowed:
            return False
        return gap.dated is None or gap.epoch in timeline.backwards or gap.dated > allowed

    def words(self, gap: Gap) -> str:
        since = "the start" if gap.since is None else f"version {gap.since}"
        return (
            f"fragment {gap.fragment} had no commit for {gap.seconds:.1f} s after {since}, while each of those "
            f"that could take part finished {gap.steps} steps; allowed are {self._steps} steps or "
            f"{self._allowed(gap):.1f} s"
        )
