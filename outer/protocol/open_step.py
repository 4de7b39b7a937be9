"""One open syncer step: where it stands, whom it waits for, and what it has gathered so far.

It is told when to move; why, and what follows for the run, is the syncer's to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from outer.protocol.events_effects import Merge, Merged
from outer.protocol.facts import Committed, Participant, ReadFailed, StepReopened
from outer.protocol.messages import DRAINING, Contribution, ReadRequest
from outer.protocol.quorum import Decision, Verdict, decide

if TYPE_CHECKING:
    from outer.protocol.members import Member


class Stage(Enum):
    """Where an open syncer step stands."""

    COLLECTING = "collecting"  # fewer than K reports since it opened
    GRACE = "grace"  # K reported, more are waited for
    READING = "reading"  # participants were asked for the fragment
    MERGING = "merging"  # the shell computes
    MERGED = "merged"  # waits until every earlier step is committed
    JOURNALING = "journaling"  # the shell makes it durable
    COMMITTED = "committed"  # durable: it is open no more
    PASSED = "passed"  # it had its quorum, and no fragment was due
    DROPPED = "dropped"  # the run finished first


# From each stage to which, and when. docs/protocol.md draws it.
TRANSITIONS: dict[Stage, dict[Stage, str]] = {
    Stage.COLLECTING: {
        Stage.GRACE: "K reported",
        Stage.READING: "all live reported, or no slack",
        Stage.PASSED: "a quorum, no fragment due, the oldest (StepPassed)",
        Stage.DROPPED: "the run is over",
    },
    Stage.GRACE: {
        Stage.READING: "grace is over, or all live reported",
        Stage.COLLECTING: "fewer than K alive, or reported",
        Stage.DROPPED: "the run is over",
    },
    Stage.READING: {
        Stage.MERGING: "at least K valid contributions",
        Stage.COLLECTING: "fewer than K asked, or valid (StepReopened)",
        Stage.DROPPED: "the run is over",
    },
    Stage.MERGING: {
        Stage.MERGED: "finite",
        Stage.COLLECTING: "not finite (StepReopened)",
        Stage.DROPPED: "the run is over",
    },
    Stage.MERGED: {
        Stage.JOURNALING: "every earlier step is committed or passed",
        Stage.DROPPED: "the run is over",
    },
    Stage.JOURNALING: {Stage.COMMITTED: "durable (Committed)"},  # a run does not finish before it is
    Stage.COMMITTED: {},
    Stage.PASSED: {},
    Stage.DROPPED: {},
}


@dataclass
class OpenStep:
    """One open syncer step."""

    syncer_step: int
    fragment: int | None
    opened_at: float
    stage: Stage = Stage.COLLECTING
    reported: set[str] = field(default_factory=set)
    quorum_at: float | None = None
    grace_s: float | None = 0.0
    reason: str = ""
    decided_at: float = 0.0
    live: int = 0
    deadline: float = 0.0
    attempt: int = 0  # how often participants were asked
    retry_at: float = float("-inf")  # not judged again before
    starved: bool = False  # fewer than K were alive at some time since it opened
    awaited: dict[str, int] = field(default_factory=dict)  # learner -> incarnation
    contributions: dict[str, Contribution] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    result: Merged | None = None
    record: Committed | None = None

    @property
    def collects(self) -> bool:
        """Whether it still counts reports."""
        return self.stage in (Stage.COLLECTING, Stage.GRACE)

    @property
    def wake_at(self) -> float | None:
        """When time alone may move it; None: only an event can."""
        if self.stage is Stage.READING:
            return self.deadline
        if self.stage is Stage.COLLECTING and self.retry_at > float("-inf"):
            return self.retry_at
        if self.stage is Stage.GRACE and self.quorum_at is not None and self.grace_s is not None:
            return self.quorum_at + self.grace_s
        return None

    @property
    def chosen(self) -> list[Contribution]:
        """What is merged, in the order of the learners' names: the sum is the same bits every time."""
        return [self.contributions[name] for name in sorted(self.contributions)]

    def move(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    def judge(self, now: float, quorum: int, live: int, reported: int, grace_s: float | None) -> Verdict:
        """Whether to stop collecting. `grace_s` is what a quorum reached now would be granted."""
        self.starved |= live < quorum
        if now < self.retry_at:
            return Verdict(Decision.WAIT, "too few could contribute a moment ago")
        self.retry_at = float("-inf")
        return decide(
            now,
            quorum=quorum,
            live=live,
            reported=reported,
            quorum_at=self.quorum_at,
            grace_s=self.grace_s if self.stage is Stage.GRACE else grace_s,
        )

    def counted(self, live: Iterable[Member], overlap: str) -> list[Member]:
        """The live that finished a step after this one opened, or will finish none; strict: that reached its number."""
        if overlap == "strict":
            return [member for member in live if member.report and member.report.step >= self.syncer_step]
        return [
            member
            for member in live
            if member.report and (member.name in self.reported or member.report.phase == DRAINING)
        ]

    def ask(self, now: float, live: int, asked: Mapping[str, int], timeout_s: float) -> None:
        """From here on it waits for the contributions of these learners, by incarnation."""
        self.move(Stage.READING)
        self.decided_at, self.live, self.deadline = now, live, now + timeout_s
        self.awaited, self.contributions = dict(asked), {}
        self.attempt += 1

    def request(self, epoch: int, incarnation: int, progress: float, deadline_s: float) -> ReadRequest:
        """What one of those that are asked is sent."""
        assert self.fragment is not None
        return ReadRequest(
            epoch=epoch,
            incarnation=incarnation,
            syncer_step=self.syncer_step,
            fragment=self.fragment,
            attempt=self.attempt,
            progress=progress,
            deadline_s=deadline_s,
        )

    def accept(self, contribution: Contribution, versions: Sequence[int]) -> str:
        """Keep what was asked for and can be merged. Returns why not, where it is refused."""
        name = contribution.learner
        asked = self.stage is Stage.READING and contribution.attempt == self.attempt
        if not asked or name not in self.awaited:
            return "doubled" if asked and name in self.contributions else "late"
        assert self.fragment is not None
        del self.awaited[name]
        if reason := unusable(contribution, self.fragment, versions[self.fragment]):
            return reason
        self.contributions[name] = contribution
        return ""

    def miss(self, learner: str, reason: str) -> ReadFailed:
        """Wait no more for this learner's contribution."""
        assert self.fragment is not None
        return ReadFailed(learner, self.awaited.pop(learner), self.syncer_step, self.fragment, reason)

    def reopen(self, now: float, retry_at: float, reason: str) -> StepReopened:
        """Back to collecting; a new quorum is counted from here."""
        assert self.fragment is not None
        fact = StepReopened(self.syncer_step, self.fragment, len(self.contributions), reason)
        self.move(Stage.COLLECTING)
        self.opened_at, self.quorum_at, self.starved = now, None, False
        self.retry_at = retry_at
        self.reported, self.awaited, self.contributions = set(), {}, {}
        return fact

    def merge(self) -> Merge:
        """Close the reading: what has come is merged."""
        assert self.fragment is not None
        self.move(Stage.MERGING)
        self.weights = weigh(self.chosen)
        payloads = tuple(contribution.payload for contribution in self.chosen)
        return Merge(self.syncer_step, self.fragment, payloads, self.weights)

    def commit(self, now: float, epoch: int, base_version: int, tokens_committed: int) -> Committed:
        """Write the record that is to be made durable."""
        assert self.fragment is not None and self.result is not None and self.quorum_at is not None
        self.move(Stage.JOURNALING)
        self.record = Committed(
            syncer_step=self.syncer_step,
            fragment=self.fragment,
            epoch=epoch,
            base_version=base_version,
            participants=participants(self.chosen, self.weights),
            live=self.live,
            digest=self.result.digest,
            norm=self.result.norm,
            tokens_committed=tokens_committed,
            quorum_s=self.quorum_at - self.opened_at,
            grace_s=self.decided_at - self.quorum_at,
            sync_s=now - self.decided_at,
            reason=self.reason,
        )
        return self.record


# ------------------------------------------------------------------ contributions


def has_progress(member: Member, fragment: int, version: int) -> bool:
    """Its last report shows this version as its base, and at least one step since."""
    assert member.report is not None
    counters = member.report.counters[fragment]
    return counters.base_version == version and counters.steps >= 1


def unusable(contribution: Contribution, fragment: int, version: int) -> str:
    """Why it cannot be merged into this version of the fragment; empty when it can."""
    if contribution.defect:
        return contribution.defect
    if contribution.fragment != fragment:
        return "wrong_fragment"
    counters = contribution.counters
    if counters.base_version != version:
        return "stale_base"
    plausible = counters.steps >= 1 and 1 <= counters.tokens <= contribution.processed
    if not plausible or counters.base_step + counters.steps != contribution.step:
        return "wrong_counters"
    return ""


def weigh(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """c_tokens^2 / c_steps of each, normalised."""
    raw = [c.counters.tokens * c.counters.tokens / c.counters.steps for c in contributions]
    total = sum(raw)
    return tuple(weight / total for weight in raw)


def participants(contributions: Sequence[Contribution], weights: Sequence[float]) -> tuple[Participant, ...]:
    """What the record of a commit says of each contribution."""
    return tuple(
        Participant(
            learner=contribution.learner,
            incarnation=contribution.incarnation,
            step=contribution.step,
            base_step=contribution.counters.base_step,
            steps=contribution.counters.steps,
            tokens=contribution.counters.tokens,
            weight=weight,
            digest=contribution.digest,
            processed=contribution.processed,
        )
        for contribution, weight in zip(contributions, weights, strict=True)
    )
