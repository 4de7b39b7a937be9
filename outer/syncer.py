"""The syncer as a pure state machine: quorum, grace, merge and commit of fragments (paper section 3).

`handle(now, event) -> effects`. No I/O, no clock, no randomness, no arrays: payloads and proposals are opaque.
The shell delivers messages and the results of effects, performs the effects in the order given, and calls
`handle(now, Tick())` no later than `wake_at`. A peer's message can be late, doubled or wrong: that is a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outer.donors import choose, is_drained
from outer.facts import (
    Committed,
    DonorNamed,
    DrainStarted,
    Finished,
    LearnerAttached,
    Participant,
    Quarantined,
    ReadFailed,
    StepOpened,
    StepPassed,
    StepReopened,
    SyncerFact,
    SyncerStarted,
)
from outer.fragments import Fragment
from outer.manifest import difference
from outer.members import Member, Members
from outer.messages import (
    DRAINING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Donor,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    Stop,
    Welcome,
)
from outer.openstep import OpenStep, Stage
from outer.pace import Average, step_time
from outer.quorum import Decision, adaptive_grace, decide
from outer.schedule import Schedule
from outer.signals import (
    Append,
    DrainRequested,
    Durable,
    Effect,
    Event,
    Expect,
    Fence,
    Merge,
    Merged,
    Publish,
    ReadMissed,
    Say,
    Send,
    StopRequested,
    Tick,
    ToLearner,
)

if TYPE_CHECKING:
    from outer.config import SyncConfig

RESEND_S = 1.0  # what a learner does not seem to have received is sent again after this long
REOPEN_S = 0.1  # a syncer step that found too few contributions is not judged again before
NON_FINITE_MAX = 3  # so many contributions in a row refused as that, and the learner has to start anew


@dataclass(frozen=True)
class Budget:
    """When the run ends: at so many committed tokens, or after so many syncer steps."""

    tokens: int | None
    syncer_steps: int | None


class Syncer:
    """One epoch of the syncer. Times are seconds of the shell's monotonic clock."""

    def __init__(
        self,
        *,
        epoch: int,
        config: SyncConfig,
        fragments: tuple[Fragment, ...],
        learners: Mapping[str, int],
        quorum: int,
        span_steps: int,
        budget: Budget,
        manifest: Mapping[str, Any],
    ) -> None:
        """`learners` maps every configured learner to its batch size in samples."""
        assert 1 <= quorum <= len(learners)
        self.epoch = epoch
        self.quorum = quorum
        self.finished: str = ""  # why, once it is
        self.tokens_committed = 0
        self.versions = [0] * len(fragments)
        self.syncer_step = 0  # newest opened
        self.committed_step = 0  # newest committed or passed
        self.moved_at: float | None = None  # when a syncer step last committed or passed
        self.first_step_at: float | None = None  # when the first finished inner step was reported
        self._config = config
        self._fragments = fragments
        self._schedule = Schedule(len(fragments), config.round_steps)
        self._members = Members(epoch, learners, span_steps)
        self._newest: dict[int, Committed] = {}  # by fragment
        self._budget = budget
        self._manifest = manifest
        self._open: list[OpenStep] = []
        self._opened_at = float("-inf")
        self._stopping = ""  # why, once a stop is asked for that has to wait for a commit under way
        self._sequence = 0
        self._quorum_s = Average(config.smoothing)
        self._sync_s = Average(config.smoothing)
        self._effects: list[Effect] = []

    def start(self) -> list[Effect]:
        """The first effects of an epoch."""
        self._say(
            SyncerStarted(
                epoch=self.epoch,
                fragments=tuple(tuple(t.name for t in fragment.tensors) for fragment in self._fragments),
                sizes=tuple(fragment.size for fragment in self._fragments),
                learners=self._members.names,
                quorum=self.quorum,
                round_steps=self._config.round_steps,
                overlap_steps=self._config.overlap_steps,
            )
        )
        return self._drain()

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event; return what to do, in order."""
        for name in self._members.expire(now):
            self._stop_awaiting(name, "lease_expired")
        handlers: dict[type[Any], Callable[[float, Any], None]] = {
            Expect: self._on_expect,
            Fence: self._on_fence,
            DrainRequested: self._on_drain,
            Attach: self._on_attach,
            SeekDonor: self._on_seek,
            Report: self._on_report,
            Contribution: self._on_contribution,
            ReadMissed: self._on_read_missed,
            Merged: self._on_merged,
            Durable: self._on_durable,
            StopRequested: self._on_stop,
            Tick: lambda now, event: None,
        }
        handlers[type(event)](now, event)
        self._advance(now)
        return self._drain()

    # -------------------------------------------------------------- what the shell may look at

    @property
    def wake_at(self) -> float | None:
        """When a Tick is due at the latest; None: only an event can change anything."""
        times = [self._members.next_expiry]
        if not self.finished:
            times += [
                step.quorum_at + step.grace_s
                for step in self._open
                if step.stage is Stage.GRACE and step.quorum_at is not None and step.grace_s is not None
            ]
            times += [step.deadline for step in self._open if step.stage is Stage.READING]
            times += [step.retry_at for step in self._open if step.stage is Stage.COLLECTING and step.waits]
            if self._config.pacing == "clock" and self._may_open():
                times.append(self._opened_at + self.step_s)
        return min((at for at in times if at is not None), default=None)

    @property
    def step_s(self) -> float:
        """xi_step in seconds."""
        return step_time(member.report.step_s for member in self._members.live if member.report)

    @property
    def progress(self) -> float:
        """Share of the budget that is committed, 0 to 1."""
        if self._budget.tokens is not None:
            return min(1.0, self.tokens_committed / self._budget.tokens)
        assert self._budget.syncer_steps is not None
        return min(1.0, self.committed_step / self._budget.syncer_steps)

    @property
    def grace_s(self) -> float | None:
        """What a quorum reached now would be granted; None is without end."""
        if self._config.grace == "infinite":
            return None
        if self._config.grace != "adaptive":
            return float(self._config.grace)
        return adaptive_grace(
            self._config.gamma,
            self._config.overlap_steps,
            self.step_s,
            self._quorum_s.value,
            self._sync_s.value,
        )

    @property
    def tokens_processed(self) -> int:
        """As far as reported."""
        return self._members.tokens_processed

    def view(self, now: float) -> list[dict[str, Any]]:
        """What the syncer knows of each configured learner, for status pages."""
        return self._members.rows(now, self.versions)

    # -------------------------------------------------------------- learners come and go

    def _on_expect(self, now: float, event: Expect) -> None:
        if self._members.expect(now, event):
            self._stop_awaiting(event.learner, "superseded")

    def _on_fence(self, now: float, event: Fence) -> None:
        if self._members.fence(event.learner, event.reason, event.incarnation):
            self._stop_awaiting(event.learner, "fenced")

    def _on_attach(self, now: float, event: Attach) -> None:
        member = self._members.admit(event, "attach")
        if member is None:
            return
        if differs := difference(self._manifest, event.manifest):
            self._members.refuse(event, "attach", "wrong_config", detail=differs)
            return
        if self._config.overlap == "strict" and not member.attached:
            member.first_step = self.committed_step
        member.attached, member.attached_at = True, now
        self._say(LearnerAttached(event.learner, event.incarnation, self.syncer_step))
        self._send(member, Welcome(self.epoch, self.committed_step, self.progress, tuple(self.versions)))
        if self.finished:
            self._tell_to_stop(now, member, self.finished)

    def _on_seek(self, now: float, event: SeekDonor) -> None:
        """Name a whole peer that will have seen the clock; within the first round nobody's state is worth copying."""
        member = self._members.admit(event, "seek")
        if member is None:
            return
        clock = max(self.versions)  # of steps at which nothing is due no learner hears
        donor = None
        if self.committed_step >= self._config.round_steps:
            donor = choose(self._members.live, member, event.failed)
        if donor is None:
            self._send(member, Donor(self.epoch, member.incarnation, "", 0, clock))
            return
        donor.donations += 1
        self._say(DonorNamed(member.name, member.incarnation, donor.name, donor.incarnation, clock))
        self._send(member, Donor(self.epoch, member.incarnation, donor.name, donor.incarnation, clock))

    def _on_drain(self, now: float, event: DrainRequested) -> None:
        member = self._members.get(event.learner, event.incarnation)
        if member is None or member.draining:
            return
        self._start_drain(member, event.reason)
        if member.report is not None and member.report.phase == STEPPING:
            member.drain_sent_at = now
            self._send(member, Drain(self.epoch, member.incarnation, event.reason, event.deadline_s))
        else:  # it has nothing to lose
            self._members.fence(member.name, "drained")

    def _start_drain(self, member: Member, reason: str) -> None:
        member.draining = reason
        self._say(DrainStarted(member.name, member.incarnation, reason))

    def _on_report(self, now: float, event: Report) -> None:
        member = self._members.admit(event, "report")
        if member is None:
            return
        self._members.renew(now, event)
        before = member.report
        if before is not None and event.sequence <= before.sequence:
            return  # overtaken by a newer one, or doubled: its lease was all it had to say
        member.report = event
        if event.phase == DRAINING and not member.draining:
            self._start_drain(member, "its process was told to end")
        if event.phase == STOPPED:
            self._members.fence(member.name, "drained" if member.draining else "stopped")
            self._stop_awaiting(member.name, "stopped")
            return
        if self.first_step_at is None and event.tokens > 0:
            self.first_step_at = now
        if before is not None and event.step > before.step and event.phase == STEPPING:
            for step in self._open:
                step.reported.add(member.name)
        if member.attached and (reason := self._over_for(member)):
            if now - member.stopped_at >= RESEND_S:
                self._tell_to_stop(now, member, reason)
        elif member.attached:
            self._serve(now, member, event)

    def _over_for(self, member: Member) -> str:
        """Why this learner has to end its loop; empty while it has not."""
        if self.finished:
            return self.finished
        if member.quarantined:
            return f"failed: {member.non_finite} contributions in a row were not finite"
        return "drained" if is_drained(member) else ""

    def _serve(self, now: float, member: Member, report: Report) -> None:
        """Grant what is asked for; send again what seems to have been lost."""
        if report.wants_span:
            span = self._members.lend(member)
            if now - member.granted_at >= RESEND_S:
                member.granted_at = now
                self._send(member, Grant(self.epoch, member.incarnation, span.identifier, span.start, span.stop))
        if member.draining and report.phase == STEPPING and now - member.drain_sent_at >= RESEND_S:
            member.drain_sent_at = now
            self._send(member, Drain(self.epoch, member.incarnation, member.draining, self._config.drain_s))
        if report.phase in (STEPPING, DRAINING):
            for fragment, counters in enumerate(report.counters):
                behind = counters.base_version is None or counters.base_version < self.versions[fragment]
                if behind and now >= self._overdue_at(member, fragment, report.step_s):
                    self._notify(now, member, fragment)

    def _overdue_at(self, member: Member, fragment: int, step_s: float) -> float:
        """When a learner that does not show a fragment's version is told of it (again)."""
        told_at = member.noticed_at.get(fragment)
        if told_at is not None:
            # A report leaves before its boundary's adoptions: what it shows may be a step old.
            return told_at + max(RESEND_S, 2.0 * step_s)
        # It came with a peer's state. The next commit would tell it, unless there is none without it.
        return member.attached_at + max(RESEND_S, self._config.round_steps * self.step_s)

    def _notify(self, now: float, member: Member, fragment: int) -> None:
        """Tell a learner of a fragment's current version."""
        commit = self._newest.get(fragment)
        notice = Notice(
            epoch=self.epoch,
            syncer_step=self.committed_step,
            fragment=fragment,
            version=self.versions[fragment],
            digest=commit.digest if commit else "",
            progress=self.progress,
            merged_step=member.merged_step.get(fragment),
        )
        member.noticed_at[fragment] = now
        self._send(member, notice)

    # -------------------------------------------------------------- syncer steps

    def _advance(self, now: float) -> None:
        """Everything that can happen now, happens: steps are judged, committed in order, and opened."""
        moved = not self.finished
        while moved:
            moved = any([self._judge(now, step) for step in list(self._open)])  # noqa: C419 (all are judged)
            moved |= self._commit_next(now)
            moved |= self._open_next(now)
            moved &= not self.finished

    def _may_open(self) -> bool:
        if self.finished or len(self._open) >= max(1, self._config.overlap_steps):
            return False
        if self._budget.syncer_steps is not None and self.syncer_step >= self._budget.syncer_steps:
            return False
        return len(self._members.live) >= self.quorum

    def _open_next(self, now: float) -> bool:
        if not self._may_open():
            return False
        if self._config.pacing == "clock" and now < self._opened_at + self.step_s:
            return False
        if self._config.pacing == "quorum" and any(s.stage in (Stage.COLLECTING, Stage.GRACE) for s in self._open):
            return False
        self.syncer_step += 1
        self._opened_at = now
        step = OpenStep(self.syncer_step, self._schedule.due(self.syncer_step), now)
        self._open.append(step)
        self._say(StepOpened(step.syncer_step, step.fragment))
        return True

    def _judge(self, now: float, step: OpenStep) -> bool:
        """Move one step as far as it will go. Returns whether it moved."""
        if step.stage in (Stage.COLLECTING, Stage.GRACE):
            return self._collect(now, step)
        if step.stage is Stage.READING and (not step.awaited or now >= step.deadline):
            self._close_reading(now, step)
            return True
        return False

    def _collect(self, now: float, step: OpenStep) -> bool:
        live = [member.name for member in self._members.live]
        step.starved |= len(live) < self.quorum
        if now < step.retry_at:
            return False
        step.retry_at = float("-inf")
        reported = len(self._reported(step).intersection(live))
        verdict = decide(
            now,
            quorum=self.quorum,
            live=len(live),
            reported=reported,
            quorum_at=step.quorum_at,
            grace_s=step.grace_s if step.stage is Stage.GRACE else self.grace_s,
        )
        if verdict.decision is Decision.WAIT:
            if step.stage is Stage.GRACE and min(len(live), reported) < self.quorum:
                step.move(Stage.COLLECTING)
                step.quorum_at = None
                return True
            return False
        if step.fragment is None:
            step.reason = verdict.reason
            return self._pass_if_first(now, step)
        if step.quorum_at is None:
            step.quorum_at = now
            step.grace_s = self.grace_s if verdict.decision is Decision.OPEN_GRACE else 0.0
            if not step.starved:
                self._quorum_s.add(now - step.opened_at)
        if verdict.decision is Decision.OPEN_GRACE:
            step.move(Stage.GRACE)
            return True
        step.reason = verdict.reason
        self._ask(now, step)
        return True

    def _reported(self, step: OpenStep) -> set[str]:
        """Who finished a step after this one opened, or will finish none; in strict overlap, who reached its number."""
        if self._config.overlap == "free":
            leaving = (member for member in self._members.live if member.report and member.report.phase == DRAINING)
            return step.reported | {member.name for member in leaving}
        reached = (member for member in self._members.live if member.report)
        return {member.name for member in reached if member.report and member.report.step >= step.syncer_step}

    def _pass_if_first(self, now: float, step: OpenStep) -> bool:
        """A step without a fragment has nothing to commit, but keeps its place in the order."""
        if self._open[0] is not step:
            return False
        self._open.pop(0)
        self.committed_step = step.syncer_step
        self.moved_at = now
        self._say(StepPassed(step.syncer_step))
        self._finish_if_due(now)
        return True

    def _ask(self, now: float, step: OpenStep) -> None:
        """The quorum is there: read the fragment from everyone who can contribute to it."""
        assert step.fragment is not None
        live = self._members.live
        asked = [
            member
            for member in live
            if (self._config.participants == "eligible" or member.name in self._reported(step))
            and self._has_progress(member, step.fragment)
        ]
        step.decided_at, step.live, step.deadline = now, len(live), now + self._config.read_timeout_s
        step.move(Stage.READING)
        step.awaited = {member.name: member.incarnation for member in asked}
        step.contributions = {}
        step.attempt += 1
        if len(asked) < self.quorum:
            self._reopen(now, step, f"{len(asked)} learners have a current base, the quorum is {self.quorum}")
            return
        for member in asked:
            request = ReadRequest(
                epoch=self.epoch,
                incarnation=member.incarnation,
                syncer_step=step.syncer_step,
                fragment=step.fragment,
                attempt=step.attempt,
                progress=self.progress,
                deadline_s=self._config.read_timeout_s,
            )
            self._send(member, request)

    def _has_progress(self, member: Member, fragment: int) -> bool:
        assert member.report is not None
        if fragment >= len(member.report.counters):
            return False
        counters = member.report.counters[fragment]
        return counters.base_version == self.versions[fragment] and counters.steps >= 1

    def _reopen(self, now: float, step: OpenStep, reason: str) -> None:
        """Back to collecting; a new quorum is counted from here."""
        assert step.fragment is not None
        self._say(StepReopened(step.syncer_step, step.fragment, len(step.contributions), reason))
        step.move(Stage.COLLECTING)
        step.opened_at, step.quorum_at, step.starved = now, None, False
        step.retry_at = now + REOPEN_S
        step.reported, step.awaited, step.contributions = set(), {}, {}

    # -------------------------------------------------------------- contributions

    def _on_contribution(self, now: float, event: Contribution) -> None:
        member = self._members.admit(event, "contribution")
        if member is None:
            self._stop_awaiting(event.learner, "refused", only=event)
            return
        step = next((s for s in self._open if s.syncer_step == event.syncer_step), None)
        asked = step is not None and step.stage is Stage.READING and event.attempt == step.attempt
        if step is None or not asked or event.learner not in step.awaited:
            doubled = step is not None and asked and event.learner in step.contributions
            self._members.refuse(event, "contribution", "doubled" if doubled else "late")
            return
        del step.awaited[event.learner]
        if reason := self._unusable(event, step):
            self._members.refuse(event, "contribution", reason)
            if reason == "non_finite":
                self._quarantine(now, member)
            return
        member.non_finite = 0
        step.contributions[event.learner] = event

    def _quarantine(self, now: float, member: Member) -> None:
        """A learner that stays non-finite never recovers by itself: it has to start anew from the syncer's values."""
        member.non_finite += 1
        if member.non_finite >= NON_FINITE_MAX and not member.quarantined:
            member.quarantined = True
            self._say(Quarantined(member.name, member.incarnation, member.non_finite))
            self._tell_to_stop(now, member, self._over_for(member))

    def _unusable(self, event: Contribution, step: OpenStep) -> str:
        if event.defect:
            return event.defect
        if event.fragment != step.fragment:
            return "wrong_fragment"
        counters = event.counters
        if counters.base_version != self.versions[event.fragment]:
            return "stale_base"
        plausible = counters.steps >= 1 and 1 <= counters.tokens <= event.processed
        if not plausible or counters.base_step + counters.steps != event.step:
            return "wrong_counters"
        return ""

    def _on_read_missed(self, now: float, event: ReadMissed) -> None:
        for step in self._open:
            if step.syncer_step == event.syncer_step and step.awaited.get(event.learner) == event.incarnation:
                self._miss(step, event.learner, event.reason)

    def _miss(self, step: OpenStep, learner: str, reason: str) -> None:
        assert step.fragment is not None
        incarnation = step.awaited.pop(learner)
        self._say(ReadFailed(learner, incarnation, step.syncer_step, step.fragment, reason))

    def _stop_awaiting(self, learner: str, reason: str, only: Contribution | None = None) -> None:
        for step in self._open:
            if only is None:
                step.reported.discard(learner)
            if step.stage is Stage.READING and learner in step.awaited:
                if only is not None and (only.syncer_step, only.incarnation) != (
                    step.syncer_step,
                    step.awaited[learner],
                ):
                    continue
                self._miss(step, learner, reason)

    def _close_reading(self, now: float, step: OpenStep) -> None:
        for learner in list(step.awaited):
            self._miss(step, learner, "timeout")
        if len(step.contributions) < self.quorum:
            self._reopen(now, step, f"{len(step.contributions)} valid contributions, the quorum is {self.quorum}")
            return
        raw = [c.counters.tokens * c.counters.tokens / c.counters.steps for c in step.chosen]
        total = sum(raw)
        step.weights = tuple(weight / total for weight in raw)
        step.move(Stage.MERGING)
        assert step.fragment is not None
        payloads = tuple(contribution.payload for contribution in step.chosen)
        self._effects.append(Merge(step.syncer_step, step.fragment, payloads, step.weights))

    # -------------------------------------------------------------- merge and commit

    def _on_merged(self, now: float, event: Merged) -> None:
        step = next((s for s in self._open if s.syncer_step == event.syncer_step), None)
        if step is None:
            return  # the run finished meanwhile
        assert step.stage is Stage.MERGING
        if not event.finite:
            self._reopen(now, step, "the merged update is not finite")
            return
        step.result = event
        step.move(Stage.MERGED)

    def _commit_next(self, now: float) -> bool:
        """Start the commit of the oldest open step, if it is merged: commits are in the order of t."""
        if not self._open or self._open[0].stage is not Stage.MERGED:
            return False
        step = self._open[0]
        step.move(Stage.JOURNALING)
        step.record = self._account(now, step)
        assert step.result is not None
        self._effects.append(Append(self._sequence, step.record, step.result.proposal))
        self._sequence += 1
        return True

    def _account(self, now: float, step: OpenStep) -> Committed:
        """Count what this commit covers, and write its record."""
        assert step.result is not None and step.fragment is not None and step.quorum_at is not None
        self.tokens_committed += sum(self._members.cover(contribution) for contribution in step.chosen)
        participants = tuple(
            Participant(
                learner=contribution.learner,
                incarnation=contribution.incarnation,
                step=contribution.step,
                base_step=contribution.counters.base_step,
                steps=contribution.counters.steps,
                tokens=contribution.counters.tokens,
                weight=weight,
                digest=contribution.digest,
            )
            for contribution, weight in zip(step.chosen, step.weights, strict=True)
        )
        return Committed(
            syncer_step=step.syncer_step,
            fragment=step.fragment,
            epoch=self.epoch,
            base_version=self.versions[step.fragment],
            participants=participants,
            live=step.live,
            digest=step.result.digest,
            norm=step.result.norm,
            tokens_committed=self.tokens_committed,
            quorum_s=step.quorum_at - step.opened_at,
            grace_s=step.decided_at - step.quorum_at,
            sync_s=now - step.decided_at,
            reason=step.reason,
        )

    def _on_durable(self, now: float, event: Durable) -> None:
        """Durable: now it is the fragment's value, and everyone is told."""
        if not self._open or self._open[0].syncer_step != event.syncer_step:
            return  # the run finished meanwhile
        step = self._open.pop(0)
        assert step.stage is Stage.JOURNALING and step.record is not None and step.result is not None
        fragment = step.record.fragment
        self.versions[fragment] = self.committed_step = step.syncer_step
        self.moved_at = now
        self._sync_s.add(now - step.decided_at)
        self._effects.append(Publish(fragment, step.syncer_step, step.result.proposal))
        self._say(step.record)
        self._newest[fragment] = step.record
        self._members.note_merged(step.record)
        for member in self._members.attached:
            self._notify(now, member, fragment)
        if self._stopping:
            self._finish(now, self._stopping)
        else:
            self._finish_if_due(now)

    # -------------------------------------------------------------- the end

    def _finish_if_due(self, now: float) -> None:
        if self._budget.tokens is not None and self.tokens_committed >= self._budget.tokens:
            self._finish(now, f"{self.tokens_committed} tokens are committed")
        elif self._budget.syncer_steps is not None and self.committed_step >= self._budget.syncer_steps:
            self._finish(now, f"syncer step {self.committed_step} is reached")

    def _on_stop(self, now: float, event: StopRequested) -> None:
        if self.finished or self._stopping:
            return
        if self._open and self._open[0].stage is Stage.JOURNALING:
            self._stopping = event.reason  # it is counted already: it ends the run once it is durable
        else:
            self._finish(now, event.reason)

    def _finish(self, now: float, reason: str) -> None:
        self.finished = reason
        self._open.clear()
        self._say(Finished(self.committed_step, self.tokens_committed, reason))
        for member in self._members.attached:
            self._tell_to_stop(now, member, reason)

    def _tell_to_stop(self, now: float, member: Member, reason: str) -> None:
        member.stopped_at = now
        self._send(member, Stop(self.epoch, reason))

    # -------------------------------------------------------------- saying and sending

    def _say(self, fact: SyncerFact) -> None:
        self._collect_facts()
        self._effects.append(Say(fact))

    def _send(self, member: Member, message: ToLearner) -> None:
        self._collect_facts()
        self._effects.append(Send(member.name, member.incarnation, message))

    def _collect_facts(self) -> None:
        """What the members have to say comes before what follows from it."""
        self._effects.extend(Say(fact) for fact in self._members.take_facts())

    def _drain(self) -> list[Effect]:
        self._collect_facts()
        effects, self._effects = self._effects, []
        return effects
