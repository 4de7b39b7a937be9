"""The learners as the syncer knows them: incarnations, leases, lent samples, and committed tokens.

Members decides whose messages are accepted, who is live, and which samples each learner gets. It decides nothing
about quorums, merges or versions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outer.protocol.counts import LEFT_OUT, Counts, add
from outer.protocol.coverage import Coverage, Mark
from outer.protocol.events_effects import Expect
from outer.protocol.facts import (
    Committed,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    Quarantined,
    Refused,
    SetAside,
    SpanGranted,
    SpanReturned,
    SyncerFact,
)
from outer.protocol.leases import Leases, LinkRate
from outer.protocol.link_estimate import LinkEstimate, LinkWindow
from outer.protocol.link_ladder import LadderPlace
from outer.protocol.links import Links, UnderWay
from outer.protocol.messages import (
    DRAINING,
    STARTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Report,
    SeekDonor,
    malformed,
)
from outer.protocol.sample_spans import SUSPECTS_MAX, Span, SpanPool, span_size

if TYPE_CHECKING:
    from outer.protocol.recovery import Recovered

AHEAD = 4  # batches, at most, that a process has built, or is building, and has not reported as done
REFUSED_MAX = 256  # refused reports that are remembered, so that each is recorded once

ENDED = frozenset({"failed", "killed", "lease_expired"})  # reasons for fencing for which a batch may be the cause

Key = tuple[str, int]  # learner, incarnation


@dataclass
class Member:
    """One learner's newest incarnation."""

    name: str
    batch_size: int
    region: str = ""
    incarnation: int = 0
    fenced: bool = True
    attached: bool = False
    attached_at: float = 0.0
    draining: str = ""  # why it was asked to leave; empty while it was not
    drain_until: float = float("inf")
    drain_sent_at: float = float("-inf")
    quarantined: bool = False
    times_donor: int = 0  # times it was named as a donor
    report: Report | None = None
    back_at: float = float("-inf")  # when its lease was renewed after it had expired
    first_step: int = 0  # the step number before this incarnation's first step
    noticed_at: dict[int, float] = field(default_factory=dict)  # by fragment
    merged_step: dict[int, int] = field(default_factory=dict)  # by fragment: its own step in the newest merged read
    read_at: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=32))  # merged: syncer step, own step
    missed: int = -1  # sequence number of its newest report when it let a read time out
    link: LinkRate = field(default_factory=LinkRate)  # from it to the syncer: for deadlines
    answers: LinkEstimate = field(default_factory=LinkEstimate)  # how long its answers take on that link
    place: LadderPlace = field(default_factory=LadderPlace)  # of its link, on the ladder
    under_way: dict[int, UnderWay] = field(default_factory=dict)  # by fragment: answers that nobody need wait for
    asked_ahead: dict[int, int] = field(default_factory=dict)  # by fragment: the newest step, or probe
    window: LinkWindow = field(default_factory=LinkWindow)  # how many of those at a time
    overdue: bool = False  # an answer was waited for in vain, and none has come since
    owes: set[int] = field(default_factory=set)  # fragments of which a merge did not wait for its answer
    non_finite: int = 0  # contributions in a row that were refused as non-finite
    outliers: int = 0  # merges that were not finite, with its contribution as the largest
    stopped_at: float = float("-inf")  # when Stop was last sent
    granted_at: float = float("-inf")  # when its newest span was last sent
    durable_span: int = -1  # the newest durable grant; only durable grants are sent
    restored: bool = False  # known from an earlier epoch; whether it is alive is not known yet
    live: bool = False  # counts for quorums
    pace_s: float = 0.0  # its step time, as far as xi_step counts it

    @property
    def unheard(self) -> bool:
        """Whether it let a read time out and has not reported since. It may be frozen, so it is not asked again."""
        return self.report is not None and self.report.sequence == self.missed


