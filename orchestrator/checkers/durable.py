"""durable.* (I1): every later syncer epoch starts from all commits that an earlier one announced.

The log has the announcements, and what each epoch starts from, but not the journal: a commit that was neither announced
nor recovered is not missed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge, unknown
from orchestrator.checkers.state import CheckState, StoryEntry
from orchestrator.eventlog.block import Block
from outer.protocol.facts import Finished, StepOpened, SyncerStarted


@dataclass
class DurableCheck:
    state: CheckState
    restarts: Failures = field(default_factory=Failures)
    restarted: int = 0
    started: int = 0
    mute: int | None = None  # the first epoch that does not say what it starts from
    ends: Failures = field(default_factory=Failures)
    again: int = 0  # ends after the first
    _newest: dict[int, int] = field(default_factory=dict)  # by fragment, the newest version that was announced
    _tokens: int = 0
    _starting: SyncerStarted | None = None  # the epoch that has not opened a step yet
    _end: Finished | None = None

    def take(self, block: Block) -> None:
        for said in self.state.story:
            if said.fact is None:
                commit = self.state.commits[said.commit]
                if self._starting is not None and commit.epoch >= self._starting.epoch:
                    self._judge(False)
                self._newest[commit.fragment] = max(self._newest.get(commit.fragment, 0), commit.syncer_step)
                self._tokens = max(self._tokens, commit.tokens_committed)
            elif isinstance(said.fact, SyncerStarted):
                self._start(said)
            elif isinstance(said.fact, StepOpened):
                self._judge(True)
            elif isinstance(said.fact, Finished):
                self._finish(said)

    def _start(self, said: StoryEntry) -> None:
        self._judge(False)
        self.started += 1
        if said.epoch <= self.state.first_epoch:
            return
        self.restarted += 1
        if len(said.fact.versions) != len(said.fact.sizes):
            self.mute = said.epoch if self.mute is None else self.mute
        else:
            self._starting = said.fact

    def _judge(self, complete: bool) -> None:
        """Compare what an epoch starts from with earlier commits. `complete`: it has opened a step, so the log has all
        of those.
        """
        started, self._starting = self._starting, None
        if started is not None:
            for told in self._misses(started, complete):
                self.restarts.add(told)

    def _misses(self, started: SyncerStarted, complete: bool) -> list[str]:
        name = f"epoch {started.epoch} starts from"
        failures = [
            f"{name} version {version} of fragment {fragment}, version {newest} was announced"
            for fragment, version in enumerate(started.versions)
            for newest in [self._newest.get(fragment, 0)]
            if version < newest or (complete and version > newest)
        ]
        tokens = started.tokens_committed
        if tokens < self._tokens or (complete and tokens > self._tokens):
            failures.append(f"{name} {tokens} committed tokens, {self._tokens} were announced")
        return failures

    def _finish(self, said: StoryEntry) -> None:
        if self._end is not None:
            self.again += 1
            if said.fact.tokens_committed != self._end.tokens_committed:
                self.ends.add(f"epoch {said.epoch} ends with other tokens than the one before did")
        self._end = said.fact

    def verdicts(self) -> list[Verdict]:
        name = "durable.restarts"
        if self.mute is not None:
            restarts = unknown(name, f"epoch {self.mute} does not say what it starts from")
        else:
            failures = Failures(self.restarts.count, self.restarts.first)
            for told in self._misses(self._starting, False) if self._starting is not None else ():
                failures.add(told)
            idle = "the syncer never restarted" if self.started else ""
            restarts = judge(name, self.restarted, "restarts", failures, idle)
        records = self.state.records
        differing = Failures(self.ends.count, self.ends.first)
        if records.differ:
            differing = Failures(self.ends.count + records.differ, records.differing[0])
        return [
            restarts,
            judge(
                "durable.records",
                records.repeats + self.again,
                "repeated records",
                differing,
                "no epoch had to say anything again" if self.state.events else "",
            ),
        ]
