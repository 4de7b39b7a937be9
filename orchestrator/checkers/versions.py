"""versions.* (I2): each fragment has one chain of versions, one commit a round, and every counter only rises.

A version is the syncer step of its commit; version 0 is the initial parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import CheckState, previous
from orchestrator.eventlog.block import NONE, Block, Ints
from outer.protocol.facts import Finished, StepOpened

OPENED_KEPT = 1024  # newest syncer steps of which the due fragment is remembered
VERSIONS_KEPT = 256  # newest versions of each fragment that are remembered
VERSION_BITS = 40


def _ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass
class Versions:
    state: CheckState
    chain: Failures = field(default_factory=Failures)
    order: Failures = field(default_factory=Failures)
    adopted: Failures = field(default_factory=Failures)
    clocks: Failures = field(default_factory=Failures)
    adoptions: int = 0
    opened: int = 0
    _current: dict[int, int] = field(default_factory=dict)  # by fragment, the newest version
    _due: dict[int, int | None] = field(default_factory=dict)  # by syncer step, the fragment it was opened for
    _newest: tuple[int, int] = (NONE, 0)  # syncer step and committed tokens of the newest commit
    _opened: tuple[int, int] = (NONE, NONE)  # epoch and syncer step opened last
    _finished: int | None = None  # the least syncer step at which the syncer finished
    _made: Ints = field(default_factory=_ints)  # fragment and version of the newest commits in one number, ascending
    _at: Ints = field(default_factory=_ints)  # the positions of these
    _oldest: dict[int, int] = field(default_factory=dict)  # by fragment, the oldest version in _made
    # By slot:
    _step: Ints = field(default_factory=_ints)  # the last step
    _after: Ints = field(default_factory=_ints)  # the last adoption's after_step
    _held: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [slots, fragments] adopted last

    def take(self, block: Block) -> None:
        windows = self.state.windows
        self._step, self._after = windows.fit(self._step, NONE), windows.fit(self._after, NONE)
        self._held = windows.fit(self._held, 0, windows.fragments)
        for said in self.state.story:
            if isinstance(said.fact, StepOpened):
                self._on_opened(said.epoch, said.fact)
            elif isinstance(said.fact, Finished):
                step = said.fact.syncer_step
                self._finished = step if self._finished is None else min(step, self._finished)
            elif said.fact is None:
                self._on_commit(said.commit)
        self._remember()
        stepped = self._stepped()
        self._on_steps()
        self._on_adoptions(stepped)
        self._on_reads()

    # -------------------------------------------------------------- the syncer

    def _on_opened(self, epoch: int, fact: StepOpened) -> None:
        """Within an epoch steps open one by one; a new epoch reopens what the last left open."""
        self.opened += 1
        if epoch == self._opened[0] and fact.syncer_step != self._opened[1] + 1:
            self.clocks.add(f"epoch {epoch} opened syncer step {fact.syncer_step} after {self._opened[1]}")
        self._opened = (epoch, fact.syncer_step)
        self._due[fact.syncer_step] = fact.fragment
        if len(self._due) > OPENED_KEPT:
            del self._due[next(iter(self._due))]

    def _on_commit(self, index: int) -> None:
        commit = self.state.commits[index]
        step, fragment = commit.syncer_step, commit.fragment
        base = self._current.get(fragment, 0)
        name = f"fragment {fragment} at syncer step {step}"
        if commit.base_version != base:
            self.chain.add(f"{name} was made from version {commit.base_version}, its last one is {base}")
        rules = self.state.rules.get(commit.said)
        if rules is not None and base and step - base != rules.round_steps:
            self.chain.add(f"{name} comes {step - base} steps after version {base}, a round is {rules.round_steps}")
        self._current[fragment] = step
        before, tokens = self._newest
        if step <= before:
            self.order.add(f"syncer step {step} committed after {before}")
        if self._due.get(step, fragment) != fragment:
            self.order.add(f"syncer step {step} committed fragment {fragment}, which was not due")
        if commit.tokens_committed < tokens:
            fall = f"from {tokens} to {commit.tokens_committed}"
            self.clocks.add(f"the count of committed tokens falls {fall} at syncer step {step}")
        self._newest = (step, commit.tokens_committed)

    def _remember(self) -> None:
        """Remember the block's versions, and forget all but the newest of each fragment."""
        commits = self.state.records.commits
        made = np.concatenate([self._made, (commits.fragment << VERSION_BITS) + commits.syncer_step])
        at = np.concatenate([self._at, commits.position])
        order = np.argsort(made, kind="stable")
        made, at = made[order], at[order]
        fragments = made >> VERSION_BITS
        rank = np.searchsorted(fragments, fragments, "right") - np.arange(len(made))
        # What this block's adoptions name may be older: forget it with the next block.
        old = rank > VERSIONS_KEPT + len(commits.position)
        self._made, self._at = made[~old], at[~old]
        for fragment in np.unique(fragments[old]).tolist():
            first = int(np.searchsorted(self._made, fragment << VERSION_BITS))
            self._oldest[fragment] = int(self._made[first]) - (fragment << VERSION_BITS)

    # -------------------------------------------------------------- the learners

    def _stepped(self) -> Ints:
        """By adoption: the newest step in the log before it; NONE before the first. It comes before `_on_steps`."""
        grouped = self.state.windows.grouped
        assert grouped is not None
        steps, slots = grouped.steps, grouped.adoption_slots
        if not len(steps.step):
            return self._step[slots]
        places = (grouped.step_slots << VERSION_BITS) + steps.position
        row = np.searchsorted(places, (slots << VERSION_BITS) + grouped.adoptions.position) - 1
        here = (row >= 0) & (grouped.step_slots[row] == slots)
        return np.where(here, steps.step[row], self._step[slots])

    def _on_steps(self) -> None:
        grouped = self.state.windows.grouped
        assert grouped is not None
        before = previous(self._step, grouped.step_slots, grouped.steps.step)
        jumps = np.flatnonzero((before != NONE) & (grouped.steps.step != before + 1))
        for row in jumps.tolist():
            key, step = self._key(int(grouped.step_slots[row])), int(grouped.steps.step[row])
            if step <= before[row] or key not in self.state.keeper.lost:
                self.clocks.add(f"{key[0]} {key[1]} finished step {step} after step {before[row]}")

    def _on_adoptions(self, stepped: Ints) -> None:
        grouped = self.state.windows.grouped
        assert grouped is not None
        adopted, slots = grouped.adoptions, grouped.adoption_slots
        self.adoptions += len(slots)
        before = previous(self._after, slots, adopted.after_step)
        for row in np.flatnonzero(adopted.after_step < before).tolist():
            name, after = self._named(slots, row), adopted.after_step[row]
            self.clocks.add(f"{name} adopted after step {after}, and before that after step {before[row]}")
        for row in np.flatnonzero((stepped != NONE) & (adopted.after_step != stepped)).tolist():
            if self._key(int(slots[row])) not in self.state.keeper.lost:
                name, after = self._named(slots, row), adopted.after_step[row]
                self.clocks.add(f"{name} adopted after step {after}, logged after step {stepped[row]}")
        held = previous(
            self._held.reshape(-1), slots * self.state.windows.fragments + adopted.fragment, adopted.version
        )
        for row in np.flatnonzero(adopted.version < held).tolist():
            self.adopted.add(f"{self._adopted(row)} after version {held[row]}")
        place = (adopted.fragment << VERSION_BITS) + adopted.version
        found = np.minimum(np.searchsorted(self._made, place), max(0, len(self._made) - 1))
        known: NDArray[Any] = adopted.version == 0
        if len(self._made):
            known = known | ((self._made[found] == place) & (self._at[found] < adopted.position))
        for row in np.flatnonzero(~known).tolist():
            if not self._forgotten(int(adopted.fragment[row]), int(adopted.version[row])):
                self.adopted.add(f"{self._adopted(row)}, which was never committed")

    def _forgotten(self, fragment: int, version: int) -> bool:
        """Whether this was a version that is no longer remembered: each came one round before the next."""
        oldest, rules = self._oldest.get(fragment, 0), self.state.rules.get(self.state.newest_epoch)
        return rules is not None and 0 < version < oldest and (oldest - version) % rules.round_steps == 0

    def _on_reads(self) -> None:
        merged = self.state.merged
        assert merged is not None
        falls = merged.parts.step < merged.before
        for row, (_, _, one) in zip(np.flatnonzero(falls).tolist(), self.state.contributions(falls), strict=True):
            learner, incarnation = self.state.sources[int(one.learner)]
            self.clocks.add(f"{learner} {incarnation} was read at step {one.step} after step {merged.before[row]}")

    def _key(self, slot: int) -> tuple[str, int]:
        return next(key for key, each in self.state.windows.slots.items() if each == slot)

    def _named(self, slots: Ints, row: int) -> str:
        learner, incarnation = self._key(int(slots[row]))
        return f"{learner} {incarnation}"

    def _adopted(self, row: int) -> str:
        grouped = self.state.windows.grouped
        assert grouped is not None
        name = self._named(grouped.adoption_slots, row)
        return f"{name} adopted version {grouped.adoptions.version[row]} of fragment {grouped.adoptions.fragment[row]}"

    def verdicts(self) -> list[Verdict]:
        clocks, newest = Failures(self.clocks.count, self.clocks.first), max(0, self._newest[0])
        if self._finished is not None and self._finished < newest:
            clocks.add(f"the run finished at syncer step {self._finished}, step {newest} had committed")
        return [
            judge("versions.chain", self.state.committed, "commits", self.chain),
            judge("versions.order", self.state.committed, "commits", self.order),
            judge("versions.adopted", self.adoptions, "adoptions", self.adopted),
            judge("versions.clocks", self.state.steps + self.opened, "steps", clocks),
        ]
