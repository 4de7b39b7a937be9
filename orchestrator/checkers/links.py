"""links.*: how contributions travel is told before it changes, and what they weigh is counted.

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
from outer.numeric import formats
from outer.protocol.facts import LinkAdapted, LinkCarried, StateRebuilt, StepOpened, SyncerStarted


@dataclass
class Links:
    state: CheckState
    formats: Failures = field(default_factory=Failures)
    changes: Failures = field(default_factory=Failures)
    counts: Failures = field(default_factory=Failures)
    contributions: int = 0  # in a format of their own, or after a change
    changed: int = 0
    counted: int = 0
    _run: str = ""  # the run's format
    _round: int = 0  # H
    _sizes: tuple[int, ...] = ()
    _opened: int = 0  # the newest syncer step that was opened
    _now: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # learner -> incarnation, format, rounds
    _before: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # older formats, with the last step read so
    _merged: dict[str, int] = field(default_factory=dict)  # learner -> bytes of its contributions in this epoch
    _carried: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # bytes of past quarters; quarter, bytes
    _until: int = -1  # the newest quarter of earlier epochs

    def take(self, block: Block) -> None:
        assert self.state.merged is not None
        told = any(isinstance(said.fact, LinkAdapted | LinkCarried | SyncerStarted) for said in self.state.story)
        busy = told or self._now or self._carried or (self.state.merged.parts.codec != "").any()
        if not busy:
            self._weigh_all()
        for said in self.state.story:
            if isinstance(said.fact, StepOpened):
                self._opened = said.fact.syncer_step
            elif isinstance(said.fact, SyncerStarted):
                self._start(said.fact)
            elif isinstance(said.fact, StateRebuilt):
                self._until = -1  # what was carried may be lost
            elif isinstance(said.fact, LinkAdapted):
                self._on_change(said.fact)
            elif isinstance(said.fact, LinkCarried):
                self._on_carried(said.fact)
            elif said.fact is None and busy:
                self._on_commit(said.commit)

    def _weigh_all(self) -> None:
        """The contributions of a block in which all have the run's format."""
        assert self.state.merged is not None
        form, fragments = formats.known(self._run), self.state.merged.fragment
        if form is None or not len(fragments):
            return
        sizes = np.array([*map(form.bytes, self._sizes), 0])  # a strange log may name other fragments
        place = np.where((fragments >= 0) & (fragments < len(self._sizes)), fragments, len(self._sizes))
        weighs = np.bincount(self.state.merged.parts.learner, sizes[place])
        for source in np.flatnonzero(weighs).tolist():
            learner = self.state.sources[source][0]
            self._merged[learner] = self._merged.get(learner, 0) + int(weighs[source])

    def _start(self, fact: SyncerStarted) -> None:
        """Another epoch begins at the run's format, and counts on in new quarters of an hour."""
        self._until = max([self._until, *(quarter for _, quarter, _ in self._carried.values())])
        self._now, self._before, self._merged, self._carried = {}, {}, {}, {}
        self._run, self._round, self._sizes = fact.codec or self._run, fact.round_steps, fact.sizes

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

    def _on_carried(self, fact: LinkCarried) -> None:
        """What it merged until now had been carried before: as soon as it has grown, that is recorded."""
        self.counted += 1
        past, quarter, size = self._carried.get(fact.learner, (0, fact.quarter, 0))
        if fact.quarter < quarter or (fact.quarter == quarter and fact.bytes <= size):
            self.counts.add(f"{fact.learner}: {fact.bytes} bytes in quarter {fact.quarter} after {size} in {quarter}")
        if fact.quarter <= self._until:
            self.counts.add(f"{fact.learner} carried {fact.bytes} bytes in quarter {fact.quarter} of an older epoch")
        past += size if fact.quarter > quarter else 0
        self._carried[fact.learner] = (past, fact.quarter, fact.bytes)
        if past + fact.bytes < (merged := self._merged.get(fact.learner, 0)):
            self.counts.add(f"{fact.learner} carried {past + fact.bytes} bytes; {merged} of its contributions merged")

    def _on_commit(self, index: int) -> None:
        assert self.state.merged is not None
        parts, commit, told = self.state.merged.parts, self.state.commits[index], bool(self._now)
        for row in np.flatnonzero(parts.commit == index).tolist():
            learner, incarnation = self.state.sources[int(parts.learner[row])]
            codec = parts.codec[row] or self._run
            form, known = formats.known(codec), 0 <= commit.fragment < len(self._sizes)
            if form is not None and known:
                size = form.bytes(self._sizes[commit.fragment])
                self._merged[learner] = self._merged.get(learner, 0) + size
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
        unlimited = "no link has a budget" if self.state.committed else ""
        return [
            judge("links.formats", self.contributions, "contributions", self.formats, idle),
            judge("links.changes", self.changed, "changes", self.changes, idle),
            judge("links.bytes", self.counted, "counts", self.counts, unlimited),
        ]
