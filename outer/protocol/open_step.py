"""One open syncer step, and the contributions to it: which are refused, which are merged, and with what weight.

The syncer drives an OpenStep through the stages in TRANSITIONS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from outer.protocol.events_effects import Merge, Merged
from outer.protocol.facts import Committed, Participant, ReadFailed, StepReopened
from outer.protocol.links import EARLY
from outer.protocol.messages import DRAINING, Contribution, FragmentCounters
from outer.protocol.quorum import Decision, QuorumVerdict, decide

if TYPE_CHECKING:
    from outer.config import SyncConfig
    from outer.protocol.members import Member


class Wait(NamedTuple):
    """How long one learner's answer to a read is waited for, in seconds from asking."""

    deadline_s: float  # at most
    patience_s: float  # once K answers are in


class Stage(Enum):
    """The stages of an open syncer step."""

    COLLECTING = "collecting"  # fewer than K reports since it opened
    GRACE = "grace"  # K reported; more are waited for
    READING = "reading"  # learners were asked for the fragment
    MERGING = "merging"  # the shell computes the merge
    MERGED = "merged"  # waits for the commit of every earlier step
    JOURNALING = "journaling"  # the shell makes the commit durable
    COMMITTED = "committed"  # durable; the step is closed
    PASSED = "passed"  # reached its quorum, and no fragment was due
    DROPPED = "dropped"  # the run ended first


