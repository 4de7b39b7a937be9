"""links.*: how contributions travel is told before it changes.

Of each learner's newest incarnation those number formats are remembered that an answer may still have, because it was
asked for before its link changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import CheckState
from orchestrator.eventlog.block import Block
from outer.protocol.facts import LinkAdapted, StepOpened, SyncerStarted


@dataclass
class LinksCheck:
    state: CheckState
    formats: Failures = field(default_factory=Failures)
    changes: Failures = field(default_factory=Failures)
    contributions: int = 0  # in a format of their own, or after a change
    changed: int = 0
    _run: str = ""  # the run's format
    _round: int = 0  # H
    _opened: int = 0  # the newest syncer step that was opened
    _now: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # learner -> incarnation, format, rounds
    _before: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # older formats, with the last step read so

    def take(self, block: Block) -> None:
        assert self.state.merged is not None
        told = any(isinstance(said.fact, LinkAdapted | SyncerStarted) for said in self.state.story)
        busy = told or self._now or (self.state.merged.parts.codec != "").any()
        for said in self.state.story:
            if isinstance(said.fact, StepOpened):
                self._opened = said.fact.syncer_step
            elif isinstance(said.fact, SyncerStarted):
                self._start(said.fact)
            elif isinstance(said.fact, LinkAdapted):
                self._on_change(said.fact)
            elif said.fact is None and busy:
                self._on_commit(said.commit)

    def _start(self, fact: SyncerStarted) -> None:
        """Another epoch begins at the run's format."""
        self._now, self._before = {}, {}
        self._run, self._round = fact.codec or self._run, fact.round_steps

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
        same = known is not None and known[0] == fact.incarnation
        asked = self._opened + (self._round - 1 if before[2] > 1 else 0)  # with a longer H it is asked ahead
        self._before[fact.learner] = [*(self._before.get(fact.learner, []) if same else []), (before[1], asked)]
        self._now[fact.learner] = (fact.incarnation, fact.codec, fact.every)

    def _on_commit(self, index: int) -> None:
        assert self.state.merged is not None
        parts, commit, told = self.state.merged.parts, self.state.commits[index], bool(self._now)
        for row in np.flatnonzero(parts.commit == index).tolist():
            learner, incarnation = self.state.sources[int(parts.learner[row])]
            codec = parts.codec[row] or self._run
            if told or parts.codec[row]:
                self._check_format(learner, incarnation, codec, commit.syncer_step)

    def _check_format(self, learner: str, incarnation: int, codec: str, syncer_step: int) -> None:
        known, allowed = self._now.get(learner), {"", self._run}
        if known is not None and known[0] == incarnation:
            kept = [(older, step) for older, step in self._before[learner] if syncer_step <= step]
            self._before[learner] = kept
            allowed = {known[1], *(older for older, _ in kept)}
        self.contributions += 1
        if codec not in allowed:
            told = f"its link was at {sorted(allowed)}"
            self.formats.add(f"{learner} {incarnation} at syncer step {syncer_step} sent {codec}; {told}")

    def verdicts(self) -> list[Verdict]:
        idle = "no link was adapted" if self.state.committed else ""
        return [
            judge("links.formats", self.contributions, "contributions", self.formats, idle),
            judge("links.changes", self.changed, "changes", self.changes, idle),
        ]
