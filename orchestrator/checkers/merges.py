"""merges.* (I3, counted once): what went into a commit, how often, and with what weight; and finite.commits (I7).

A contribution's counters must be those of its learner's own facts. Where facts of its incarnation were lost, what is
known of them may not say more than its counters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import CheckState, MergedRows
from orchestrator.eventlog.block import NONE, Block, Ints
from orchestrator.eventlog.facts import Evaluated
from outer.protocol.facts import Finished, LearnerAttached, StepOpened

TOLERANCE = 1e-9  # of a weight
OPEN_KEPT = 1024  # newest syncer steps of which it is known whether they were opened
ADOPTIONS_KEPT = 3  # newest of each incarnation and fragment, beside the base window's
ENDLESS = 1 << 40  # syncer steps
BY_SLOT = 1 << 12  # more than there are fragments
STEP_BITS = 36  # of a step number


def _ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass
class Merges:
    state: CheckState
    once: Failures = field(default_factory=Failures)
    ranges: Failures = field(default_factory=Failures)
    weights: Failures = field(default_factory=Failures)
    quorum: Failures = field(default_factory=Failures)
    live: Failures = field(default_factory=Failures)
    counters: Failures = field(default_factory=Failures)
    current: Failures = field(default_factory=Failures)
    closed: Failures = field(default_factory=Failures)
    finite: Failures = field(default_factory=Failures)
    with_rules: int = 0  # commits
    _bases: Bases = field(default_factory=lambda: Bases())
    _attached: int = 0  # learners that ever attached
    _names: set[str] = field(default_factory=set)  # of these
    _opened: dict[int, None] = field(default_factory=dict)  # syncer steps, in the order of opening
    _finished: int = NONE  # the step at which the syncer finished

    def take(self, block: Block) -> None:
        merged = self.state.merged
        assert merged is not None
        self._bases.take(self.state)
        self._closed()
        distinct = self._once(merged)
        self._quorum(distinct)
        self._ranges(merged)
        self._weights(merged)
        self._counters(merged)
        self._current(merged)
        self._finite(block)

    def _once(self, merged: MergedRows) -> Ints:
        """How many different learners each commit has."""
        width = len(self.state.names) + 1
        place = merged.parts.commit * width + merged.learner
        distinct, counts = np.unique(place, return_counts=True)
        for each in np.flatnonzero(counts > 1).tolist():
            name = next(name for name, code in self.state.names.items() if code == distinct[each] % width)
            commit = self.state.commits[int(distinct[each] // width)]
            self.once.add(f"{name} merged {counts[each]} times at syncer step {commit.syncer_step}")
        return np.bincount(distinct // width, minlength=len(self.state.commits))

    def _quorum(self, distinct: Ints) -> None:
        for commit, learners in zip(self.state.commits, distinct.tolist(), strict=True):
            if (rules := self.state.rules.get(commit.said)) is not None:
                self.with_rules += 1
                if learners < rules.quorum:
                    self.quorum.add(
                        f"syncer step {commit.syncer_step} committed with {commit.participants} participants, "
                        f"the quorum is {rules.quorum}"
                    )

    def _ranges(self, merged: MergedRows) -> None:
        for name, _, one in self.state.contributions(merged.parts.base_step < merged.before):
            self.ranges.add(f"steps of {name} after {one.base_step} merged twice into it")

    def _weights(self, merged: MergedRows) -> None:
        """By the rule that the epoch names, normalised over the commit.

        Of a contribution on an older base at most H steps count, divided by 1 + age.
        """
        parts, size = merged.parts, len(self.state.commits)
        started = [
            self.state.rules.get(commit.said, self.state.rules.get(self.state.newest_epoch))
            for commit in self.state.commits
        ]
        rules = np.array([fact.weights if fact else "paper" for fact in started], np.str_)[parts.commit]
        empty = (parts.steps < 1) | (parts.tokens < 1)
        without = np.bincount(parts.commit[empty], minlength=size) > 0
        tokens = parts.tokens.astype(np.float64)
        raw = np.select(
            [rules == "paper", rules == "tokens"], [tokens * tokens / np.maximum(parts.steps, 1), tokens], 1.0
        )
        rounds, _ = self._rules(merged)
        late = parts.age > 0
        counted = np.where(rules == "equal", 1.0, np.minimum(1.0, rounds / np.maximum(parts.steps, 1)))
        raw[late] *= counted[late] / (1 + parts.age[late])
        given, total = (np.bincount(parts.commit, column, minlength=size) for column in (parts.weight, raw))
        for index in np.flatnonzero(without).tolist():
            self.weights.add(f"{self._weights_of(index)} include a contribution without steps or tokens")
        for index in np.flatnonzero(~without & ~(np.abs(given - 1.0) <= TOLERANCE)).tolist():
            self.weights.add(f"{self._weights_of(index)} sum to {given[index]!r}")
        with np.errstate(divide="ignore", invalid="ignore"):
            due = raw / total[parts.commit]
        wrong = ~without[parts.commit] & ~(np.abs(parts.weight - due) <= TOLERANCE)
        for row in np.flatnonzero(wrong).tolist():
            name = self.state.sources[int(parts.learner[row])][0]
            told = f"{name} has {float(parts.weight[row])!r}, due is {float(due[row])!r}"
            self.weights.add(f"{self._weights_of(int(parts.commit[row]))}: {told}")

    def _rules(self, merged: MergedRows) -> tuple[Ints, Ints]:
        """By contribution, H and the base window; without its epoch's settings, a round without end."""
        rules = [self.state.rules.get(commit.said) for commit in self.state.commits]
        rounds = np.array([each.round_steps if each else ENDLESS for each in rules], np.int64)
        windows = np.array([each.base_window if each else ENDLESS for each in rules], np.int64)
        return rounds[merged.parts.commit], windows[merged.parts.commit]

    def _weights_of(self, index: int) -> str:
        return f"the weights at syncer step {self.state.commits[index].syncer_step}"

    def _counters(self, merged: MergedRows) -> None:
        parts = merged.parts
        count = merged.last - merged.first
        total = self.state.windows.tokens_in(merged.first, merged.last)
        wrong = (parts.steps != count) | (parts.tokens != total)
        wrong &= ~(merged.lost & (count < parts.steps) & (total <= parts.tokens))
        wrong |= parts.steps != parts.step - parts.base_step
        rows = np.flatnonzero(wrong).tolist()
        for row, (name, _, one) in zip(rows, self.state.contributions(wrong), strict=True):
            self.counters.add(
                f"{name} counts {one.steps} steps and {one.tokens} tokens in ({one.base_step}, {one.step}], "
                f"the learner said {count[row]} and {total[row]}"
            )

    def _current(self, merged: MergedRows) -> None:
        """The newest adoption before the last step read is of the version merged onto, or of one that is as many
        rounds older as the contribution's age, within the window; and counting began there.

        An adoption at the boundary of the read came after the read. With rebase, counting may have begun earlier: what
        accrued since the read, or since the older base, is kept; and a learner that no longer steps may be read again
        after it has rebased. An adoption whose fact was lost is not missed.
        """
        rounds, window = self._rules(merged)
        age, newest = merged.parts.age, self.state.records.commits.base_version[merged.parts.commit]
        for name, _, one in self.state.contributions((age < 0) | (age > window)):
            self.current.add(f"{name} has a base {one.age} rounds behind")
        wanted = np.where(age > 0, np.maximum(newest - age * np.where(age > 0, rounds, 0), 0), newest)
        found = self._bases.of(self.state, merged, wanted)
        known, base = found >= 0, np.maximum(found, 0)
        if not len(self._bases.place):
            known = np.zeros(len(found), bool)
            version, after, zeroed = wanted, wanted, known
        else:
            version, after = self._bases.version[base], self._bases.after[base]
            zeroed = self._bases.zeroed[base]
        counts_from = merged.parts.base_step
        stale = known & (version != wanted)
        off = known & ~stale & ((counts_from > after) | (zeroed & (counts_from != after)))
        told = ~merged.lost
        for name, _, one in self.state.contributions(~known & told):
            self.current.add(f"{name} had adopted no version before step {one.step}")
        for row, (name, _, _) in zip(
            np.flatnonzero(stale & told).tolist(), self.state.contributions(stale & told), strict=True
        ):
            self.current.add(f"{name} was based on version {version[row]}, not {wanted[row]}")
        for row, (name, _, one) in zip(
            np.flatnonzero(off & told).tolist(), self.state.contributions(off & told), strict=True
        ):
            self.current.add(f"{name} counts from {one.base_step}, its base came after {after[row]}")

    def _closed(self) -> None:
        """A step opens before it commits, and once the budget is reached nothing commits. A live learner has attached
        before; a participant is live when it is read.
        """
        for _, _, fact, index in self.state.story:
            if fact is None:
                commit = self.state.commits[index]
                if self._finished != NONE:
                    self.closed.add(
                        f"syncer step {commit.syncer_step} committed after the end at step {self._finished}"
                    )
                elif commit.syncer_step not in self._opened:
                    self.closed.add(f"syncer step {commit.syncer_step} committed without having been opened")
                if not commit.participants <= commit.live <= len(self._names):
                    self.live.add(
                        f"syncer step {commit.syncer_step} tells of {commit.live} live learners, "
                        f"{commit.participants} took part and {len(self._names)} had ever attached"
                    )
            elif isinstance(fact, StepOpened):
                self._opened[fact.syncer_step] = None
                if len(self._opened) > OPEN_KEPT:
                    del self._opened[next(iter(self._opened))]
            elif isinstance(fact, LearnerAttached):
                self._names.add(fact.learner)
            elif isinstance(fact, Finished):
                self._finished = fact.syncer_step

    def _finite(self, block: Block) -> None:
        """I7: nothing that is not a number reaches the global parameters. A learner's own loss may diverge: its
        contributions are then refused. The norm of a merged update has no bound.
        """
        commits, parts = self.state.records.commits, self.state.records.contributions
        for index in np.flatnonzero(~_sound(commits.norm)).tolist():
            step, norm = self.state.commits[index].syncer_step, float(commits.norm[index])
            self.finite.add(f"syncer step {step}: the norm is {norm}")
        for _, commit, one in self.state.contributions(~_sound(parts.weight)):
            name = self.state.sources[int(one.learner)][0]
            self.finite.add(f"syncer step {commit.syncer_step}: the weight of {name} is {float(one.weight)}")
        for _, event in block.others:
            if isinstance(event.fact, Evaluated) and not math.isfinite(event.fact.loss):
                told = f"the held-out loss at syncer step {event.fact.syncer_step} is {event.fact.loss}"
                self.finite.add(told)

    def verdicts(self) -> list[Verdict]:
        commits, parts = self.state.committed, self.state.contributed
        return [
            judge("merges.once", parts, "contributions", self.once),
            judge("merges.ranges", parts, "contributions", self.ranges),
            judge("merges.weights", commits, "commits", self.weights),
            judge("merges.quorum", self.with_rules, "commits with rules", self.quorum),
            judge("merges.live", commits, "commits", self.live),
            judge("merges.counters", parts, "contributions", self.counters),
            judge("merges.current", parts, "contributions", self.current),
            judge("merges.closed", commits, "commits", self.closed),
            judge("finite.commits", commits, "commits", self.finite),
        ]


