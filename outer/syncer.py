"""The syncer as a pure state machine: quorum, grace, merge, commit, spans and leases (paper section 3).

`handle(now, event) -> effects`. No I/O, no clock, no randomness, no arrays: payloads and proposals are opaque.
The shell delivers messages and the results of effects, performs the effects in the order given, and calls
`handle(now, Tick())` no later than `wake_at`. A peer's message can be late, doubled or wrong: that is a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from outer.coverage import Coverage, Mark
from outer.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    Participant,
    ReadFailed,
    Refused,
    SpanGranted,
    SpanReturned,
    StepOpened,
    StepPassed,
    StepReopened,
    SyncerFact,
    SyncerStarted,
)
from outer.fragments import Fragment
from outer.leases import Leases
from outer.manifest import difference
from outer.messages import (
    STARTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Grant,
    Notice,
    ReadRequest,
    Report,
    Stop,
    Welcome,
)
from outer.pace import Average, step_time
from outer.quorum import Decision, adaptive_grace, decide
from outer.schedule import Schedule
from outer.spans import SpanPool

if TYPE_CHECKING:
    from outer.config import SyncConfig


class Stage(Enum):
    """Where an open syncer step stands."""

    COLLECTING = "collecting"  # fewer than K reports since it opened
    GRACE = "grace"  # K reported, more are waited for
    READING = "reading"  # participants were asked for the fragment
    MERGING = "merging"  # the shell computes
    MERGED = "merged"  # waits until every earlier step is committed
    JOURNALING = "journaling"  # the shell makes it durable


TRANSITIONS: dict[Stage, tuple[Stage, ...]] = {
    Stage.COLLECTING: (Stage.GRACE, Stage.READING),
    Stage.GRACE: (Stage.READING, Stage.COLLECTING),
    Stage.READING: (Stage.MERGING, Stage.COLLECTING),
    Stage.MERGING: (Stage.MERGED, Stage.COLLECTING),
    Stage.MERGED: (Stage.JOURNALING,),
    Stage.JOURNALING: (),
}

RESEND_S = 1.0  # a notice or grant that a learner does not seem to have is sent again after this long


# ------------------------------------------------------------------ events beside the messages


@dataclass(frozen=True)
class Expect:
    """The orchestrator granted an incarnation and starts it; every older one is fenced."""

    learner: str
    incarnation: int
    lease_s: float


@dataclass(frozen=True)
class Fence:
    """The orchestrator holds an incarnation for dead or is ending it."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class ReadMissed:
    """The shell could not get an answer to a ReadRequest."""

    learner: str
    incarnation: int
    syncer_step: int
    reason: str


@dataclass(frozen=True)
class Merged:
    """Result of a Merge effect."""

    syncer_step: int
    proposal: Any
    digest: str
    norm: float
    finite: bool


@dataclass(frozen=True)
class Durable:
    """Result of an Append effect."""

    syncer_step: int


@dataclass(frozen=True)
class StopRequested:
    reason: str


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = Expect | Fence | Attach | Report | Contribution | ReadMissed | Merged | Durable | StopRequested | Tick


# ------------------------------------------------------------------ effects


@dataclass(frozen=True)
class Say:
    fact: SyncerFact


@dataclass(frozen=True)
class Send:
    learner: str
    incarnation: int
    message: Welcome | ReadRequest | Notice | Grant | Stop


@dataclass(frozen=True)
class Merge:
    """Compute the fragment's next value from these payloads; answer with Merged."""

    syncer_step: int
    fragment: int
    payloads: tuple[Any, ...]
    weights: tuple[float, ...]  # normalised


@dataclass(frozen=True)
class Append:
    """Make the commit durable, conditional on (epoch, sequence); answer with Durable."""

    sequence: int
    record: Committed
    proposal: Any


@dataclass(frozen=True)
class Publish:
    """Make the proposal the fragment's current value, before anyone is told."""

    fragment: int
    version: int
    proposal: Any


Effect = Say | Send | Merge | Append | Publish


# ------------------------------------------------------------------ state


