"""Who took part in which rounds, and how old contributions and versions were."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orchestrator.eventlog.block import Block, Commits, ContributionRows, Floats, Ints

COLUMNS = 360  # of rounds; an even number
AGE_MOST = 1_000  # older ones count as this old
COMMITS_KEPT = 4_096  # versions of which the age is known exactly


@dataclass(frozen=True)
class Rounds:
    """How many of the commits of neighbouring rounds each learner took part in, column by column."""

    count: int  # rounds
    per: int  # rounds in a column
    commits: tuple[int, ...]
    by_learner: dict[str, tuple[int, ...]]


@dataclass(eq=False)
class RoundsFold:
    """Round n is the syncer steps (n - 1) H + 1 to n H. Of a long run, neighbouring rounds share a column."""

    round_steps: int = 0  # H
    per: int = 1
    count: int = 0
    commits: Ints = field(default_factory=lambda: np.zeros(COLUMNS, np.int64))
    taken: dict[str, Ints] = field(default_factory=dict)

    def take(self, block: Block, commits: Commits, contributions: ContributionRows) -> None:
        if not self.round_steps or not len(commits.syncer_step):
            return
        rounds = (commits.syncer_step - 1) // self.round_steps
        self.count = max(self.count, int(rounds.max()) + 1)
        while self.count > COLUMNS * self.per:
            self.per *= 2
            self.commits = _paired(self.commits)
            self.taken = {name: _paired(row) for name, row in self.taken.items()}
        columns = rounds // self.per
        np.add.at(self.commits, columns, 1)
        weighed = contributions.weight > 0
        where, who = columns[contributions.commit[weighed]], contributions.learner[weighed]
        for source in np.unique(who).tolist():
            row = self.taken.setdefault(block.sources[source][0], np.zeros(COLUMNS, np.int64))
            np.add.at(row, where[who == source], 1)

    def rounds(self, learners: tuple[str, ...]) -> Rounds | None:
        """Of these learners and all others that took part; None without a commit."""
        if not self.count:
            return None
        columns, nobody = -(-self.count // self.per), np.zeros(COLUMNS, np.int64)
        names = dict.fromkeys([*learners, *self.taken])
        return Rounds(
            self.count,
            self.per,
            tuple(self.commits[:columns].tolist()),
            {name: tuple(self.taken.get(name, nobody)[:columns].tolist()) for name in names},
        )


def _paired(row: Ints) -> Ints:
    sums = np.zeros_like(row)
    sums[: len(row) // 2] = row[::2] + row[1::2]
    return sums


@dataclass(eq=False)
class Ages:
    """How many steps later contributions merged, and how many commits later versions were adopted."""

    contribution: dict[int, int] = field(default_factory=dict)
    version: dict[int, int] = field(default_factory=dict)
    stepped: dict[str, dict[int, int]] = field(default_factory=dict)  # newest step of the two newest incarnations
    commits: int = 0
    versions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # the newest commits' syncer steps
    at: Floats = field(default_factory=lambda: np.zeros(0))  # when each was made
    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # and where the log has it

    def take(self, block: Block, commits: Commits, contributions: ContributionRows) -> None:
        self._merge(block, commits, contributions)
        self._adopt(block, commits)

    def _merge(self, block: Block, commits: Commits, contributions: ContributionRows) -> None:
        """The steps that the log has of the learner before the commit, after the one that was read."""
        steps = block.steps
        width = block.rows + 2
        order = np.argsort(steps.source, kind="stable")
        places = steps.source[order] * width + (steps.position[order] - block.start)
        before = np.array([NEVER, *(self._newest(*key) for key in block.sources)])[1:]
        if len(contributions.commit):
            wanted = contributions.learner * width + (commits.position[contributions.commit] - block.start)
            found = np.searchsorted(places, wanted) - 1
            said = np.concatenate([steps.step[order], [NEVER]])[found]
            mine = (found >= 0) & (np.concatenate([steps.source[order], [NEVER]])[found] == contributions.learner)
            newest = np.where(mine, said, before[contributions.learner])
            _count(self.contribution, (newest - contributions.step)[newest > NEVER])
        if len(order):
            last = np.flatnonzero(np.diff(steps.source[order], append=-1))
            for row in order[last].tolist():
                self._stepped(*block.sources[int(steps.source[row])], int(steps.step[row]))

    def _newest(self, learner: str, incarnation: int) -> int:
        return self.stepped.get(learner, {}).get(incarnation, NEVER)

    def _stepped(self, learner: str, incarnation: int, step: int) -> None:
        known = self.stepped.setdefault(learner, {})
        known[incarnation] = step
        while len(known) > 2:
            del known[min(known)]

    def _adopt(self, block: Block, commits: Commits) -> None:
        self.versions = np.concatenate([self.versions, commits.syncer_step])
        self.at = np.maximum.accumulate(np.concatenate([self.at, commits.at]))
        self.places = np.concatenate([self.places, commits.position])
        self.commits += len(commits.at)
        adopted = block.adoptions
        later = adopted.mode != block.code("bootstrap")
        if later.any() and len(self.versions):
            version = adopted.version[later]
            own = np.searchsorted(self.versions, version)
            known = self.versions[np.minimum(own, len(self.versions) - 1)] == version
            old = (version > 0) & (version < self.versions[0]) & (self.commits > len(self.versions))
            by_then = np.searchsorted(self.at, adopted.at[later], "right")
            by_then = np.minimum(by_then, np.searchsorted(self.places, adopted.position[later]))
            _count(self.version, (by_then - own - 1)[known | old])
        self.versions, self.at = self.versions[-COMMITS_KEPT:].copy(), self.at[-COMMITS_KEPT:].copy()
        self.places = self.places[-COMMITS_KEPT:].copy()


NEVER = -1


def _count(ages: dict[int, int], found: Ints) -> None:
    counts = np.bincount(np.clip(found, 0, AGE_MOST))
    for age in np.flatnonzero(counts).tolist():
        ages[age] = ages.get(age, 0) + int(counts[age])
