"""The state of the log that several checks follow: kept once, computed once for each block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.accounting.books import Bookkeeper
from orchestrator.accounting.fold import Fold
from orchestrator.accounting.records import Records
from orchestrator.accounting.verdicts import Verdict
from orchestrator.accounting.windows import StepWindows
from orchestrator.eventlog.block import NONE, Block, ContributionRows, Ints, Key
from outer.protocol.facts import LearnerAttached, SyncerStarted

SYNCER = "syncer"
EPOCHS_KEPT = 16  # newest epochs of the syncer whose settings are remembered
INCARNATIONS_KEPT = 16  # newest incarnations of each learner of which something is remembered
NEVER = 1 << 62  # a position after all others


class Commit(NamedTuple):
    """A commit of the newest block."""

    position: int
    said: int  # the epoch that recorded it
    syncer_step: int
    fragment: int
    epoch: int
    base_version: int
    live: int
    tokens_committed: int
    participants: int


class StoryEntry(NamedTuple):
    """A fact of the syncer, or one of its commits: then `fact` is None."""

    position: int
    epoch: int
    fact: Any
    commit: int  # index of the commit


@dataclass
class MergedRows:
    """The newest block's contributions with what belongs to each, arrays of [m]."""

    parts: ContributionRows
    slots: Ints  # of its incarnation; NONE: the log knows no step of it
    first: Ints  # its known steps, as rows [first, last) of the windows
    last: Ints
    fragment: Ints
    position: Ints  # of the commit
    incarnation: Ints
    learner: Ints  # numbers of CheckState.names
    lost: NDArray[np.bool_]  # facts of its incarnation were lost
    before: Ints  # the step at which the incarnation was read for this fragment before; NONE


@dataclass
class CheckState:
    """A fold. It comes after the accounts, and before the checks that read what it says of the newest block."""

    windows: StepWindows
    records: Records
    keeper: Bookkeeper
    rules: dict[int, SyncerStarted] = field(default_factory=dict)  # by epoch, of the newest epochs
    fragments: int = 0  # of the newest epoch
    first_epoch: int = NONE
    attached: dict[str, dict[int, int]] = field(default_factory=dict)  # learner -> incarnation -> where it attached
    names: dict[str, int] = field(default_factory=dict)  # of all learners that took part in a commit
    events: int = 0
    steps: int = 0
    committed: int = 0  # commits
    contributed: int = 0  # contributions
    sources: tuple[Key, ...] = ()
    commits: list[Commit] = field(default_factory=list)
    story: list[StoryEntry] = field(default_factory=list)
    merged: MergedRows | None = None
    _read: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [slots, fragments] step read last

    def take(self, block: Block) -> None:
        self.sources = block.sources
        commits = self.records.commits
        columns = [commits.position, commits.source, commits.syncer_step, commits.fragment, commits.epoch]
        columns += [commits.base_version, commits.live, commits.tokens_committed, np.diff(commits.first)]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.commits = [Commit(at, block.sources[source][1], *rest) for at, source, *rest in rows]
        said = [
            StoryEntry(at, event.incarnation, event.fact, NONE) for at, event in block.others if event.writer == SYNCER
        ]
        said += [StoryEntry(commit.position, commit.said, None, index) for index, commit in enumerate(self.commits)]
        self.story = sorted(said, key=_position)
        self._follow()
        self.events += block.rows
        self.steps += len(block.steps.position)
        self.committed += len(self.commits)
        self.contributed += len(self.records.contributions.step)
        self.merged = self._merge()

    @property
    def newest_epoch(self) -> int:
        return max(self.rules, default=NONE)

    def attached_at(self, key: Key) -> int:
        """The position at which an incarnation first attached, or NEVER."""
        return self.attached.get(key[0], {}).get(key[1], NEVER)

    def contributions(self, which: NDArray[Any]) -> Iterator[tuple[str, Commit, Any]]:
        """Some contributions of the newest block: (name, commit, row of the contribution as a Contributions)."""
        assert self.merged is not None
        for row in np.flatnonzero(which).tolist():
            one = ContributionRows._make(column[row] for column in self.merged.parts)
            commit, (learner, incarnation) = self.commits[int(one.commit)], self.sources[int(one.learner)]
            name = f"{learner} {incarnation} in fragment {commit.fragment} at syncer step {commit.syncer_step}"
            yield name, commit, one

    def _follow(self) -> None:
        for known in self.attached.values():  # not within a block: its contributions come after all that attached in it
            for old in sorted(known)[:-INCARNATIONS_KEPT]:
                del known[old]
        for position, epoch, fact, _ in self.story:
            self.first_epoch = epoch if self.first_epoch == NONE else self.first_epoch
            if isinstance(fact, SyncerStarted):
                self.rules[epoch] = fact
                self.fragments = len(fact.sizes)
                if len(self.rules) > EPOCHS_KEPT:
                    del self.rules[min(self.rules)]
            elif isinstance(fact, LearnerAttached):
                here = self.attached.setdefault(fact.learner, {})
                here.setdefault(fact.incarnation, position)

    def _merge(self) -> MergedRows:
        windows, parts, commits = self.windows, self.records.contributions, self.records.commits
        covered = self.keeper.covered
        fragment = commits.fragment[parts.commit]
        taking = np.unique(parts.learner).tolist()
        codes, numbers, lost = np.zeros((3, len(self.sources)), np.int64)
        for source in taking:
            learner, incarnation = self.sources[source]
            codes[source] = self.names.setdefault(learner, len(self.names))
            numbers[source], lost[source] = incarnation, (learner, incarnation) in self.keeper.lost
        self._read = windows.fit(self._read, NONE, windows.fragments)
        before = np.full(len(fragment), NONE)
        known = np.flatnonzero(covered.slots >= 0)
        place = covered.slots[known] * windows.fragments + fragment[known]
        before[known] = previous(self._read.reshape(-1), place, parts.step[known])
        return MergedRows(
            parts,
            covered.slots,
            covered.first,
            covered.last,
            fragment,
            commits.position[parts.commit],
            numbers[parts.learner],
            codes[parts.learner],
            lost[parts.learner] > 0,
            before,
        )


def previous(newest: Ints, places: Ints, values: Ints) -> Ints:
    """By row, the value of the row before at the same place; `newest` has the last ones, and gets today's."""
    order = np.argsort(places, kind="stable")
    sorted_, here = places[order], values[order]
    opens = np.diff(sorted_, prepend=-1) != 0
    before = np.empty(len(order), np.int64)
    before[1:] = here[:-1]
    before[opens] = newest[sorted_[opens]]
    newest[sorted_] = here  # of several, NumPy keeps the last
    back = np.empty(len(order), np.int64)
    back[order] = before
    return back


def _position(said: StoryEntry) -> int:
    return said.position


class Checker(Fold, Protocol):
    """A fold over the log that ends in verdicts."""

    def verdicts(self) -> list[Verdict]: ...
