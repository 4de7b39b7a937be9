"""Messages to learners other than reads: attach, donors, spans, notices, drain and stop.

Sessions sends messages again that a learner does not seem to have received. It gets a RunSnapshot with each call
and has no access to open steps, quorums or merges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outer.protocol.effect_buffer import EffectBuffer
from outer.protocol.events_effects import DrainRequested, Reply
from outer.protocol.facts import DonorNamed, DrainStarted, LearnerAttached, SpanGranted
from outer.protocol.manifest import difference
from outer.protocol.members import Member, Members
from outer.protocol.messages import (
    DRAINING,
    STEPPING,
    Attach,
    Donor,
    Drain,
    Grant,
    Notice,
    Report,
    SeekDonor,
    Stop,
    Welcome,
)
from outer.protocol.open_step import is_usable

if TYPE_CHECKING:
    from outer.config import SyncConfig

RECORDS_WAITING_MAX = 256  # for the journal, beyond which no span is lent
RESEND_S = 1.0  # a message that a learner does not seem to have received is sent again after this long


@dataclass(frozen=True)
class RunSnapshot:
    """The state of the run, as messages to learners describe it."""

    syncer_step: int  # the newest opened
    committed_step: int  # the newest committed or passed
    versions: tuple[int, ...]
    digests: tuple[str, ...]  # of the versions; "" before a fragment's first commit
    progress: float  # of the budget, 0 to 1
    finished: str  # the reason, once the run has ended
    suspended: str = ""  # the reason, once the run is suspended


class Sessions:
    """All sessions of one epoch. Times are seconds of the shell's monotonic clock."""

    def __init__(
        self,
        epoch: int,
        config: SyncConfig,
        manifest: Mapping[str, Any],
        members: Members,
        out: EffectBuffer,
    ) -> None:
        self._epoch = epoch
        self._config = config
        self._manifest = manifest
        self._members = members
        self._out = out

    # -------------------------------------------------------------- joining

    def attach(self, now: float, event: Attach, run: RunSnapshot) -> None:
        """Accept a learner whose manifest agrees with ours; refuse any other."""
        member = self._members.admit(event, "attach")
        if member is None:
            return
        if differs := difference(self._manifest, event.manifest):
            self._members.refuse(event, "attach", "wrong_config", detail=differs)
            return
        if self._config.overlap == "strict" and not member.attached:
            member.first_step = run.committed_step
        member.attached, member.attached_at = True, now
        self._out.emit(LearnerAttached(event.learner, event.incarnation, run.syncer_step))
        now_at = run.committed_step, run.progress, run.versions
        self._out.add(Reply(Welcome(self._epoch, *now_at, self._out.snapshot)))
        if over := run.finished or run.suspended:
            self.stop(now, member, over, suspend=bool(run.suspended))

    def name_donor(self, event: SeekDonor, run: RunSnapshot) -> None:
        """Answer a joiner with a donor: a peer that holds every fragment from the syncer.

        In the first round there is no donor: no learner's state is worth copying yet.
        """
        member = self._members.admit(event, "seek")
        if member is None:
            return
        clock = max(run.versions)  # learners do not hear of syncer steps at which no fragment is due
        named = "", 0
        first_round = run.committed_step < self._config.round_steps
        if not first_round and (donor := choose_donor(self._members.live, member, event.failed)):
            donor.times_donor += 1
            named = donor.name, donor.incarnation
            self._out.emit(DonorNamed(member.name, member.incarnation, *named, clock))
        self._out.add(Reply(Donor(self._epoch, member.incarnation, *named, clock)))

    # -------------------------------------------------------------- while attached

    def on_report(self, now: float, member: Member, report: Report, run: RunSnapshot) -> None:
        """Send what a report asks for, and again what it shows the learner has not received."""
        if report.phase == DRAINING and not member.draining:
            self._start_drain(member, "its process was asked to end", now + self._config.drain_s)
        if not member.attached:
            return
        if reason := self._stop_reason(member, run):
            if now - member.stopped_at >= RESEND_S:
                self.stop(now, member, reason, suspend=bool(run.suspended))
            return
        if report.wants_span:
            self._lend(now, member)
        if member.draining and report.phase == STEPPING and now - member.drain_sent_at >= RESEND_S:
            self._send_drain(now, member)
        if report.phase in (STEPPING, DRAINING):
            for fragment, counters in enumerate(report.counters):
                behind = counters.base_version is None or counters.base_version < run.versions[fragment]
                # What it has stepped on this version has merged in part, into one that is lost.
                behind = behind or counters.base_step < member.merged_step.get(fragment, 0)
                if behind and now >= self._overdue_at(member, fragment, report.step_s):
                    self.announce(now, member, fragment, run)

    def _lend(self, now: float, member: Member) -> None:
        """Lend a span. The grant is sent once it is durable, so that no other epoch can lend the same samples.

        While the journal is away nothing is lent beyond a bound: learners may be restarted all the while.
        """
        if self._out.waiting >= RECORDS_WAITING_MAX:
            return
        span = self._members.lend(member)
        if span.identifier <= member.durable_span and now - member.granted_at >= RESEND_S:
            member.granted_at = now
            self._out.send(member, Grant(self._epoch, member.incarnation, span.identifier, span.start, span.stop))

    def grant(self, now: float, granted: SpanGranted) -> None:
        """A grant is durable: send it."""
        member = self._members.get(granted.learner, granted.incarnation)
        if member is not None:
            member.durable_span = granted.span
            member.granted_at = now
            self._out.send(member, Grant(self._epoch, member.incarnation, granted.span, granted.start, granted.stop))

    def _overdue_at(self, member: Member, fragment: int, step_s: float) -> float:
        """When a learner whose report lacks a fragment's current version gets a notice of it (again)."""
        told_at = member.noticed_at.get(fragment)
        if told_at is not None:
            # A report is sent before the adoptions at its boundary, so it may be one step old.
            return told_at + max(RESEND_S, 2.0 * step_s)
        # Never notified: it joined with a peer's state. The next commit notifies it, but may need it for a quorum.
        return member.attached_at + max(RESEND_S, self._config.round_steps * self._members.step_s)

    def announce(self, now: float, member: Member, fragment: int, run: RunSnapshot) -> None:
        """Send a learner a notice of a fragment's version, unless it owes an answer on a base that is usable."""
        version = run.versions[fragment]
        held = member.report.counters[fragment] if member.report is not None and member.report.counters else None
        usable = held is not None and is_usable(held, member, fragment, version, self._config)
        if not (usable and fragment in member.owes) or is_leaving(member):
            self.notify(now, member, fragment, run)

    def notify(self, now: float, member: Member, fragment: int, run: RunSnapshot) -> None:
        """Send a learner a notice of a fragment's current version."""
        notice = Notice(
            epoch=self._epoch,
            syncer_step=run.committed_step,
            fragment=fragment,
            version=run.versions[fragment],
            digest=run.digests[fragment],
            progress=run.progress,
            merged_step=member.merged_step.get(fragment),
        )
        member.noticed_at[fragment] = now
        self._out.send(member, notice)

    # -------------------------------------------------------------- leaving

    def drain(self, now: float, event: DrainRequested) -> None:
        """Ask a learner to leave once its finished steps are merged; one without finished steps is fenced at once.

        A learner that is leaving already is asked again, because the new deadline may be earlier.
        """
        member = self._members.get(event.learner, event.incarnation)
        asked = member is not None and self._may_lose(member)
        if member is not None:
            self._start_drain(member, event.reason, now + event.deadline_s)
        if member is not None and asked:
            self._send_drain(now, member)
        elif member is not None:
            self._members.fence(member.name, "drained")
        self._out.add(Reply(asked))

    def _may_lose(self, member: Member) -> bool:
        """Whether the learner may have finished steps that are not merged."""
        if member.report is None:
            return member.durable_span >= 0
        return member.report.phase in (STEPPING, DRAINING)

    def _start_drain(self, member: Member, reason: str, until: float) -> None:
        member.drain_until = min(member.drain_until, until)
        if not member.draining:
            member.draining = reason
            self._out.emit(DrainStarted(member.name, member.incarnation, reason))

    def _send_drain(self, now: float, member: Member) -> None:
        member.drain_sent_at = now
        left_s = max(0.0, member.drain_until - now)
        self._out.send(member, Drain(self._epoch, member.incarnation, member.draining, left_s))

    def quarantine(self, now: float, member: Member, run: RunSnapshot) -> None:
        """Stop a learner whose contributions stay non-finite: only a restart from the syncer's values helps."""
        self._members.quarantine(member)
        self.stop(now, member, self._stop_reason(member, run))

    def _stop_reason(self, member: Member, run: RunSnapshot) -> str:
        """Why this learner has to end its loop; empty while it does not."""
        if over := run.finished or run.suspended:
            return over
        if member.quarantined:
            return f"failed: {member.non_finite} contributions or losses in a row were not finite"
        return "drained" if is_drained(member) else ""

    def stop(self, now: float, member: Member, reason: str, suspend: bool = False) -> None:
        """Tell a learner to end its loop. `suspend`: save its state first, to continue later."""
        member.stopped_at = now
        self._out.send(member, Stop(self._epoch, reason, suspend))


# ------------------------------------------------------------------ judging a learner by its last report


def choose_donor(live: Iterable[Member], joiner: Member, failed: Collection[str]) -> Member | None:
    """Pick a donor: the joiner's own region first, then the member that was named least often; None if none fits."""
    fit = [member for member in live if member.name != joiner.name and member.name not in failed and is_whole(member)]
    return min(fit, key=lambda member: (member.region != joiner.region, member.times_donor, member.name), default=None)


def is_whole(member: Member) -> bool:
    """Whether a learner can be a donor: it steps, has every fragment from the syncer, and sent no non-finite value."""
    report = member.report
    return (
        report is not None
        and report.phase == STEPPING
        and not member.draining
        and not member.non_finite
        and all(counters.base_version is not None for counters in report.counters)
    )


def is_leaving(member: Member) -> bool:
    """Whether a learner has stopped stepping, to leave once its finished steps are merged."""
    return member.report is not None and member.report.phase == DRAINING


def is_drained(member: Member) -> bool:
    """Whether a draining learner has no progress left on any fragment that a commit could still take."""
    report = member.report
    if report is None or report.phase != DRAINING:
        return False
    return all(counters.base_version is None or counters.steps == 0 for counters in report.counters)
