"""The syncer: a pure state machine for quorum, grace, merge and commit of fragments (paper section 3).

`handle(now, event) -> effects`. No I/O, no clock, no randomness, no arrays: payloads and proposals are opaque handles.
A shell delivers messages and the results of effects, performs the effects in order, and calls `handle(now, Tick())` no
later than `wake_at`; events_effects.py is its manual. A late, doubled or wrong message is recorded, never an error.

This file takes a syncer step from opening to commit:

    open -> collect reports -> (grace) -> read contributions -> merge -> commit in order of t -> publish and notify

The parts: OpenStep (open_step.py) holds a step's stage and contributions, quorum.py judges it, ReadRequests reads the
fragment, Members knows who is live, Sessions talks to learners about everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from outer.protocol.counts import Counts
from outer.protocol.effect_buffer import EffectBuffer
from outer.protocol.events_effects import (
    Cut,
    DrainRequested,
    Durable,
    Effect,
    Event,
    Expect,
    Fence,
    Living,
    Merged,
    Publish,
    ReadMissed,
    StopRequested,
    TakeSnapshot,
    Tick,
)
from outer.protocol.facts import (
    Committed,
    Finished,
    SnapshotTaken,
    SpanGranted,
    StepOpened,
    StepPassed,
    SyncerStarted,
)
from outer.protocol.fragments import Fragment
from outer.protocol.link_ladder import Uplinks
from outer.protocol.links import EARLY, Links
from outer.protocol.members import Members
from outer.protocol.messages import DRAINING, NON_FINITE_MAX, STEPPING, STOPPED, Attach, Contribution, Report, SeekDonor
from outer.protocol.open_step import OpenStep, Stage
from outer.protocol.quorum import Decision, StepTiming
from outer.protocol.read_requests import REOPEN_S, ReadRequests
from outer.protocol.schedule import Budget, Schedule
from outer.protocol.sessions import RESEND_S, RunSnapshot, Sessions

if TYPE_CHECKING:
    from outer.config import SyncConfig
    from outer.protocol.recovery import Recovered

__all__ = ["NON_FINITE_MAX", "REOPEN_S", "RESEND_S", "Budget", "Syncer"]


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
        recovered: Recovered | None = None,
        ahead_s: float = 0.0,
        aside_max: int = 0,
        reopened: bool = False,
        durability: str = "",
        uplinks: Uplinks | None = None,
        sample_tokens: int = 0,
    ) -> None:
        """`learners`: every configured learner and its batch size in samples. `quorum`: K. `span_steps`, `ahead_s`,
        `sample_tokens` and `aside_max`: as for Members. `recovered`: the state of earlier epochs. `durability`: for the
        log only. `reopened`: a run that was stopped, or whose budget was raised, continues. `uplinks`: the bytes of
        contributions; without it, float32 and no other format.
        """
        assert 1 <= quorum <= len(learners)
        assert recovered is None or config.overlap == "free", "strict overlap has one epoch"
        self.epoch = epoch
        self.quorum = quorum
        self.finished: str = ""  # the reason, once the end of the run is durable
        self.suspended: str = ""  # the reason, once the run is suspended: a later epoch continues it
        self.tokens_committed = 0  # by durable commits
        self.versions = [0] * len(fragments)
        self.syncer_step = 0  # the newest opened
        self.committed_step = 0  # the newest committed or passed
        self.moved_at: float | None = None  # when a syncer step was last committed or passed
        self.first_step_at: float | None = None  # when a learner first reported a finished inner step
        self._config = config
        self._fragments = fragments
        self._schedule = Schedule(len(fragments), config.round_steps)
        self._members = Members(epoch, learners, span_steps, ahead_s, sample_tokens, aside_max, config.round_steps)
        self._out = EffectBuffer(self._members)
        whole = tuple(4 * fragment.size for fragment in fragments)
        uplinks = uplinks or Uplinks(("",), (whole,))
        self._payload_sizes = dict(zip(uplinks.codecs, uplinks.sizes, strict=True))
        self._links = Links(config, uplinks, self._out.emit)
        self._sessions = Sessions(epoch, config, manifest, self._members, self._out)
        self._read_requests = ReadRequests(epoch, config, quorum, self._members, self._out, self._links, whole)
        self._digests = [""] * len(fragments)  # of the versions
        self._budget, self._ahead_s, self._reopened = budget, ahead_s, reopened
        self._durability = durability
        self._open: list[OpenStep] = []
        self._opened_at = self._merged_at = float("-inf")  # the newest step opened; a merge ended
        self._paced_at = float("inf")  # the first exchange was over: so far no more than tau steps were open
        self._stopping: StopRequested | TakeSnapshot | None = None  # waits for a commit that is being journaled
        self._ending = ""  # the reason, once the end is decided: nothing opens or merges any more
        self._tokens_counted = 0  # including commits that are not durable yet
        self._resumed = recovered is None
        self._timing = StepTiming(config)
        self._handlers: dict[type[Any], Callable[[float, Any], None]] = {
            Expect: self._on_expect,
            Living: self._on_living,
            Fence: self._on_fence,
            DrainRequested: lambda now, event: self._sessions.drain(now, event),
            Attach: lambda now, event: self._sessions.attach(now, event, self._run_snapshot),
            SeekDonor: lambda now, event: self._sessions.name_donor(event, self._run_snapshot),
            Report: self._on_report,
            Contribution: self._on_contribution,
            ReadMissed: self._on_read_missed,
            Merged: self._on_merged,
            Durable: self._on_durable,
            StopRequested: self._on_stop,
            TakeSnapshot: self._on_snapshot,
            Tick: lambda now, event: None,
        }
        if recovered is not None:
            self._restore(recovered)

    def _restore(self, recovered: Recovered) -> None:
        """Continue after the newest commit. Syncer steps that were open, or had passed, after it are opened again."""
        self.versions, self._digests = recovered.versions, recovered.digests
        self.tokens_committed = self._tokens_counted = recovered.tokens_committed
        if recovered.finished is not None and not self._may_continue(recovered.finished):
            self.finished = self._ending = recovered.finished.reason
        self.syncer_step = self.committed_step = max(*recovered.versions, recovered.clock)
        self._members.restore(recovered)

    def _may_continue(self, end: Finished) -> bool:
        """Whether a finished run continues: it was reopened and has not reached its (perhaps raised) budget.

        It may have ended at a step at which no fragment was due.
        """
        return self._reopened and not self._budget.reached(end.tokens_committed, end.syncer_step)

    def start(self) -> list[Effect]:
        """The first effects of an epoch. Call it once, before `handle`."""
        self._out.emit(
            SyncerStarted(
                epoch=self.epoch,
                fragments=tuple(tuple(t.name for t in fragment.tensors) for fragment in self._fragments),
                sizes=tuple(fragment.size for fragment in self._fragments),
                learners=self._members.names,
                quorum=self.quorum,
                round_steps=self._config.round_steps,
                overlap_steps=self._config.overlap_steps,
                versions=tuple(self.versions),
                tokens_committed=self.tokens_committed,
                read_timeout_s=self._config.read_timeout_s,
                lease_s=self._config.lease_s,
                ahead_s=self._ahead_s,
                durability=self._durability,
                base_window=self._config.base_window,
                weights=self._config.weights,
                codec=self._config.codec,
            )
        )
        self._finish_if_due()
        return self._out.drain()

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Process one event; return the effects to perform, in order. `now`: seconds of a monotonic clock."""
        assert self._resumed or type(event) is Living, "the first event of an epoch that continues another is Living"
        for name in self._members.expire(now):
            self._stop_awaiting(name, "lease_expired")
        self._handlers[type(event)](now, event)
        for member in self._members.drain_changed():
            for step in self._open:
                step.count(member, self._config.overlap)
        self._advance(now)
        if self._members.has_dead:
            self._members.forget_dead({(each.learner, each.incarnation) for each in self.held})
        return self._out.drain()

    # -------------------------------------------------------------- what the shell may read

    @property
    def marker(self) -> int:
        """The newest snapshot, which fetched payloads carry; 0 for none, or a final one (only Stop carries that)."""
        return 0 if self.suspended else self._out.snapshot

    @property
    def wake_at(self) -> float | None:
        """The latest time for the next Tick; None: only an event can change anything."""
        times = [self._members.next_expiry]
        if not self._ending:
            times += [step.wake_at for step in self._open]
            if self._config.pacing == "clock" and self._may_open():
                times.append(self._opened_at + self.step_s)
        return min((at for at in times if at is not None), default=None)

    @property
    def step_s(self) -> float:
        """xi_step, the median step time of the live learners, in seconds."""
        return self._members.step_s

    @property
    def progress(self) -> float:
        """The committed share of the budget, 0 to 1."""
        return self._budget.progress(self.tokens_committed, self.committed_step)

    @property
    def grace_s(self) -> float | None:
        """The grace for a quorum reached now, in seconds; None for endless."""
        return self._timing.grace_s(self.step_s)

    @property
    def counts(self) -> Counts:
        """What this epoch has counted, for status pages."""
        return self._members.counts

    @property
    def set_aside(self) -> tuple[int, int] | None:
        """The samples [start, stop) that this epoch set aside last."""
        return self._members.set_aside

    @property
    def held(self) -> list[Contribution]:
        """The contributions that may still merge, or are being merged."""
        return [*self._links.early, *(each for step in self._open for each in step.contributions.values())]

    def knows(self, learner: str) -> bool:
        """Whether a learner of this name was configured or expected; of any other nothing may be kept."""
        return self._members.knows(learner)

    def view(self, now: float) -> list[dict[str, Any]]:
        """One row for each known learner, for status pages."""
        return self._members.rows(now, self.versions, self._links)

    @property
    def _run_snapshot(self) -> RunSnapshot:
        versions, digests = tuple(self.versions), tuple(self._digests)
        over = (self.finished, self.suspended)
        return RunSnapshot(self.syncer_step, self.committed_step, versions, digests, self.progress, *over)

    # -------------------------------------------------------------- learners come, report and go

    def _on_living(self, now: float, event: Living) -> None:
        assert not self._resumed
        self._resumed = True
        self._members.resume(now, event.expected)

    def _on_expect(self, now: float, event: Expect) -> None:
        if self._members.expect(now, event):
            self._stop_awaiting(event.learner, "superseded")

    def _on_fence(self, now: float, event: Fence) -> None:
        if self._members.fence(event.learner, event.reason, event.incarnation):
            self._stop_awaiting(event.learner, "fenced")

    def _on_report(self, now: float, event: Report) -> None:
        member = self._members.admit(event, "report")
        if member is None:
            return
        if len(event.counters) != len(self._fragments):
            self._members.refuse(event, "report", "wrong_counters")
            return
        before = member.report
        if not self._members.record_report(now, member, event):
            return  # old news
        if member.non_finite >= NON_FINITE_MAX and not member.quarantined:
            self._sessions.quarantine(now, member, self._run_snapshot)
        if event.phase == STOPPED:
            failed = "failed" if event.non_finite >= NON_FINITE_MAX else "stopped"
            self._members.fence(member.name, "drained" if member.draining else failed)
            self._stop_awaiting(member.name, "stopped")
            return
        if self.first_step_at is None and event.tokens > 0:
            self.first_step_at = now
        stepped = before is not None and event.step > before.step and event.phase == STEPPING
        for step in self._open if stepped or event.phase == DRAINING else ():
            due = step.fragment or 0
            if self._read_requests.can_answer(now, member, due, self.versions[due]) if step.lacked else stepped:
                step.reported.add(member.name)
        self._sessions.on_report(now, member, event, self._run_snapshot)

    def _stop_awaiting(self, learner: str, reason: str) -> None:
        """Drop a learner from the open steps. After an expired lease alone its reports still count."""
        if reason != "lease_expired":
            self._out.forget(self._links.take(learner))
        for step in self._open:
            if reason != "lease_expired":
                step.reported.discard(learner)
            if learner in step.awaited:
                self._out.emit(step.miss(learner, reason))

    # -------------------------------------------------------------- a syncer step: opening

    def _advance(self, now: float) -> None:
        """Judge, commit and open syncer steps until nothing moves."""
        moved = not self._ending
        while moved:
            moved = any([self._judge(now, step) for step in list(self._open)])  # noqa: C419 (judge every step)
            moved |= self._commit_next(now)
            moved |= self._open_next(now)
            moved &= not self._ending

    def _may_open(self) -> bool:
        if self._ending or len(self._open) >= self._timing.open_max(self.step_s):
            return False
        if self._budget.syncer_steps is not None and self.syncer_step >= self._budget.syncer_steps:
            return False
        return len(self._members.live) >= self.quorum

    def _open_next(self, now: float) -> bool:
        if not self._may_open():
            return False
        if self._config.pacing == "clock" and now < self._opened_at + self.step_s:
            return False
        if self._config.pacing == "quorum" and any(step.collects for step in self._open):
            return False
        self.syncer_step += 1
        self._opened_at = now
        step = OpenStep(self.syncer_step, self._schedule.due(self.syncer_step), now, self._config.weights)
        for member in self._members.live:
            step.count(member, self._config.overlap)
        self._open.append(step)
        self._out.emit(StepOpened(step.syncer_step, step.fragment))
        due = {step.fragment for step in self._open if step.fragment is not None}
        ahead = self.syncer_step, self._schedule, self.versions, due, self.progress
        self._read_requests.ask_ahead(now, *ahead, self._timing.usual_room_s(self.step_s))
        return True

    # -------------------------------------------------------------- a syncer step: quorum and grace

    def _judge(self, now: float, step: OpenStep) -> bool:
        """Move one step if its stage allows it now. Returns whether it moved."""
        if step.collects:
            return self._collect(now, step)
        if step.stage is Stage.READING and step.has_read(now):
            assert step.fragment is not None
            self._read_requests.close(now, step, self.versions[step.fragment])
            return True
        return False

    def _collect(self, now: float, step: OpenStep) -> bool:
        live, reported = len(self._members.live), len(step.ready)
        # Learners adopt within a step of each other; one that never does is not waited for.
        literal = self._config.grace == 0.0 and self._config.participants == "reported"
        grace_s = max(self.grace_s or 0.0, self.step_s) if step.lacked and not literal else self.grace_s
        verdict = step.judge(now, self.quorum, live, reported, grace_s)
        if verdict.decision is Decision.WAIT:
            if step.stage is Stage.GRACE and min(live, reported) < self.quorum:
                step.move(Stage.COLLECTING)
                step.quorum_at = None
                return True
            return False
        if step.fragment is None:
            return self._pass_if_first(now, step)
        if step.quorum_at is None:
            step.quorum_at = now
            step.grace_s = grace_s
            if not step.starved:
                self._timing.quorum_s.add(now - step.opened_at)
        if verdict.decision is Decision.OPEN_GRACE:
            step.move(Stage.GRACE)
            return True
        step.reason = verdict.reason
        room_s = self._timing.room_s(self.step_s, now - step.opened_at)
        usual_s = self._timing.usual_room_s(self.step_s)
        version = self.versions[step.fragment]
        self._read_requests.ask(now, step, version, self.progress, room_s, usual_s)
        return True

    def _pass_if_first(self, now: float, step: OpenStep) -> bool:
        """Pass a step at which no fragment is due, in the order of t. Returns whether it passed."""
        if self._open[0] is not step:
            return False
        step.move(Stage.PASSED)
        self._open.pop(0)
        self.committed_step = step.syncer_step
        self.moved_at = now
        self._out.emit(StepPassed(step.syncer_step))
        self._finish_if_due()
        return True

    # -------------------------------------------------------------- a syncer step: reading

    def _find(self, syncer_step: int) -> OpenStep | None:
        return next((step for step in self._open if step.syncer_step == syncer_step), None)

    def _on_read_missed(self, now: float, event: ReadMissed) -> None:
        self._read_requests.miss(now, self._find(event.syncer_step), event, event.reason)

    def _on_contribution(self, now: float, event: Contribution) -> None:
        step = self._find(event.syncer_step)
        member = self._members.admit(event, "contribution")
        if member is None:
            self._out.forget([event])
            if isinstance(event.learner, str):
                self._read_requests.miss(now, step, event, "refused")
            return
        early = self._read_requests.note_transfer(now, member, event)
        reason = "late"
        if early and event.syncer_step > self.committed_step and (step is None or step.collects):
            reason = self._read_requests.keep(member, event, self.versions)
        elif step is not None and step.fragment is not None:
            reason = step.accept(event, member, self.versions[step.fragment], self._config)
        if event.attempt == EARLY:
            member.overdue = reason == "late"
        if not reason:
            member.non_finite = 0
            return
        self._members.refuse(event, "contribution", reason)
        self._out.forget([event])
        if reason == "non_finite":
            member.non_finite += 1
            if member.non_finite >= NON_FINITE_MAX and not member.quarantined:
                self._sessions.quarantine(now, member, self._run_snapshot)

    # -------------------------------------------------------------- a syncer step: merge and commit

    def _on_merged(self, now: float, event: Merged) -> None:
        step = self._find(event.syncer_step)
        if step is None:
            return  # the run ended meanwhile
        assert step.stage is Stage.MERGING
        if not event.finite:
            self._read_requests.reopen(now, step, "the merged update is not finite" + self._blame(now, step, event))
            return
        step.result, step.merge_s = event, now - step.read_at
        step.queued_s = max(0.0, self._merged_at - step.read_at)
        self._merged_at = now
        step.move(Stage.MERGED)

    def _blame(self, now: float, step: OpenStep, event: Merged) -> str:
        """Quarantine the learner whose contribution was the largest of NON_FINITE_MAX such merges; say who it was."""
        if event.outlier < 0:
            return ""
        largest = step.chosen[event.outlier]
        member = self._members.get(largest.learner, largest.incarnation)
        if member is not None:
            member.outliers += 1
            if member.outliers >= NON_FINITE_MAX and not member.quarantined:
                member.non_finite = member.outliers
                self._sessions.quarantine(now, member, self._run_snapshot)
        return f"; the largest change is that of {largest.learner} {largest.incarnation}"

    def _commit_next(self, now: float) -> bool:
        """Journal the oldest open step if it is merged: steps commit in the order of t."""
        if not self._open or self._open[0].stage is not Stage.MERGED:
            return False
        step = self._open[0]
        assert step.fragment is not None and step.result is not None
        self._tokens_counted += sum(self._members.cover(contribution) for contribution in step.chosen)
        record = step.commit(now, self.epoch, self.versions[step.fragment], self._tokens_counted)
        step.merge_s -= now  # and from here until it is durable
        self._out.append(record, step.result.proposal)
        return True

    def _on_durable(self, now: float, event: Durable) -> None:
        for record in self._out.mark_durable(event.sequence):
            if isinstance(record, Committed):
                self._on_committed(now, record)
            elif isinstance(record, SpanGranted):
                self._sessions.grant(now, record)
            elif isinstance(record, Finished):
                self._on_finished(now, record)

    def _on_committed(self, now: float, record: Committed) -> None:
        """A commit is durable: publish the fragment's new value and notify all attached learners."""
        step = self._open.pop(0)
        step.move(Stage.COMMITTED)
        assert step.record is record and step.result is not None
        fragment = record.fragment
        self.versions[fragment] = self.committed_step = step.syncer_step
        self.tokens_committed = record.tokens_committed
        self._digests[fragment] = record.digest
        self.moved_at = now
        self._paced_at, merge_s = min(self._paced_at, now), step.merge_s + now
        self._timing.exchanges_s.append(step.read_at - step.opened_at + merge_s - step.queued_s)
        self._timing.sync_s.add(now - step.decided_at)
        self._timing.merge_s.add(merge_s)
        self._out.add(Publish(fragment, step.syncer_step, step.result.proposal))
        self.counts.commit(record, self._payload_sizes)
        self._members.note_merged(record, step.opened_at >= self._paced_at)
        run = self._run_snapshot
        for member in self._members.attached:
            self._sessions.announce(now, member, fragment, run)
        self._finish_if_due()
        if self._stopping is not None:
            self._handlers[type(self._stopping)](now, self._stopping)

    # -------------------------------------------------------------- the end

    def _finish_if_due(self) -> None:
        if reason := self._budget.reached(self.tokens_committed, self.committed_step):
            self._finish(reason)

    def _on_stop(self, now: float, event: StopRequested) -> None:
        if self._ending:
            return
        if self._is_committing:
            self._stopping = self._stopping or event
        else:
            self._finish(event.reason)

    @property
    def _is_committing(self) -> bool:
        """Whether a commit is being journaled. Whatever ends the run has to wait for it."""
        return bool(self._open) and self._open[0].stage is Stage.JOURNALING

    def _on_snapshot(self, now: float, event: TakeSnapshot) -> None:
        """Take a consistent cut: from here on every message carries the snapshot's identifier."""
        if self._ending or event.identifier <= self._out.snapshot:
            return
        if event.final and self._is_committing:
            self._stopping = self._stopping or event
            return
        self._out.snapshot = event.identifier
        asked = tuple(sorted({name for step in self._open for name in (*step.awaited, *step.contributions)}))
        cut = SnapshotTaken(event.identifier, bool(event.final), tuple(self.versions), self.tokens_committed, asked)
        self._out.emit(cut)
        self._out.add(Cut(event.identifier))
        if event.final:  # Stop is the only message that announces a final snapshot
            self.suspended = self._ending = event.final
            self._drop_open()
            for member in self._members.attached:
                self._sessions.stop(now, member, event.final, suspend=True)
            return
        newest = max(range(len(self.versions)), key=self.versions.__getitem__)
        for member in self._members.attached:  # announces the snapshot; the next commit may be far away
            self._sessions.notify(now, member, newest, self._run_snapshot)

    def _finish(self, reason: str) -> None:
        """End the run: nothing merges from here on. Learners are told once that is durable."""
        if self._ending:
            return
        self._ending = reason
        self._drop_open()
        self._out.append(Finished(self.committed_step, self.tokens_committed, reason))

    def _drop_open(self) -> None:
        for step in self._open:
            if step.stage is Stage.READING:
                self._out.forget(step.contributions.values())
            step.move(Stage.DROPPED)
        self._open.clear()

    def _on_finished(self, now: float, record: Finished) -> None:
        self.finished = record.reason
        for member in self._members.attached:
            self._sessions.stop(now, member, record.reason)
