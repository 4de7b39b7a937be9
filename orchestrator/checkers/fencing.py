"""fencing.* (I4): one syncer epoch, and one incarnation of each learner, may act at a time.

What was received before a fence may merge after it, so a commit that names a fenced incarnation is no breach by
itself. It is one when its step was opened after the fence, because reads follow the opening, and when a newer
incarnation has committed before. Order is the syncer's own, not the clocks'. A fence binds the epoch that
set it; a later one is told anew who lives. What an old epoch tried and the journal refused is in no log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import (
    EPOCHS_KEPT,
    INCARNATIONS_KEPT,
    NEVER,
    CheckState,
    MergedRows,
    StoryEntry,
    previous,
)
from orchestrator.eventlog.block import NONE, Block, Ints, Key
from outer.protocol.facts import LearnerAttached, LearnerFenced, SpanGranted, StepOpened, SyncerStarted

OPENED_KEPT = 1024  # newest syncer steps of which it is remembered where they opened
UNUSED_KEPT = 4096  # newest spans granted after a fence that may not be used


@dataclass
class _Epoch:
    begun: int = NEVER  # where it opened its first step
    started: int = 0  # how often
    fenced: dict[str, dict[int, int]] = field(default_factory=dict)  # learner -> incarnation -> position
    opened: dict[int, int] = field(default_factory=dict)  # syncer step -> position


@dataclass
class Fencing:
    state: CheckState
    epochs: Failures = field(default_factory=Failures)
    incarnations: Failures = field(default_factory=Failures)
    fences: Failures = field(default_factory=Failures)
    _newest: tuple[int, int] = (NONE, NONE)  # syncer step and epoch of the newest commit
    _of: dict[int, _Epoch] = field(default_factory=dict)  # the newest epochs
    _attached: dict[str, int] = field(default_factory=dict)  # by learner, the newest incarnation that attached
    _merged: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [names, fragments] newest incarnation
    _unused: dict[tuple[Key, int], int] = field(default_factory=dict)  # spans granted after a fence, and where

    def take(self, block: Block) -> None:
        for said in self.state.story:
            if said.fact is None:
                self._on_commit(said)
            elif isinstance(said.fact, StepOpened):
                epoch = self._epoch(said.epoch)
                epoch.begun = min(epoch.begun, said.position)
                epoch.opened[said.fact.syncer_step] = said.position
                if len(epoch.opened) > OPENED_KEPT:
                    del epoch.opened[next(iter(epoch.opened))]
            elif isinstance(said.fact, SyncerStarted):
                self._epoch(said.fact.epoch).started += 1
                if (times := self._epoch(said.fact.epoch).started) > 1:
                    self.epochs.add(f"epoch {said.fact.epoch} started {times} times")
            elif isinstance(said.fact, LearnerFenced):
                here = self._epoch(said.epoch).fenced.setdefault(said.fact.learner, {})
                here.setdefault(said.fact.incarnation, said.position)
            elif isinstance(said.fact, LearnerAttached | SpanGranted):
                self._on_admitted(said)
        self._on_spans()
        merged = self.state.merged
        assert merged is not None
        if len(merged.slots):
            self._on_contributions(merged)
        for epoch in self._of.values():
            for fenced in epoch.fenced.values():
                for old in sorted(fenced)[:-INCARNATIONS_KEPT]:
                    del fenced[old]

    def _epoch(self, number: int) -> _Epoch:
        if number not in self._of:
            self._of[number] = _Epoch()
            if len(self._of) > EPOCHS_KEPT:
                del self._of[min(self._of)]
        return self._of.get(number, _Epoch())

    def _on_commit(self, said: StoryEntry) -> None:
        """Before it opens a step, an epoch may repeat an earlier one's commits."""
        commit = self.state.commits[said.commit]
        step, epoch = self._newest
        if commit.epoch < epoch or (commit.syncer_step <= step and commit.epoch != epoch):
            self.epochs.add(
                f"epoch {commit.epoch} committed syncer step {commit.syncer_step}, epoch {epoch} step {step}"
            )
        self._newest = (commit.syncer_step, commit.epoch)
        begun = self._epoch(commit.said).begun
        if commit.epoch > commit.said or (commit.epoch < commit.said and commit.position > begun):
            self.epochs.add(
                f"syncer step {commit.syncer_step} was committed as epoch {commit.epoch} by epoch {commit.said}"
            )

    def _on_admitted(self, said: StoryEntry) -> None:
        """Nothing is accepted after a fence: no attaching, no step opened later, no span.

        A grant is recorded once durable, so one in progress at the fence may follow it, and is then not used.
        """
        fact = said.fact
        fenced = fact.incarnation in self._epoch(said.epoch).fenced.get(fact.learner, ())
        if isinstance(fact, SpanGranted):
            if fenced and not self.state.records.is_repeated(said.position):
                self._unused[(fact.learner, fact.incarnation), fact.span] = said.position
                if len(self._unused) > UNUSED_KEPT:
                    del self._unused[next(iter(self._unused))]
            return
        newest = self._attached.get(fact.learner, 0)
        if fact.incarnation < newest:
            self.incarnations.add(f"{fact.learner} {fact.incarnation} attached after {newest}")
        self._attached[fact.learner] = max(fact.incarnation, newest)
        if fenced:
            self.fences.add(f"{fact.learner} {fact.incarnation} attached after it was fenced", at=said.position)

    def _on_contributions(self, merged: MergedRows) -> None:
        """An older incarnation does not merge into a fragment after a newer one has.

        By fragment: with several steps in flight, an answer received before its sender died may commit after the new
        incarnation's first contribution to another fragment.
        """
        state = self.state
        attached = np.array([state.attached_at(key) for key in state.sources])
        for row in np.flatnonzero(attached[merged.parts.learner] > merged.position).tolist():
            self.incarnations.add(f"{self._who(merged, row)} unattached")
        shape = (len(state.names), state.windows.fragments)
        if self._merged.shape != shape:
            grown = np.zeros(shape, np.int64)
            grown[: len(self._merged), : self._merged.shape[1]] = self._merged
            self._merged = grown
        place = merged.learner * shape[1] + merged.fragment
        newest = self._merged.reshape(-1)
        before = previous(newest, place, merged.incarnation)
        for row in np.flatnonzero(merged.incarnation < before).tolist():
            self.incarnations.add(f"{self._who(merged, row)}, after {before[row]} had")
            newest[place[row]] = max(newest[place[row]], before[row])
        said = np.array([commit.said for commit in state.commits])
        for number in np.unique(said).tolist():
            epoch = self._epoch(number)
            opened = np.array([epoch.opened.get(commit.syncer_step, NONE) for commit in state.commits])
            fenced = np.array([epoch.fenced.get(name, {}).get(each, NEVER) for name, each in state.sources])
            late = (said[merged.parts.commit] == number) & (
                fenced[merged.parts.learner] < np.minimum(opened[merged.parts.commit], merged.position)
            )
            for row in np.flatnonzero(late).tolist():
                told = f"{self._who(merged, row)}, which opened after it was fenced"
                self.fences.add(told, at=int(merged.position[row]))

    def _who(self, merged: MergedRows, row: int) -> str:
        learner, incarnation = self.state.sources[int(merged.parts.learner[row])]
        step = self.state.commits[int(merged.parts.commit[row])].syncer_step
        return f"{learner} {incarnation} merged at syncer step {step}"

    def _on_spans(self) -> None:
        windows = self.state.windows
        assert windows.grouped is not None
        for (key, span), position in [*self._unused.items()]:
            slot = windows.slots.get(key)
            if slot is not None and (windows.grouped.steps.span[windows.grouped.step_slots == slot] == span).any():
                told = f"{key[0]} {key[1]} stepped on span {span}, granted after it was fenced"
                self.fences.add(told, at=position)
                del self._unused[key, span]

    def verdicts(self) -> list[Verdict]:
        return [
            judge("fencing.epochs", self.state.committed, "commits", self.epochs),
            judge("fencing.incarnations", self.state.contributed, "contributions", self.incarnations),
            judge("fencing.fences", self.state.committed, "commits", self.fences),
        ]