@dataclass(frozen=True)
class Budget:
    """When the run ends: at so many committed tokens, or after so many syncer steps."""

    tokens: int | None
    syncer_steps: int | None


@dataclass
class _Learner:
    """What the syncer knows of one configured learner's newest incarnation."""

    batch_size: int
    incarnation: int = 0
    fenced: bool = True
    attached: bool = False
    report: Report | None = None
    first_step: int = 0  # step number before this incarnation's first
    noticed_at: dict[int, float] = field(default_factory=dict)
    granted_at: float = 0.0
    refused: set[tuple[int, str]] = field(default_factory=set)  # reports refused: said once each


@dataclass
class _Step:
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
    awaited: dict[str, int] = field(default_factory=dict)  # learner -> incarnation
    contributions: dict[str, Contribution] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    result: Merged | None = None
    record: Committed | None = None

    @property
    def chosen(self) -> list[Contribution]:
        """What is merged, in the order of the learners' names: the sum is the same bits every time."""
        return [self.contributions[name] for name in sorted(self.contributions)]

    def move(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage


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
        self.last_commit_at: float | None = None
        self.first_step_at: float | None = None  # when the first finished inner step was reported
        self._processed_before = 0  # tokens of incarnations that are gone
        self._config = config
        self._fragments = fragments
        self._schedule = Schedule(len(fragments), config.round_steps)
        self._learners = {name: _Learner(batch_size) for name, batch_size in learners.items()}
        self._leases = Leases()
        self._spans = SpanPool()
        self._newest: dict[int, Committed] = {}  # by fragment
        self._coverage: dict[tuple[str, int], Coverage] = {}  # by (learner, incarnation)
        self._span_steps = span_steps
        self._budget = budget
        self._manifest = manifest
        self._open: list[_Step] = []
        self._opened_at = float("-inf")
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
                learners=tuple(self._learners),
                quorum=self.quorum,
                round_steps=self._config.round_steps,
                overlap_steps=self._config.overlap_steps,
            )
        )
        return self._drain()

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event; return what to do, in order."""
        self._expire(now)
        handlers: dict[type[Any], Callable[[float, Any], None]] = {
            Expect: self._on_expect,
            Fence: self._on_fence,
            Attach: self._on_attach,
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
        times = [self._leases.next_expiry]
        if not self.finished:
            times += [
                step.quorum_at + step.grace_s
                for step in self._open
                if step.stage is Stage.GRACE and step.quorum_at is not None and step.grace_s is not None
            ]
            times += [step.deadline for step in self._open if step.stage is Stage.READING]
            if self._config.pacing == "clock" and self._may_open():
                times.append(self._opened_at + self.step_s)
        return min((at for at in times if at is not None), default=None)

    @property
    def step_s(self) -> float:
        """xi_step in seconds."""
        return step_time(view.report.step_s for name, view in self._live() if view.report)

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
        return self._processed_before + sum(view.report.tokens for view in self._learners.values() if view.report)

    def view(self, now: float) -> list[dict[str, Any]]:
        """What the syncer knows of each configured learner, for status pages."""
        rows = []
        for name, learner in self._learners.items():
            lease, report = self._leases.get(name), learner.report
            held = [c.base_version for c in report.counters] if report else []
            lags = [ours - (theirs or 0) for ours, theirs in zip(self.versions, held, strict=False)]
            rows.append(
                {
                    "name": name,
                    "incarnation": learner.incarnation,
                    "alive": self._leases.holds(name) and not learner.fenced,
                    "phase": lease.phase if lease and not learner.fenced else "",
                    "lease_age_s": round(now - lease.renewed_at, 3) if lease else None,
                    "step": report.step if report else 0,
                    "step_s": report.step_s if report else 0.0,
                    "tokens": report.tokens if report else 0,
                    "loss": report.loss if report else None,
                    "version_lag": sum(lag > 0 for lag in lags) if lags else None,
                }
            )
        return rows

    # -------------------------------------------------------------- learners come and go

    def _on_expect(self, now: float, event: Expect) -> None:
        learner = self._learners.get(event.learner)
        if learner is None or event.incarnation <= learner.incarnation:
            self._refuse(event, "expect", "unknown_learner" if learner is None else "stale_incarnation")
            return
        self._fence(event.learner, "superseded")
        self._processed_before += learner.report.tokens if learner.report else 0
        self._learners[event.learner] = _Learner(learner.batch_size, event.incarnation, fenced=False)
        self._leases.renew(event.learner, STARTING, now, event.lease_s)

    def _on_fence(self, now: float, event: Fence) -> None:
        learner = self._learners.get(event.learner)
        if learner is not None and learner.incarnation == event.incarnation:
            self._fence(event.learner, event.reason)

    def _fence(self, name: str, reason: str) -> None:
        learner = self._learners[name]
        if learner.fenced:
            return
        learner.fenced = True
        self._leases.end(name)
        self._say(LearnerFenced(name, learner.incarnation, reason))
        for span in self._spans.release(name, learner.incarnation, self._samples_committed(name)):
            self._say(SpanReturned(name, learner.incarnation, span.identifier, span.start, span.stop))
        self._stop_awaiting(name, "fenced")

    def _on_attach(self, now: float, event: Attach) -> None:
        learner = self._admit(event, "attach")
        if learner is None:
            return
        if differs := difference(self._manifest, event.manifest):
            self._refuse(event, "attach", "wrong_config", detail=differs)
            return
        learner.attached = True
        if self._config.overlap == "strict":
            learner.first_step = self.committed_step
        self._say(LearnerAttached(event.learner, event.incarnation, self.syncer_step))
        welcome = Welcome(self.epoch, self.committed_step, self.progress, tuple(self.versions))
        self._send(event.learner, welcome)
        if self.finished:
            self._send(event.learner, Stop(self.epoch, self.finished))

    def _admit(self, event: Attach | Report | Contribution, message: str) -> _Learner | None:
        """The sender, if its incarnation is the one that may speak."""
        learner = self._learners.get(event.learner)
        if learner is None:
            self._refuse(event, message, "unknown_learner")
            return None
        if learner.fenced or event.incarnation != learner.incarnation:
            self._refuse(event, message, "stale_incarnation")
            return None
        if not isinstance(event, Attach) and event.epoch not in (None, self.epoch):
            self._refuse(event, message, "stale_epoch")
            return None
        return learner

    # -------------------------------------------------------------- reports

    def _on_report(self, now: float, event: Report) -> None:
        learner = self._admit(event, "report")
        if learner is None:
            return
        silent_s = self._leases.renew(event.learner, event.phase, now, event.lease_s)
        if silent_s is not None:
            self._say(LeaseRenewed(event.learner, event.incarnation, silent_s))
        before = learner.report
        if before is not None and event.sequence <= before.sequence:
            return  # overtaken by a newer one, or doubled: its lease was all it had to say
        if event.phase == STOPPED:
            learner.report = event
            self._fence(event.learner, "stopped")
            return
        learner.report = event
        if self.first_step_at is None and event.tokens > 0:
            self.first_step_at = now
        if before is not None and event.step > before.step and event.phase == STEPPING:
            for step in self._open:
                step.reported.add(event.learner)
        self._serve(now, event.learner, learner, event)

    def _serve(self, now: float, name: str, learner: _Learner, report: Report) -> None:
        """Grant what is asked for; send again what seems to have been lost."""
        if not learner.attached or self.finished:
            return
        if report.wants_span:
            newest = self._spans.newest(name, learner.incarnation)
            if newest is None or report.newest_span >= newest.identifier:
                samples = self._span_steps * learner.batch_size
                newest = self._spans.grant(name, learner.incarnation, samples, learner.batch_size)
                self._say(SpanGranted(name, learner.incarnation, newest.identifier, newest.start, newest.stop))
                learner.granted_at = float("-inf")
            if now - learner.granted_at >= RESEND_S:
                learner.granted_at = now
                grant = Grant(self.epoch, learner.incarnation, newest.identifier, newest.start, newest.stop)
                self._send(name, grant)
        if report.phase == STEPPING:
            for fragment, counters in enumerate(report.counters):
                behind = counters.base_version is None or counters.base_version < self.versions[fragment]
                if behind and now - learner.noticed_at.get(fragment, now) >= RESEND_S:
                    self._notify(now, name, fragment)

    def _notify(self, now: float, name: str, fragment: int) -> None:
        """Tell a learner of a fragment's newest commit."""
        commit = self._newest[fragment]
        notice = Notice(
            epoch=self.epoch,
            syncer_step=self.committed_step,
            fragment=fragment,
            version=commit.syncer_step,
            digest=commit.digest,
            progress=self.progress,
            participants=tuple(participant.learner for participant in commit.participants),
        )
        self._learners[name].noticed_at[fragment] = now
        self._send(name, notice)

    def _live(self) -> list[tuple[str, _Learner]]:
        """Learners that hold a valid lease in the stepping phase, by name."""
        return [
            (name, learner)
            for name, learner in sorted(self._learners.items())
            if not learner.fenced
            and self._leases.holds(name)
            and learner.report is not None
            and learner.report.phase == STEPPING
        ]

    def _expire(self, now: float) -> None:
        for name, lease in self._leases.expire(now):
            learner = self._learners[name]
            self._say(LeaseExpired(name, learner.incarnation, lease.phase, now - lease.renewed_at))
            self._stop_awaiting(name, "lease_expired")

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
        return len(self._live()) >= self.quorum

    def _open_next(self, now: float) -> bool:
        if not self._may_open():
            return False
        if self._config.pacing == "clock" and now < self._opened_at + self.step_s:
            return False
        if self._config.pacing == "quorum" and any(s.stage in (Stage.COLLECTING, Stage.GRACE) for s in self._open):
            return False
        self.syncer_step += 1
        self._opened_at = now
        step = _Step(self.syncer_step, self._schedule.due(self.syncer_step), now)
        self._open.append(step)
        self._say(StepOpened(step.syncer_step, step.fragment))
        return True

    def _judge(self, now: float, step: _Step) -> bool:
        """Move one step as far as it will go. Returns whether it moved."""
        if step.stage in (Stage.COLLECTING, Stage.GRACE):
            return self._collect(now, step)
        if step.stage is Stage.READING and (not step.awaited or now >= step.deadline):
            self._close_reading(now, step)
            return True
        return False

    def _collect(self, now: float, step: _Step) -> bool:
        live = [name for name, _ in self._live()]
        verdict = decide(
            now,
            quorum=self.quorum,
            live=len(live),
            reported=len(self._reported(step).intersection(live)),
            quorum_at=step.quorum_at,
            grace_s=step.grace_s if step.stage is Stage.GRACE else self.grace_s,
        )
        if verdict.decision is Decision.WAIT:
            if step.stage is Stage.GRACE and len(live) < self.quorum:
                step.move(Stage.COLLECTING)
                step.quorum_at = None
                return True
            return False
        if step.fragment is None:
            step.reason = verdict.reason
            return self._pass_if_first(step)
        if step.quorum_at is None:
            step.quorum_at = now
            step.grace_s = self.grace_s if verdict.decision is Decision.OPEN_GRACE else 0.0
            self._quorum_s.add(now - step.opened_at)
        if verdict.decision is Decision.OPEN_GRACE:
            step.move(Stage.GRACE)
            return True
        step.reason = verdict.reason
        self._ask(now, step)
        return True

    def _reported(self, step: _Step) -> set[str]:
        """Who finished a step after this one opened; in strict overlap, who has reached its number."""
        if self._config.overlap == "free":
            return step.reported
        return {name for name, learner in self._live() if learner.report and learner.report.step >= step.syncer_step}

    def _pass_if_first(self, step: _Step) -> bool:
        """A step without a fragment has nothing to commit, but keeps its place in the order."""
        if self._open[0] is not step:
            return False
        self._open.pop(0)
        self.committed_step = step.syncer_step
        self._say(StepPassed(step.syncer_step))
        self._finish_if_due()
        return True

    def _ask(self, now: float, step: _Step) -> None:
        """The quorum is there: read the fragment from everyone who can contribute to it."""
        assert step.fragment is not None
        live = self._live()
        asked = {
            name: learner.incarnation
            for name, learner in live
            if (self._config.participants == "eligible" or name in self._reported(step))
            and self._has_progress(learner, step.fragment)
        }
        step.decided_at, step.live, step.deadline = now, len(live), now + self._config.read_timeout_s
        step.move(Stage.READING)
        step.awaited = asked
        step.contributions = {}
        if len(asked) < self.quorum:
            self._reopen(now, step, f"{len(asked)} learners have a current base, the quorum is {self.quorum}")
            return
        for name, incarnation in asked.items():
            request = ReadRequest(
                self.epoch,
                incarnation,
                step.syncer_step,
                step.fragment,
                self.progress,
                self._config.read_timeout_s,
            )
            self._send(name, request)

    def _has_progress(self, learner: _Learner, fragment: int) -> bool:
        assert learner.report is not None
        if fragment >= len(learner.report.counters):
            return False
        counters = learner.report.counters[fragment]
        return counters.base_version == self.versions[fragment] and counters.steps >= 1

    def _reopen(self, now: float, step: _Step, reason: str) -> None:
        """Back to collecting; a new quorum is counted from here."""
        assert step.fragment is not None
        self._say(StepReopened(step.syncer_step, step.fragment, len(step.contributions), reason))
        step.move(Stage.COLLECTING)
        step.opened_at, step.quorum_at = now, None
        step.reported, step.awaited, step.contributions = set(), {}, {}

    # -------------------------------------------------------------- contributions

    def _on_contribution(self, now: float, event: Contribution) -> None:
        learner = self._admit(event, "contribution")
        if learner is None:
            self._stop_awaiting(event.learner, "refused", only=event)
            return
        step = next((s for s in self._open if s.syncer_step == event.syncer_step), None)
        if step is None or step.stage is not Stage.READING or event.learner not in step.awaited:
            doubled = step is not None and event.learner in step.contributions
            self._refuse(event, "contribution", "doubled" if doubled else "late")
            return
        del step.awaited[event.learner]
        if reason := self._unusable(event, learner, step):
            self._refuse(event, "contribution", reason)
            return
        step.contributions[event.learner] = event

    def _unusable(self, event: Contribution, learner: _Learner, step: _Step) -> str:
        if event.defect:
            return event.defect
        if event.fragment != step.fragment:
            return "wrong_fragment"
        counters = event.counters
        if counters.base_version != self.versions[event.fragment]:
            return "stale_base"
        if counters.steps < 1 or counters.tokens < 1 or counters.base_step + counters.steps != event.step:
            return "wrong_counters"
        return ""

    def _on_read_missed(self, now: float, event: ReadMissed) -> None:
        for step in self._open:
            if step.syncer_step == event.syncer_step and step.awaited.get(event.learner) == event.incarnation:
                self._miss(step, event.learner, event.reason)

    def _miss(self, step: _Step, learner: str, reason: str) -> None:
        assert step.fragment is not None
        incarnation = step.awaited.pop(learner)
        self._say(ReadFailed(learner, incarnation, step.syncer_step, step.fragment, reason))

    def _stop_awaiting(self, learner: str, reason: str, only: Contribution | None = None) -> None:
        for step in self._open:
            if step.stage is Stage.READING and learner in step.awaited:
                if only is not None and (only.syncer_step, only.incarnation) != (
                    step.syncer_step,
                    step.awaited[learner],
                ):
                    continue
                self._miss(step, learner, reason)

    def _close_reading(self, now: float, step: _Step) -> None:
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

    def _account(self, now: float, step: _Step) -> Committed:
        """Count what this commit covers, and write its record."""
        assert step.result is not None and step.fragment is not None and step.quorum_at is not None
        participants = []
        for contribution, weight in zip(step.chosen, step.weights, strict=True):
            counters, name, incarnation = (
                contribution.counters,
                contribution.learner,
                contribution.incarnation,
            )
            coverage = self._coverage.setdefault((name, incarnation), Coverage())
            self.tokens_committed += coverage.add(
                Mark(counters.base_step, contribution.processed - counters.tokens),
                Mark(contribution.step, contribution.processed),
            )
            if self._learners[name].incarnation == incarnation:
                self._spans.trim(name, incarnation, self._samples_committed(name))
            participants.append(
                Participant(
                    name,
                    incarnation,
                    contribution.step,
                    counters.base_step,
                    counters.steps,
                    counters.tokens,
                    weight,
                    contribution.digest,
                )
            )
        return Committed(
            syncer_step=step.syncer_step,
            fragment=step.fragment,
            epoch=self.epoch,
            base_version=self.versions[step.fragment],
            participants=tuple(participants),
            live=step.live,
            digest=step.result.digest,
            norm=step.result.norm,
            tokens_committed=self.tokens_committed,
            quorum_s=step.quorum_at - step.opened_at,
            grace_s=step.decided_at - step.quorum_at,
            sync_s=now - step.decided_at,
            reason=step.reason,
        )

    def _samples_committed(self, name: str) -> int:
        """Samples up to the last committed step of the learner's incarnation."""
        learner = self._learners[name]
        coverage = self._coverage.get((name, learner.incarnation))
        return max(0, coverage.last_step - learner.first_step) * learner.batch_size if coverage else 0

    def _on_durable(self, now: float, event: Durable) -> None:
        """Durable: now it is the fragment's value, and everyone is told."""
        if not self._open or self._open[0].syncer_step != event.syncer_step:
            return  # the run finished meanwhile
        step = self._open.pop(0)
        assert step.stage is Stage.JOURNALING and step.record is not None and step.result is not None
        fragment = step.record.fragment
        self.versions[fragment] = self.committed_step = step.syncer_step
        self.last_commit_at = now
        self._sync_s.add(now - step.decided_at)
        self._effects.append(Publish(fragment, step.syncer_step, step.result.proposal))
        self._say(step.record)
        self._newest[fragment] = step.record
        for name, learner in self._learners.items():
            if learner.attached and not learner.fenced:
                self._notify(now, name, fragment)
        self._finish_if_due()

    # -------------------------------------------------------------- the end

    def _finish_if_due(self) -> None:
        if self._budget.tokens is not None and self.tokens_committed >= self._budget.tokens:
            self._finish(f"{self.tokens_committed} tokens are committed")
        elif self._budget.syncer_steps is not None and self.committed_step >= self._budget.syncer_steps:
            self._finish(f"syncer step {self.committed_step} is reached")

    def _on_stop(self, now: float, event: StopRequested) -> None:
        if not self.finished:
            self._finish(event.reason)

    def _finish(self, reason: str) -> None:
        self.finished = reason
        self._open.clear()
        self._say(Finished(self.committed_step, self.tokens_committed, reason))
        for name, learner in self._learners.items():
            if learner.attached and not learner.fenced:
                self._send(name, Stop(self.epoch, reason))

    # -------------------------------------------------------------- saying and sending

    def _refuse(self, event: Any, message: str, reason: str, detail: str = "") -> None:
        """Record that something changed nothing. A report is one of many alike: said once per reason."""
        learner = self._learners.get(event.learner)
        if message == "report" and learner is not None:
            if (event.incarnation, reason) in learner.refused:
                return
            learner.refused.add((event.incarnation, reason))
        syncer_step = event.syncer_step if isinstance(event, Contribution) else None
        fragment = event.fragment if isinstance(event, Contribution) else None
        self._say(Refused(event.learner, event.incarnation, message, reason, syncer_step, fragment, detail))

    def _say(self, fact: SyncerFact) -> None:
        self._effects.append(Say(fact))

    def _send(self, learner: str, message: Welcome | ReadRequest | Notice | Grant | Stop) -> None:
        self._effects.append(Send(learner, self._learners[learner].incarnation, message))

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
