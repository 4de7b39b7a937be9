"""bounded.* (I11): open syncer steps and reads stay within their limits; orchestrator/checkers/spans.py has the spans.

Queues, references in flight, memory and open files are not in the log; their own code limits them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import EPOCHS_KEPT, CheckState, StoryEntry
from orchestrator.eventlog.block import NONE, Block
from outer.protocol.facts import Finished, LearnerAttached, ReadFailed, StepOpened, StepPassed, StepReopened

STEPS_KEPT = 256  # newest syncer steps whose reads are still counted


@dataclass
class _Reads:
    tried: int = 0
    attempts: int = 1


@dataclass
class Bounded:
    state: CheckState
    steps: Failures = field(default_factory=Failures)
    reads: Failures = field(default_factory=Failures)
    opened: int = 0
    read: int = 0  # syncer steps that were read
    _running: set[int] = field(default_factory=set)  # open syncer steps
    _epoch: int = NONE
    _reads: dict[tuple[int, int], _Reads] = field(default_factory=dict)  # by epoch and syncer step
    _learners: dict[int, set[str]] = field(default_factory=dict)  # that attached, by epoch

    def take(self, block: Block) -> None:
        for said in self.state.story:
            self._on_step(said)
            self._on_read(said)
        for key in [*self._reads][:-STEPS_KEPT]:
            self._judge(key, self._reads.pop(key))
        for epoch in sorted(self._learners)[:-EPOCHS_KEPT]:
            del self._learners[epoch]

    def _on_step(self, said: StoryEntry) -> None:
        """At most max(1, tau) open. The next epoch reopens what an epoch left open."""
        fact = said.fact
        if fact is not None and not isinstance(fact, StepOpened | StepPassed | Finished):
            return
        if said.epoch != self._epoch:
            self._running, self._epoch = set(), said.epoch
        if not isinstance(fact, StepOpened):
            self._running.discard(self.state.commits[said.commit].syncer_step if fact is None else fact.syncer_step)
            return
        self.opened += 1
        self._running.add(fact.syncer_step)
        rules = self.state.rules.get(said.epoch)
        if rules is not None and len(self._running) > max(1, rules.overlap_steps):
            self.steps.add(f"{len(self._running)} steps are open at syncer step {fact.syncer_step}")
            self._running = {fact.syncer_step}

    def _on_read(self, said: StoryEntry) -> None:
        """Each attempt reads every learner at most once."""
        fact = said.fact
        if fact is None:
            commit = self.state.commits[said.commit]
            self._of(commit.epoch, commit.syncer_step).tried += commit.participants  # a later epoch may have said it
        elif isinstance(fact, LearnerAttached):
            self._learners.setdefault(said.epoch, set()).add(fact.learner)
        elif isinstance(fact, ReadFailed):
            self._of(said.epoch, fact.syncer_step).tried += 1
        elif isinstance(fact, StepReopened):
            self._of(said.epoch, fact.syncer_step).attempts += 1

    def _of(self, epoch: int, step: int) -> _Reads:
        if (epoch, step) not in self._reads:
            self._reads[epoch, step] = _Reads()
        return self._reads[epoch, step]

    def _judge(self, key: tuple[int, int], reads: _Reads) -> None:
        self.read += reads.tried > 0
        if reads.tried > len(self._learners.get(key[0], ())) * reads.attempts:
            self.reads.add(f"syncer step {key[1]} was read {reads.tried} times in {reads.attempts} attempts")

    def verdicts(self) -> list[Verdict]:
        before = self.read, self.reads
        self.reads = Failures(self.reads.count, self.reads.first)
        for key, each in self._reads.items():
            self._judge(key, each)
        (read, reads), (self.read, self.reads) = (self.read, self.reads), before
        return [
            judge("bounded.steps", self.opened if self.state.rules else 0, "syncer steps", self.steps),
            judge("bounded.reads", read, "steps that were read", reads),
        ]
