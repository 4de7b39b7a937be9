"""links.*: how contributions travel is told before it changes.

Of each learner's newest incarnation the last two number formats are remembered: an answer may have been asked for
before the newest change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orchestrator.accounting.verdicts import Failures, Verdict, judge
from orchestrator.checkers.state import CheckState
from orchestrator.eventlog.block import Block
from outer.journal.saving import saved
from outer.protocol.facts import LinkAdapted, SyncerStarted


@saved
@dataclass
class Links:
    state: CheckState
    formats: Failures = field(default_factory=Failures)
    changes: Failures = field(default_factory=Failures)
    contributions: int = 0  # in a format of their own, or after a change
    changed: int = 0
    _run: str = ""  # the run's format, once a change has told it
    _now: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # learner -> incarnation, format, rounds
    _before: dict[str, str] = field(default_factory=dict)  # learner -> the format before that

    def take(self, block: Block) -> None:
        assert self.state.merged is not None
        parts = self.state.merged.parts
        told = any(isinstance(said.fact, LinkAdapted) for said in self.state.story)
        if not told and not self._now and not (parts.codec != "").any():
            return
        for said in self.state.story:
            if isinstance(said.fact, SyncerStarted):
                self._now, self._before = {}, {}  # another epoch begins at the run's format
            elif isinstance(said.fact, LinkAdapted):
                self._on_change(said.fact)
            elif said.fact is None:
                self._on_commit(said.commit)

    def _on_change(self, fact: LinkAdapted) -> None:
        self.changed += 1
        name = f"{fact.learner} {fact.incarnation}"
        known = self._now.get(fact.learner)
        self._run = self._run or fact.codec_before
        start = (fact.incarnation, self._run, 1)
        before = known if known is not None and known[0] == fact.incarnation else start
        if before[1:] != (fact.codec_before, fact.every_before):
            told = f"{fact.codec_before} every {fact.every_before} rounds"
            self.changes.add(f"{name} changes from {told}; it was at {before[1]} every {before[2]}")
        if before[1:] == (fact.codec, fact.every) or not fact.reason:
            self.changes.add(f"{name} changes to what it has, or without a reason")
        self._before[fact.learner] = before[1]
        self._now[fact.learner] = (fact.incarnation, fact.codec, fact.every)

    def _on_commit(self, index: int) -> None:
        assert self.state.merged is not None
        parts, commit = self.state.merged.parts, self.state.commits[index]
        for row in np.flatnonzero(parts.commit == index).tolist():
            learner, incarnation = self.state.sources[int(parts.learner[row])]
            known, codec = self._now.get(learner), parts.codec[row] or self._run
            changed = known is not None and known[0] == incarnation
            allowed = {known[1], self._before[learner]} if known is not None and changed else {"", self._run}
            self.contributions += 1
            if codec not in allowed:
                at = f"at syncer step {commit.syncer_step}"
                self.formats.add(f"{learner} {incarnation} {at} sent {codec}; its link was at {sorted(allowed)}")

    def verdicts(self) -> list[Verdict]:
        idle = "no link was adapted" if self.state.committed else ""
        claim = "a contribution has the number format of its learner's link, which the log told before"
        followed = "each change of a link follows from the one before, and has a reason"
        return [
            judge("links.formats", claim, self.contributions, "contributions", self.formats, idle),
            judge("links.changes", followed, self.changed, "changes", self.changes, idle),
        ]