@dataclass
class Bases:
    """The newest adoptions of every incarnation and fragment, arrays of [n] by place and after_step."""

    place: Ints = field(default_factory=_ints)  # slot * BY_SLOT + fragment
    after: Ints = field(default_factory=_ints)  # after_step
    version: Ints = field(default_factory=_ints)
    zeroed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))  # whether counting begins there

    def take(self, state: CheckState) -> None:
        """Keep the newest of before, and add the block's."""
        grouped, fresh = state.windows.grouped, state.windows.fresh
        assert grouped is not None
        rank = np.searchsorted(self.place, self.place, "right") - np.arange(len(self.place))
        window = max((rules.base_window for rules in state.rules.values()), default=0)
        keep = (rank <= ADOPTIONS_KEPT + window) & ~np.isin(self.place // BY_SLOT, fresh)
        adopted = grouped.adoptions
        place = np.concatenate([self.place[keep], grouped.adoption_slots * BY_SLOT + adopted.fragment])
        after = np.concatenate([self.after[keep], adopted.after_step])
        order = np.lexsort((after, place))
        self.place, self.after = place[order], after[order]
        self.version = np.concatenate([self.version[keep], adopted.version])[order]
        self.zeroed = np.concatenate([self.zeroed[keep], grouped.overwrites])[order]

    def of(self, state: CheckState, merged: MergedRows, wanted: Ints) -> Ints:
        """By contribution, the row of its base; NONE: there is none."""
        step = merged.parts.step
        place = merged.slots * BY_SLOT + merged.fragment
        rows = np.searchsorted((self.place << STEP_BITS) + self.after, (place << STEP_BITS) + step, "left")
        found = rows - 1
        inside = np.append(self.place, NONE)
        found[inside[found] != place] = NONE
        ends = np.searchsorted((self.place << STEP_BITS) + self.after, (place << STEP_BITS) + step, "right")
        for ahead in range(int((ends - rows).max(initial=0))):
            row = np.minimum(rows + ahead, len(self.place) - 1)
            rebased = (self.place[row] == place) & (self.after[row] == step) & ~self.zeroed[row]
            rebased &= (self.version[row] == wanted) & (rows + ahead < len(self.place))
            found[rebased] = row[rebased]
        found[merged.slots < 0] = NONE
        return found


def _sound(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (numbers >= 0.0) & (numbers < math.inf)