class Members:
    """All members of a run. Facts that arise here are collected until `drain_facts`."""

    def __init__(
        self,
        epoch: int,
        learners: Mapping[str, int],
        span_steps: int,
        ahead_s: float = 0.0,
        sample_tokens: int = 0,
        aside_max: int = 0,
        round_steps: int = 1,
    ) -> None:
        """`learners` maps every configured learner to its batch size in samples. A span has samples for `span_steps`
        steps, or for half of `ahead_s` seconds of stepping, if that is more. `sample_tokens`: of a sample, or 0.
        `aside_max`: how often samples may be set aside. `round_steps`: H.
        """
        self.step_s = 0.0  # xi_step in seconds; the last known value while no live learner has one
        self._epoch = epoch
        self._members = {name: Member(name, batch_size) for name, batch_size in learners.items()}
        self._span_steps, self._ahead_s, self._sample_tokens = span_steps, ahead_s, sample_tokens
        self._lent_known = True  # whether every loan is
        self._leases = Leases()
        self._spans = SpanPool()
        self._suspects: deque[tuple[int, int]] = deque(maxlen=SUSPECTS_MAX)  # samples [start, stop)
        self._aside, self._aside_max, self._round_steps = 0, aside_max, round_steps
        self.set_aside: tuple[int, int] | None = None  # the newest, of this epoch
        self._coverage: dict[Key, Coverage] = {}
        self._dead: set[Key] = set()  # fenced, with coverage that a contribution may still need
        self._refused: dict[tuple[str, int, str], None] = {}  # newest reports: (learner, incarnation, reason)
        self._left: dict[Key, tuple[str, int]] = {}  # fenced: why, and the tokens that it had processed
        self.counts = Counts()  # for status pages
        for name in learners:
            self.counts.of(name)
        self._facts: list[SyncerFact] = []
        # Kept up to date, one member at a time, so that an event costs the same however many learners there are.
        self.live: list[Member] = []  # a valid lease, stepping or draining, not quarantined; by name
        self._paces: list[float] = []  # the known step times of live members, sorted
        self._changed: list[Member] = []  # since the last `drain_changed`

    def restore(self, recovered: Recovered) -> None:
        """Take over the state of an earlier epoch. `resume` then says which incarnations are alive."""
        self._spans, self._coverage, self._lent_known = recovered.spans, recovered.coverage, recovered.whole
        self._aside, self._suspects = recovered.set_aside, recovered.suspects
        self._dead = self._coverage.keys() - recovered.incarnations.items()
        for name, incarnation in recovered.incarnations.items():
            key = (name, incarnation)
            newest = self._spans.newest(*key)
            self._members[name] = Member(
                name,
                recovered.batch_sizes.get(key, 0),
                incarnation=incarnation,
                fenced=False,
                noticed_at=dict.fromkeys(range(len(recovered.versions)), float("-inf")),  # send again
                merged_step=recovered.merged_step.get(key, {}),
                durable_span=newest.identifier if newest else -1,
                restored=True,
            )

    def resume(self, now: float, alive: Iterable[Expect]) -> None:
        """These incarnations are alive, not attached yet. All others that an earlier epoch knew are fenced."""
        for event in alive:
            member = self._members.get(event.learner)
            if member is not None and member.restored and event.incarnation == member.incarnation:
                member.batch_size, member.region, member.restored = event.batch_size, event.region, False
                self._leases.renew(member.name, STARTING, now, event.lease_s)
            else:
                self.expect(now, event)
        for member in list(self._members.values()):
            if member.restored:
                self.fence(member.name, "killed")

    def drain_facts(self) -> list[SyncerFact]:
        if not self._facts:
            return []
        facts, self._facts = self._facts, []
        return facts

    # -------------------------------------------------------------- who is attached, who is live

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def knows(self, name: str) -> bool:
        return name in self._members

    @property
    def attached(self) -> list[Member]:
        """Members that get notices and Stop."""
        return [member for member in self._members.values() if member.attached and not member.fenced]

    def _recount(self, member: Member) -> None:
        """Count this member as live, or not any more, after a change of it; xi_step follows at once.

        xi_step is the median of the live learners' average step times.
        """
        phase = member.report.phase if member.report else ""
        counts = not (member.fenced or member.quarantined) and phase in (STEPPING, DRAINING)
        live = counts and self._leases.holds(member.name)
        if live != member.live:
            member.live = live
            place = bisect_left(self.live, member.name, key=lambda each: each.name)
            if live:
                self.live.insert(place, member)
            else:
                del self.live[place]
        pace_s = member.report.step_s if live and member.report else 0.0
        if pace_s != member.pace_s:
            if member.pace_s > 0:
                del self._paces[bisect_left(self._paces, member.pace_s)]
            if pace_s > 0:
                insort(self._paces, pace_s)
            member.pace_s = pace_s
        if known := len(self._paces):
            self.step_s = (self._paces[(known - 1) // 2] + self._paces[known // 2]) / 2
        self._changed.append(member)

    def drain_changed(self) -> list[Member]:
        """The members that may have begun, or ceased, to count for a quorum since the last call."""
        changed, self._changed = self._changed, []
        return changed

    @property
    def next_expiry(self) -> float | None:
        return self._leases.next_expiry

    # -------------------------------------------------------------- incarnations

    def expect(self, now: float, event: Expect) -> bool:
        """A new incarnation starts; the one before it is fenced. Returns False for one that is known, and refuses an
        older one.
        """
        name = event.learner
        member = self._members.get(name)
        if member is not None:
            if event.incarnation == member.incarnation:
                return False
            if event.incarnation < member.incarnation:
                self.refuse(event, "expect", "stale_incarnation")
                return False
            self.fence(name, "superseded")
        self._members[name] = Member(name, event.batch_size, event.region, event.incarnation, fenced=False)
        self.counts.of(name)
        self._leases.renew(name, STARTING, now, event.lease_s)
        return True

    def fence(self, name: str, reason: str, incarnation: int | None = None) -> bool:
        """Accept nothing more from this incarnation, by default the newest; its uncommitted samples return."""
        member = self._members.get(name)
        if member is None or member.fenced or incarnation not in (None, member.incarnation):
            return False
        member.fenced = True
        self._dead.add((name, member.incarnation))
        self._left[name, member.incarnation] = reason, member.report.tokens if member.report else 0
        self._leases.end(name)
        self._recount(member)
        self._facts.append(LearnerFenced(name, member.incarnation, reason))
        key, (ended_on, again) = (name, member.incarnation), self._blame(member, reason)
        aside = ended_on if again else (0, 0)
        for span, returns in self._spans.release(*key, self._samples_committed(member), aside):
            back = (*key, span.identifier, span.start, span.stop)
            told = ended_on if span.start < ended_on[1] and ended_on[0] < span.stop else None
            self._facts.append(SpanReturned(*back, told) if returns else SetAside(*back, self._spoilt_step(member)))
        return True

    @staticmethod
    def _spoilt_step(member: Member) -> int:
        """The first of the newest steps in a row whose losses were not finite; 0 without any."""
        report = member.report
        return report.step - report.non_finite + 1 if report and report.non_finite else 0

    def _blame(self, member: Member, reason: str) -> tuple[tuple[int, int], bool]:
        """The samples that this incarnation ended on; True: those of them that another did before it, to set aside.

        A loop that fails, or waits for data, is on the batch after its last step, or on the first of those whose losses
        were not finite. One that is killed may have begun the batches after it, too.
        """
        report = member.report
        if reason not in ENDED or report is None or report.phase not in (STEPPING, STOPPED):
            return (0, 0), False
        batches = 1 if reason == "failed" or report.waits else AHEAD
        used = (report.step - report.non_finite - member.first_step) * member.batch_size
        ended_on = self._spans.part(member.name, member.incarnation, used, batches * member.batch_size)
        if ended_on is None:
            return (0, 0), False
        for suspect in self._suspects:
            both = max(suspect[0], ended_on[0]), min(suspect[1], ended_on[1])
            if both[0] < both[1] and self._aside < self._aside_max:
                self._aside += 1
                self.set_aside = both
                return both, True
        self._suspects.append(ended_on)
        return ended_on, False

    def known(self, name: str) -> Member:
        """The newest incarnation of a learner that was asked for something."""
        return self._members[name]

    def get(self, name: str, incarnation: int) -> Member | None:
        """This incarnation, if its messages are accepted."""
        member = self._members.get(name)
        return member if member and not member.fenced and member.incarnation == incarnation else None

    def admit(self, event: Attach | SeekDonor | Report | Contribution, message: str) -> Member | None:
        """The sender, if its incarnation is current, it addresses this epoch, and can be right; else None, and Refused.

        It cannot have made more steps than it was lent samples for, nor processed more tokens than these steps have.
        """
        if wrong := malformed(event):
            known = wrong not in ("learner", "incarnation")
            sender = SeekDonor(event.learner, event.incarnation, 0) if known else SeekDonor("", 0, 0)
            self.refuse(sender, message, "malformed", detail=wrong)
            return None
        member = self._members.get(event.learner)
        reason = ""
        if member is None:
            reason = "unknown_learner"
        elif member.fenced or event.incarnation != member.incarnation:
            reason = "stale_incarnation"
        elif not isinstance(event, Attach) and event.epoch not in (None, self._epoch):
            reason = "stale_epoch"
        elif isinstance(event, Report | Contribution) and self._exceeds(member, event):
            reason = "wrong_counters"
        if reason:
            self.refuse(event, message, reason)
            return None
        return member

    def _exceeds(self, member: Member, event: Report | Contribution) -> bool:
        samples = (event.step - member.first_step) * member.batch_size
        tokens = event.tokens if isinstance(event, Report) else event.processed
        if not self._sample_tokens:
            return False
        if self._lent_known and samples > self._spans.lent(member.name, member.incarnation):
            return True
        return tokens > samples * self._sample_tokens

    def refuse(self, event: Any, message: str, reason: str, detail: str = "") -> None:
        """Record a refused message; refused reports once per incarnation and reason, if that is not long ago."""
        if message == "report":
            key = (event.learner, event.incarnation, reason)
            if key in self._refused:
                return
            self._refused[key] = None
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
        syncer_step = event.syncer_step if isinstance(event, Contribution) else None
        fragment = event.fragment if isinstance(event, Contribution) else None
        self._facts.append(Refused(event.learner, event.incarnation, message, reason, syncer_step, fragment, detail))

    # -------------------------------------------------------------- leases

    def record_report(self, now: float, member: Member, report: Report) -> bool:
        """Renew the sender's lease, if this report is newer than all before it; returns whether it is.

        One that was overtaken or doubled is no later sign of life, and it may name the long lease of a start.
        """
        if member.report is not None and report.sequence <= member.report.sequence:
            return False
        if report.waits and member.unheard:
            member.missed = report.sequence  # its loop cannot answer yet
        silent_s = self._leases.renew(report.learner, report.phase, now, report.lease_s)
        if silent_s is not None:
            member.back_at = now
            self._facts.append(LeaseRenewed(report.learner, report.incarnation, silent_s))
        coverage = self._coverage.get((member.name, member.incarnation))
        known = member.report.tokens if member.report else coverage.last_tokens if coverage else 0
        self.counts.of(member.name).tokens_processed += max(0, report.tokens - known)
        member.report = report
        member.non_finite = max(member.non_finite, report.non_finite)
        self._recount(member)
        return True

    def quarantine(self, member: Member) -> None:
        """Ask this member for no more contributions."""
        member.quarantined = True
        self._facts.append(Quarantined(member.name, member.incarnation, member.non_finite))
        self._recount(member)

    def expire(self, now: float) -> list[str]:
        """The learners whose leases expired since the last call."""
        expired, before = self._leases.expire(now), self.step_s
        for name, lease in expired:
            member = self._members[name]
            self._recount(member)
            self._facts.append(LeaseExpired(name, member.incarnation, lease.phase, now - lease.renewed_at))
        if not self._paces:
            self.step_s = before  # of all that expired together, not of the last of them
        return [name for name, _ in expired]

    # -------------------------------------------------------------- spans

    def lend(self, member: Member) -> Span:
        """The next span for a member: its newest if its reports do not show it yet, else a new one."""
        assert member.report is not None
        newest = self._spans.newest(member.name, member.incarnation)
        if newest is None or member.report.newest_span >= newest.identifier:
            samples = span_size(self._span_steps, self._ahead_s, member.report.step_s) * member.batch_size
            newest = self._spans.grant(member.name, member.incarnation, samples, member.batch_size)
            span = (newest.identifier, newest.start, newest.stop)
            self._facts.append(SpanGranted(member.name, member.incarnation, *span, member.batch_size))
            member.granted_at = float("-inf")
        return newest

    # -------------------------------------------------------------- what is committed

    def cover(self, contribution: Contribution) -> int:
        """Count a merged contribution. Returns the tokens that it commits for the first time."""
        counters, key = contribution.counters, (contribution.learner, contribution.incarnation)
        fresh = self._coverage.setdefault(key, Coverage()).add(
            Mark(counters.base_step, contribution.processed - counters.tokens),
            Mark(contribution.step, contribution.processed),
        )
        self.counts.of(contribution.learner).tokens_committed += fresh
        member = self._members[contribution.learner]
        if member.incarnation == contribution.incarnation:
            self._spans.trim(*key, self._samples_committed(member))
        return fresh

    def forget_dead(self, merging: Collection[Key]) -> None:
        """Forget what fenced incarnations have covered, but for those with a contribution that is yet to merge."""
        for key in self._dead.difference(merging):
            coverage = self._coverage.pop(key, None) or Coverage()
            self._dead.discard(key)
            reason, processed = self._left.pop(key, ("", 0))  # of an earlier epoch's it is not known
            for why, tokens in ((reason, processed - coverage.last_tokens), (LEFT_OUT, coverage.left_out)):
                if reason and tokens > 0:
                    add(self.counts.of(key[0]).tokens_discarded, why, tokens)

    @property
    def has_dead(self) -> bool:
        return bool(self._dead)

    def note_missed(self, member: Member, fragment: int, late: UnderWay | None) -> None:
        """A read is not waited for any more. `late`: it may come; else nothing is asked before the next report."""
        assert member.report is not None, "only learners that have reported are read"
        member.overdue = True
        if late is None:
            member.missed = member.report.sequence
            member.link.lapse()
        else:
            member.under_way[fragment] = late

    def note_merged(self, commit: Committed, paced: bool) -> None:
        """Remember for each participant which of its steps the new version contains; if `paced`, for its rounds too."""
        for participant in commit.participants:
            member = self._members[participant.learner]
            if member.incarnation == participant.incarnation:
                member.merged_step[commit.fragment] = participant.step
                member.owes.discard(commit.fragment)
                if paced:
                    member.read_at.append((commit.syncer_step, participant.step))

    def _samples_committed(self, member: Member) -> int:
        """How many samples the incarnation used up to its last committed step."""
        coverage = self._coverage.get((member.name, member.incarnation))
        return max(0, coverage.last_step - member.first_step) * member.batch_size if coverage else 0

    # -------------------------------------------------------------- for status pages

    def rows(self, now: float, versions: Sequence[int], links: Links | None = None) -> list[dict[str, Any]]:
        """One row for each known learner."""
        return [self._row(now, each, versions) | (links.row(each) if links else {}) for each in self._members.values()]

    def _row(self, now: float, member: Member, versions: Sequence[int]) -> dict[str, Any]:
        lease, report = self._leases.get(member.name), member.report
        held = [counters.base_version or 0 for counters in report.counters] if report else []
        since, until = (member.read_at[0], member.read_at[-1]) if member.read_at else ((0, 0), (0, 0))
        passed, own = until[0] - since[0], until[1] - since[1]
        return {
            "name": member.name,
            "incarnation": member.incarnation,
            "alive": self._leases.holds(member.name),
            "phase": lease.phase if lease else "",  # fencing ends the lease
            "lease_age_s": round(now - lease.renewed_at, 3) if lease else None,
            "step": report.step if report else 0,
            "step_s": report.step_s if report else 0.0,
            "round_steps": self._round_steps * own / passed if 4 * passed >= self._round_steps else None,
            "tokens": report.tokens if report else 0,
            "loss": report.loss if report else None,
            "aux": report.aux if report else None,
            "merged": bool(member.merged_step),  # a commit contains steps of this incarnation
            "version_lag": sum(ours > theirs for ours, theirs in zip(versions, held, strict=False)) if held else None,
        }