# stage -> next stage -> condition. docs/protocol.md has the diagram.
TRANSITIONS: dict[Stage, dict[Stage, str]] = {
    Stage.COLLECTING: {
        Stage.GRACE: "K reported",
        Stage.READING: "all live reported, or no slack",
        Stage.PASSED: "a quorum, no fragment due, the oldest (StepPassed)",
        Stage.DROPPED: "the run is over",
    },
    Stage.GRACE: {
        Stage.READING: "grace is over, or all live reported",
        Stage.COLLECTING: "fewer than K alive, reported, or to be asked",
        Stage.DROPPED: "the run is over",
    },
    Stage.READING: {
        Stage.MERGING: "at least K valid contributions",
        Stage.COLLECTING: "fewer than K valid (StepReopened)",
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
    Stage.JOURNALING: {Stage.COMMITTED: "durable (Committed)"},  # a run does not end in between
    Stage.COMMITTED: {},
    Stage.PASSED: {},
    Stage.DROPPED: {},
}


@dataclass
class OpenStep:
    """The state of one open syncer step. Times are seconds of the shell's monotonic clock."""

    syncer_step: int
    fragment: int | None
    opened_at: float
    rule: str = "paper"  # of weights
    stage: Stage = Stage.COLLECTING
    reported: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)  # live learners that count towards the quorum
    quorum_at: float | None = None
    grace_s: float | None = 0.0
    reason: str = ""
    decided_at: float = 0.0
    live: int = 0
    deadline: float = 0.0
    due: dict[str, float] = field(default_factory=dict)  # learner -> when its answer is, while reading
    quorum: int = 1  # K, while reading
    early: Collection[str] = ()  # learners whose answer was asked for ahead, while reading
    patience: list[tuple[float, str]] = field(default_factory=list)  # until when each is waited for beyond K answers
    read_at: float = 0.0  # when reading ended
    merge_s: float = 0.0  # from there until its record was durable, without the wait for earlier steps
    queued_s: float = 0.0  # the part of it until the merge before ended
    attempt: int = 0  # how often learners were asked
    retry_at: float = float("-inf")  # not judged before this time
    lacked: bool = False  # fewer than K could be asked; since then only reports of who can be asked count
    starved: bool = False  # fewer than K learners were live at some time since it opened
    awaited: dict[str, int] = field(default_factory=dict)  # learner -> incarnation
    contributions: dict[str, Contribution] = field(default_factory=dict)
    ages: tuple[int, ...] = ()  # of the chosen contributions' bases, in rounds
    weights: tuple[float, ...] = ()
    result: Merged | None = None
    record: Committed | None = None

    @property
    def collects(self) -> bool:
        """Whether the step still counts reports."""
        return self.stage in (Stage.COLLECTING, Stage.GRACE)

    @property
    def wake_at(self) -> float | None:
        """When the passing of time may move the step; None: only an event can."""
        if self.stage is Stage.READING:
            if len(self.contributions) < self.quorum:
                return self.deadline
            while self.patience and self.patience[-1][1] not in self.awaited:
                self.patience.pop()
            return min(self.deadline, self.patience[-1][0]) if self.patience else self.deadline
        if self.stage is Stage.COLLECTING and self.retry_at > float("-inf"):
            return self.retry_at
        if self.stage is Stage.GRACE and self.quorum_at is not None and self.grace_s is not None:
            return self.quorum_at + self.grace_s
        return None

    @property
    def chosen(self) -> list[Contribution]:
        """The contributions to merge, ordered by learner name, so that the sum has the same bits every time."""
        return [self.contributions[name] for name in sorted(self.contributions)]

    def move(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    def judge(self, now: float, quorum: int, live: int, reported: int, grace_s: float | None) -> QuorumVerdict:
        """Whether to stop collecting. `grace_s`: the grace for a quorum reached now; None for endless."""
        self.starved |= live < quorum
        if now < self.retry_at:
            return QuorumVerdict(Decision.WAIT, "too few could contribute a moment ago")
        self.retry_at = float("-inf")
        return decide(
            now,
            quorum=quorum,
            live=live,
            reported=reported,
            quorum_at=self.quorum_at,
            grace_s=self.grace_s if self.stage is Stage.GRACE else grace_s,
        )

    def count(self, member: Member, overlap: str) -> None:
        """Count a member towards the quorum, or not any more, after a change of it.

        Free overlap: live learners that finished a step after this one opened, or are draining and will finish none.
        Strict overlap: those whose own step number has reached this syncer step.
        """
        report = member.report if member.live else None
        if report is None:
            counts = False
        elif overlap == "strict":
            counts = report.step >= self.syncer_step
        else:
            counts = member.name in self.reported or (report.phase == DRAINING and not self.lacked)
        (self.ready.add if counts else self.ready.discard)(member.name)

    def has_read(self, now: float) -> bool:
        """Whether reading is over: every answer is in, or no longer waited for."""
        return not self.awaited or (self.wake_at is not None and now >= self.wake_at)

    def ask(
        self,
        now: float,
        quorum: int,
        live: int,
        asked: Mapping[str, int],
        waits: Mapping[str, Wait],
        early: Collection[str] = (),
    ) -> None:
        """Start reading: wait for the contributions of these learners. `asked`: learner -> incarnation.

        `early`: those that were asked ahead, and not anew.
        """
        self.move(Stage.READING)
        self.decided_at, self.quorum, self.live = now, quorum, live
        self.due = {name: now + wait.deadline_s for name, wait in waits.items()}
        self.deadline = max(self.due.values(), default=now)
        self.patience = sorted((now + wait.patience_s, name) for name, wait in waits.items())
        self.awaited, self.contributions, self.early = dict(asked), {}, frozenset(early)
        self.attempt += 1

    def accept(self, contribution: Contribution, member: Member, version: int, config: SyncConfig) -> str:
        """Keep a contribution that was asked for and can be merged; else return the reason for refusing it.

        `version`: the newest of this step's fragment.
        """
        name = contribution.learner
        asked = self.stage is Stage.READING and contribution.attempt == (EARLY if name in self.early else self.attempt)
        if not asked or name not in self.awaited:
            return "doubled" if asked and name in self.contributions else "late"
        assert self.fragment is not None
        del self.awaited[name]
        if reason := unusable(contribution, member, self.fragment, version, config):
            return reason
        self.contributions[name] = contribution
        return ""

    def miss(self, learner: str, reason: str) -> ReadFailed:
        """Stop waiting for this learner's contribution."""
        assert self.fragment is not None
        return ReadFailed(learner, self.awaited.pop(learner), self.syncer_step, self.fragment, reason)

    def reopen(self, now: float, retry_at: float, reason: str, able: Collection[str] = ()) -> StepReopened:
        """Collect anew; a new quorum is counted from here, with the reports of those that are `able`."""
        assert self.fragment is not None
        fact = StepReopened(self.syncer_step, self.fragment, len(self.contributions), reason)
        if self.stage is not Stage.COLLECTING:
            self.move(Stage.COLLECTING)
        self.opened_at, self.quorum_at, self.starved = now, None, False
        self.retry_at = retry_at
        self.reported, self.ready = self.reported.intersection(able), self.ready.intersection(able)
        self.awaited, self.contributions = {}, {}
        return fact

    def merge(self, version: int, round_steps: int) -> Merge:
        """Stop reading and merge the contributions that were accepted onto this version of the fragment."""
        assert self.fragment is not None
        self.move(Stage.MERGING)
        self.ages = tuple(age(c.counters.base_version, version, round_steps) for c in self.chosen)
        self.weights = weigh(self.chosen, self.ages, round_steps, self.rule)
        payloads = tuple(contribution.payload for contribution in self.chosen)
        codecs = tuple(contribution.codec for contribution in self.chosen)
        return Merge(self.syncer_step, self.fragment, payloads, self.weights, codecs if any(codecs) else ())

    def commit(self, now: float, epoch: int, base_version: int, tokens_committed: int) -> Committed:
        """The commit's record, for the journal."""
        assert self.fragment is not None and self.result is not None and self.quorum_at is not None
        self.move(Stage.JOURNALING)
        self.record = Committed(
            syncer_step=self.syncer_step,
            fragment=self.fragment,
            epoch=epoch,
            base_version=base_version,
            participants=participants(self.chosen, self.weights, self.ages),
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


def age(base: int | None, version: int, round_steps: int) -> int:
    """How many rounds a base is behind a fragment's version; -1 where it is unset, newer, or no version.

    A fragment commits once a round, so these are the versions that the base lacks; a commit that was lost counts too.
    From the initial value, version 0, to the first commit it is a part of a round, which counts as one.
    """
    if base is None or not 0 <= base <= version or (base and (version - base) % round_steps):
        return -1
    return -(-(version - base) // round_steps)


def is_usable(counters: FragmentCounters, member: Member, fragment: int, version: int, config: SyncConfig) -> bool:
    """Whether progress on this base may merge into a version: it is in the window, and nothing of it has merged.

    A learner that has not adopted the version that contains its newest merged read would contribute those steps again.
    """
    in_window = 0 <= age(counters.base_version, version, config.round_steps) <= config.base_window
    return in_window and counters.base_step >= member.merged_step.get(fragment, 0)


def has_progress(member: Member, fragment: int, version: int, config: SyncConfig) -> bool:
    """Whether the learner's last report shows a base that may still be used, and at least one step since."""
    assert member.report is not None
    counters = member.report.counters[fragment]
    return counters.steps >= 1 and is_usable(counters, member, fragment, version, config)


def unusable(contribution: Contribution, member: Member, fragment: int, version: int, config: SyncConfig) -> str:
    """Why a contribution cannot be merged into this version of the fragment; empty when it can."""
    if contribution.defect:
        return contribution.defect
    if contribution.fragment != fragment:
        return "wrong_fragment"
    counters = contribution.counters
    if not is_usable(counters, member, fragment, version, config):
        return "stale_base"
    plausible = counters.steps >= 1 and 1 <= counters.tokens <= contribution.processed
    if not plausible or counters.base_step + counters.steps != contribution.step:
        return "wrong_counters"
    return ""


def weigh(
    contributions: Sequence[Contribution], ages: Sequence[int], round_steps: int, rule: str = "paper"
) -> tuple[float, ...]:
    """The weight of each contribution by sync.weights, normalised to sum 1.

    Of a late one at most H steps count, with their tokens.
    """
    raw = []
    for contribution, behind in zip(contributions, ages, strict=True):
        counters = contribution.counters
        share = min(1.0, round_steps / counters.steps) if behind else 1
        raw.append(weight(rule, share * counters.tokens, share * counters.steps, behind))
    total = sum(raw)
    return tuple(each / total for each in raw)


def weight(rule: str, tokens: float, steps: float, age: int) -> float:
    """A contribution's weight before normalisation: tokens^2 / steps (paper section 3), tokens, or 1 for all.

    Late work counts the less the more rounds its base is behind.
    """
    return {"paper": tokens * tokens / steps, "tokens": tokens, "equal": 1}[rule] / (1 + age)


def participants(
    contributions: Sequence[Contribution], weights: Sequence[float], ages: Sequence[int]
) -> tuple[Participant, ...]:
    """Each contribution as the commit's record describes it."""
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
            age=behind,
            codec=contribution.codec,
        )
        for contribution, weight, behind in zip(contributions, weights, ages, strict=True)
    )
