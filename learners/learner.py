"""The learner as a pure state machine: what to step on, what to answer, what to adopt (paper section 2).

`handle(now, event) -> effects`. No I/O, no clock, no arrays: payloads are opaque. The shell's training loop asks
at every boundary between two steps; fetch and request threads may call in between (the shell holds one lock).
A learner never waits for a peer; only in strict overlap, a setting for lock-step studies, does it wait for the
syncer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from learners.facts import (
    Adopted,
    AdoptionRefused,
    Donated,
    DonorFailed,
    LearnerFact,
    PhaseEntered,
    StateReceived,
    StepFinished,
)
from learners.holdings import Base, Copy, Donation, Joining, Request, Spans
from learners.signals import (
    Answer,
    Apply,
    Compiled,
    Decline,
    Donate,
    Effect,
    Enter,
    Event,
    Exit,
    Fetch,
    Fetched,
    FetchFailed,
    Hold,
    Inherit,
    Leave,
    Recover,
    Resume,
    RunStep,
    Say,
    Send,
    Stage,
    Staged,
    StateArrived,
    StateMissed,
    StateSent,
    StepDone,
)
from outer.coverage import Mark
from outer.messages import (
    COMPILING,
    DRAINING,
    IMPORTING,
    JOINING,
    STARTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Drain,
    FragmentCounters,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    StateRequest,
    Stop,
    Welcome,
)
from outer.pace import Average
from outer.schedule import Schedule

if TYPE_CHECKING:
    from outer.config import SyncConfig

TRANSITIONS: dict[str, tuple[str, ...]] = {
    STARTING: (IMPORTING, STOPPED),
    IMPORTING: (COMPILING, STOPPED),
    COMPILING: (JOINING, STOPPED),
    JOINING: (STEPPING, STOPPED),
    STEPPING: (DRAINING, STOPPED),
    DRAINING: (STOPPED,),
    STOPPED: (),
}

DONORS_MAX = 2  # peers asked for their state before the syncer's snapshot is taken
FETCH_ATTEMPTS_MAX = 5  # while joining; later the syncer sends the notice again
HOLD_S = 0.5  # a waiting loop looks up, and renews its lease, this often


class Learner:
    """One incarnation of one learner unit. Times are seconds of the shell's monotonic clock."""

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        config: SyncConfig,
        fragments: int,
        batch_size: int,
        span_steps: int,
        start_s: float,
    ) -> None:
        self.name, self.incarnation = name, incarnation
        self.phase = STARTING
        self.step = 0
        self._config = config
        self._schedule = Schedule(fragments, config.round_steps)
        self._batch_size = batch_size
        self._span_samples = span_steps * batch_size
        self._start_s = start_s
        self._epoch: int | None = None
        self._syncer_step = 0
        self._progress = 0.0
        self._processed = 0
        self._bases = [Base() for _ in range(fragments)]
        self._copies: dict[int, Copy] = {}
        self._requests: list[Request] = []
        self._joining = Joining()
        self._donations: list[Donation] = []
        self._drain_until: float | None = None  # once it is to leave
        self._pending: dict[int, tuple[int, Any]] = {}  # fragment -> (version, payload)
        self._fetching: dict[int, int] = {}
        self._noticed: dict[int, Notice] = {}  # the newest, by fragment
        self._attempts = 0
        self._spans = Spans()
        self._step_s = Average(config.smoothing)
        self._boundary_at: float | None = None
        self._waited_s = 0.0
        self._waited_for = ""
        self._held_at: float | None = None
        self._loss: float | None = None
        self._reports = 0
        self._reported_at = float("-inf")
        self._running: RunStep | None = None
        self._stop = ""
        self._effects: list[Effect] = []

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event; return what to do, in order."""
        handlers: dict[type[Any], Callable[[float, Any], None]] = {
            Enter: self._on_enter,
            Compiled: self._on_compiled,
            Welcome: self._on_welcome,
            Notice: self._on_notice,
            Grant: self._on_grant,
            ReadRequest: self._on_read,
            Drain: self._on_drain,
            Leave: lambda now, event: self._drain(now, self._config.drain_s),
            Stop: self._on_stop,
            Fetched: self._on_fetched,
            FetchFailed: self._on_fetch_failed,
            StateRequest: self._on_state_request,
            StateArrived: self._on_state,
            StateMissed: self._on_state_missed,
            StateSent: self._on_state_sent,
            StepDone: self._on_step_done,
            Staged: self._on_staged,
            Resume: lambda now, event: self._boundary(now),
        }
        handlers[type(event)](now, event)
        effects, self._effects = self._effects, []
        return effects

    # -------------------------------------------------------------- from start to first step

    def _on_enter(self, now: float, event: Enter) -> None:
        self._enter(now, event.phase)

    def _enter(self, now: float, phase: str) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase
        self._say(PhaseEntered(phase))
        self._report(now)

    def _on_compiled(self, now: float, event: Compiled) -> None:
        self._enter(now, JOINING)
        self._effects.append(Send(Attach(self.name, self.incarnation, event.manifest)))

    def _on_welcome(self, now: float, event: Welcome) -> None:
        """The clock from which on nothing is missed; now find a state to start from."""
        if self.phase != JOINING or self._epoch is not None:
            return  # doubled
        self._epoch = event.epoch
        self._hear(event.syncer_step, event.progress)
        self._joining = Joining(attached_at=now, syncer_step=event.syncer_step, versions=event.versions)
        if self._config.overlap == "strict":
            self.step = event.syncer_step
        self._report(now)
        if self._config.overlap == "strict" or self._config.recover == "syncer":
            self._take_snapshot()
        else:
            self._recover()

    def _recover(self) -> None:
        assert self._epoch is not None
        seek = SeekDonor(self.name, self.incarnation, self._epoch, self._joining.failed)
        self._effects.append(Recover(seek, self._config.transfer_s))

    def _on_state_missed(self, now: float, event: StateMissed) -> None:
        """Another donor, or after the second failure, or with nobody whole, the syncer's snapshot."""
        joining = self._joining
        if self.phase != JOINING or joining.source:
            return
        if event.donor:
            self._say(DonorFailed(event.donor, event.donor_incarnation, event.reason))
            joining.failed = (*joining.failed, event.donor)
        if event.donor and len(joining.failed) < DONORS_MAX and not self._took_too_long(now):
            self._recover()
        else:
            self._take_snapshot()

    def _on_state(self, now: float, event: StateArrived) -> None:
        joining, state = self._joining, event.state
        if self.phase != JOINING or joining.source:
            return
        if self._took_too_long(now):
            self._say(DonorFailed(state.donor, state.donor_incarnation, "too_old"))
            self._take_snapshot()
            return
        joining.source, joining.state = "peer", state

    def _took_too_long(self, now: float) -> bool:
        """What a peer had when this learner attached may be too old by now."""
        joining, config = self._joining, self._config
        passed = self._syncer_step - joining.syncer_step
        return passed > config.round_steps and now - joining.attached_at > config.join_s

    def _take_snapshot(self) -> None:
        """Every fragment from the syncer, with fresh moments. What a notice has brought meanwhile stays."""
        self._joining.source = "syncer"
        for fragment, version in enumerate(self._joining.versions):
            if fragment not in self._pending and fragment not in self._fetching:
                self._fetch(fragment, version, "")

    def _join(self, now: float) -> None:
        """Start from a peer's state and what the notices have brought since, or once the snapshot is whole."""
        joining = self._joining
        if not joining.source:
            return
        seconds = round(now - joining.attached_at, 6)
        if (state := joining.state) is not None:
            joining.state = None
            self._effects.append(Inherit(state))
            self._say(
                StateReceived(
                    "peer", state.donor, state.donor_incarnation, state.step, state.digest, state.size, seconds
                )
            )
        self._adopt_pending()
        if joining.source == "syncer":
            if any(base.version is None for base in self._bases):
                return
            self._say(StateReceived("syncer", "", 0, 0, "", 0, seconds))
        self._boundary_at = now
        self._enter(now, STEPPING)

    # -------------------------------------------------------------- giving one's state to a joiner

    def _on_state_request(self, now: float, event: StateRequest) -> None:
        if reason := self._unfit(event):
            self._effects.append(Decline(event, reason))
        else:
            self._donations.append(Donation(event, now + event.deadline_s))

    def _unfit(self, request: StateRequest) -> str:
        """Why this learner cannot give its state; empty when it can."""
        if request.epoch != self._epoch or request.donor_incarnation != self.incarnation:
            return "stale"
        if self.phase != STEPPING or any(base.version is None for base in self._bases):
            return "not_whole"
        return "" if self._loss is None or math.isfinite(self._loss) else "non_finite"

    def _donate(self, now: float) -> None:
        """At a boundary, after adopting: give to those whose clock this learner has reached."""
        waiting = []
        for donation in self._donations:
            if now >= donation.expires_at:
                continue
            if self._syncer_step < donation.request.syncer_step:
                waiting.append(donation)
            elif reason := self._unfit(donation.request):
                self._effects.append(Decline(donation.request, reason))
            else:
                self._effects.append(Donate(donation.request, self.step, self._syncer_step))
        self._donations = waiting

    def _on_state_sent(self, now: float, event: StateSent) -> None:
        request = event.request
        self._say(Donated(request.joiner, request.joiner_incarnation, event.step, event.digest, event.size))

    # -------------------------------------------------------------- the inbox

    def _hear(self, syncer_step: int, progress: float) -> None:
        self._syncer_step = max(self._syncer_step, syncer_step)
        self._progress = max(self._progress, progress)

    def _on_notice(self, now: float, event: Notice) -> None:
        if event.epoch != self._epoch:
            return
        self._hear(event.syncer_step, event.progress)
        base = self._bases[event.fragment].version
        if base is not None and event.version <= base:
            if event.version < base:
                self._say(AdoptionRefused(event.fragment, event.version, "older"))
            return
        noticed = self._noticed.get(event.fragment)
        if noticed is None or event.version >= noticed.version:
            self._noticed[event.fragment] = event
        newest = max(self._fetching.get(event.fragment, -1), self._pending.get(event.fragment, (-1,))[0])
        if event.version > newest:
            self._fetch(event.fragment, event.version, event.digest)

    def _fetch(self, fragment: int, version: int, digest: str) -> None:
        self._fetching[fragment] = version
        self._effects.append(Fetch(fragment, version, digest))

    def _on_fetched(self, now: float, event: Fetched) -> None:
        if self._fetching.get(event.fragment, -1) <= event.version:
            self._fetching.pop(event.fragment, None)
        if event.version > self._pending.get(event.fragment, (-1,))[0]:
            self._pending[event.fragment] = (event.version, event.payload)

    def _on_fetch_failed(self, now: float, event: FetchFailed) -> None:
        if self._fetching.get(event.fragment) == event.version:
            del self._fetching[event.fragment]
        self._say(AdoptionRefused(event.fragment, event.version, event.reason))
        if self.phase == JOINING and self._joining.source == "syncer" and event.fragment not in self._fetching:
            self._attempts += 1
            if self._attempts >= FETCH_ATTEMPTS_MAX:
                self._stop = f"failed: fragment {event.fragment} could not be fetched: {event.reason}"
            else:
                self._fetch(event.fragment, event.version, "")

    def _on_grant(self, now: float, event: Grant) -> None:
        if event.epoch == self._epoch and event.incarnation == self.incarnation and event.span > self._spans.newest:
            self._spans.newest = event.span
            self._spans.queue.append(event)

    def _on_drain(self, now: float, event: Drain) -> None:
        if event.epoch == self._epoch and event.incarnation == self.incarnation:
            self._drain(now, event.deadline_s)

    def _drain(self, now: float, deadline_s: float) -> None:
        """Step no more after this step; who has no step to lose leaves at once."""
        if self._config.overlap == "strict" or self.phase != STEPPING:
            if self.phase != DRAINING:
                self._stop = self._stop or "drained"
        elif self._drain_until is None:
            self._drain_until = now + deadline_s

    def _on_stop(self, now: float, event: Stop) -> None:
        if self._epoch in (None, event.epoch):  # it may overtake the Welcome
            self._stop = self._stop or event.reason

    # -------------------------------------------------------------- reads

    def _on_read(self, now: float, event: ReadRequest) -> None:
        """Answer from the last completed step where it is on the host, else at the next boundary."""
        if event.epoch != self._epoch or event.incarnation != self.incarnation:
            return
        self._hear(event.syncer_step, event.progress)
        if not self._answer(event):
            self._requests.append(Request(event, now + event.deadline_s))

    def _answer(self, request: ReadRequest) -> bool:
        copy = self._copies.get(request.fragment)
        if copy is None or (self._config.overlap == "strict" and copy.step != request.syncer_step):
            return False
        assert self._epoch is not None
        self._bases[request.fragment].reads[copy.step] = Mark(copy.step, copy.processed)
        contribution = Contribution(
            learner=self.name,
            incarnation=self.incarnation,
            epoch=self._epoch,
            syncer_step=request.syncer_step,
            fragment=request.fragment,
            attempt=request.attempt,
            step=copy.step,
            processed=copy.processed,
            counters=copy.counters,
            payload=copy.payload,
            digest="",
        )
        self._effects.append(Answer(contribution))
        return True

    # -------------------------------------------------------------- the boundary between two steps

    def _on_step_done(self, now: float, event: StepDone) -> None:
        assert self._running is not None and self._boundary_at is not None
        running, self._running = self._running, None
        self.step = running.step
        self._processed += event.tokens
        self._loss = event.loss
        seconds = now - self._boundary_at - self._waited_s
        self._step_s.add(seconds)
        grant = self._spans.queue[0]
        self._say(
            StepFinished(
                self.step,
                event.tokens,
                grant.span,
                running.start,
                event.loss,
                round(seconds, 6),
                round(self._waited_s, 6),
                self._waited_for,
            )
        )
        self._spans.used += self._batch_size
        if grant.start + self._spans.used + self._batch_size > grant.stop:
            self._spans.queue.popleft()
            self._spans.used = 0
        self._boundary_at, self._waited_s, self._waited_for = now, 0.0, ""
        self._report(now)
        self._requests = [request for request in self._requests if now < request.expires_at]
        self._effects.append(Stage(self._to_stage()))

    def _to_stage(self) -> tuple[int, ...]:
        """What is asked for now, and what will be before this learner reaches its next boundary."""
        asked = [request.message.fragment for request in self._requests]
        if self._config.overlap == "strict":
            due = self._schedule.due(self.step)
            return tuple(dict.fromkeys([*asked, *(() if due is None else (due,))]))
        ahead = self._schedule.upcoming(self._syncer_step, max(1, self._config.overlap_steps) + 1)
        return tuple(p for p in dict.fromkeys([*asked, *ahead]) if self._bases[p].version is not None)

    def _on_staged(self, now: float, event: Staged) -> None:
        if self._config.overlap == "free":
            self._copies = {}
        for fragment, payload in event.copies.items():
            self._copies[fragment] = Copy(self.step, self._processed, self._counters(fragment), payload)
        self._requests = [request for request in self._requests if not self._answer(request.message)]
        self._boundary(now)

    def _counters(self, fragment: int) -> FragmentCounters:
        base = self._bases[fragment]
        return FragmentCounters(base.version, base.step, self.step - base.step, self._processed - base.processed)

    def _boundary(self, now: float) -> None:
        """Adopt what may be adopted, then step, wait or leave."""
        if self.phase == DRAINING and self._drain_until is not None and now >= self._drain_until:
            self._stop = self._stop or "drained, with steps that nothing took in time"
        if self.phase == STOPPED:
            self._effects.append(Exit(self._stop))
            return
        if self._stop:
            self._enter(now, STOPPED)
            self._effects.extend(Decline(donation.request, "stopped") for donation in self._donations)
            self._effects.append(Exit(self._stop))
            return
        if self.phase == JOINING:
            self._join(now)
        elif self._adopt_pending() and self.phase == DRAINING:
            self._report(now)  # it may have been the last that was waited for
        if self.phase == STEPPING and self._drain_until is not None:
            self._enter(now, DRAINING)
        self._donate(now)
        if self.phase == DRAINING and (asked := self._asked_for(now)):
            self._effects.append(Stage(asked))  # there is no next step to do it after
            return
        if reason := self._obstacle():
            self._hold(now, reason)
            return
        self._unhold(now)
        grant = self._spans.queue[0]
        self._running = RunStep(self.step + 1, grant.start + self._spans.used, self._progress)
        self._effects.append(self._running)

    def _asked_for(self, now: float) -> tuple[int, ...]:
        """Fragments that were asked for, are not on the host, and are there to give."""
        self._requests = [request for request in self._requests if now < request.expires_at]
        asked = dict.fromkeys(request.message.fragment for request in self._requests)
        return tuple(p for p in asked if self._bases[p].version is not None)

    def _obstacle(self) -> str:
        """What keeps the next step from starting; empty when nothing does."""
        if self.phase != STEPPING:
            return "drain" if self.phase == DRAINING else "bootstrap"
        if self._config.overlap == "strict":
            read_at = self.step - self._config.overlap_steps
            due = self._schedule.due(read_at) if read_at >= 1 else None
            if due is not None and (self._bases[due].version or 0) < read_at and self._bases[due].step < read_at:
                return "adoption"
        return "" if self._spans.queue else "span"

    def _hold(self, now: float, reason: str) -> None:
        if self._held_at is None:
            self._held_at = now
        if self.phase == STEPPING:
            self._waited_for = reason
        if now - self._reported_at >= HOLD_S:
            self._report(now)
        self._effects.append(Hold(HOLD_S, reason))

    def _unhold(self, now: float) -> None:
        if self._held_at is not None and self._waited_for:
            self._waited_s += now - max(self._held_at, self._boundary_at or now)
        self._held_at = None

    # -------------------------------------------------------------- adoption

    def _adopt_pending(self) -> bool:
        """Whether anything was adopted."""
        adopted = False
        for fragment in sorted(self._pending):
            version, payload = self._pending[fragment]
            base = self._bases[fragment]
            if base.version is not None and not self._is_time(fragment, version):
                continue
            del self._pending[fragment]
            if base.version is not None and version <= base.version:
                if version < base.version:
                    self._say(AdoptionRefused(fragment, version, "older"))
                continue
            self._adopt(fragment, version, payload)
            adopted = True
        return adopted

    def _is_time(self, fragment: int, version: int) -> bool:
        """Strict overlap fixes the step; rebase needs the version's own notice, which says what it contains."""
        if self._config.overlap == "strict" and self.step < version + self._config.overlap_steps:
            return False
        noticed = self._noticed.get(fragment)
        return self._config.adopt != "rebase" or (noticed is not None and noticed.version == version)

    def _adopt(self, fragment: int, version: int, payload: Any) -> None:
        base = self._bases[fragment]
        mode = "bootstrap" if base.version is None else self._config.adopt
        read_at = None
        if mode == "rebase":
            merged_step = self._noticed[fragment].merged_step
            if merged_step is not None and merged_step in base.reads:
                # What was read then is in the new version; what came after it is kept.
                read_at, (base.step, base.processed) = merged_step, base.reads[merged_step]
        else:
            base.step, base.processed = self.step, self._processed
        base.version = version
        base.reads = {}
        self._copies.pop(fragment, None)  # it holds the value, and the base, from before
        self._say(Adopted(fragment, version, self.step, mode))
        self._effects.append(Apply(fragment, version, payload, mode, read_at))

    # -------------------------------------------------------------- reports

    def _report(self, now: float) -> None:
        lease_s = self._start_s
        if self._step_s.samples:  # the first step may take its time: something may still compile
            lease_s = max(self._config.lease_s, self._config.lease_steps * self._step_s.value)
        self._reports += 1
        self._reported_at = now
        report = Report(
            learner=self.name,
            incarnation=self.incarnation,
            epoch=self._epoch,
            sequence=self._reports,
            phase=self.phase,
            lease_s=lease_s,
            step=self.step,
            step_s=self._step_s.value,
            tokens=self._processed,
            syncer_step=self._syncer_step,
            counters=tuple(self._counters(fragment) for fragment in range(len(self._bases))),
            newest_span=self._spans.newest,
            wants_span=self._wants_span(),
            loss=self._loss,
        )
        self._effects.append(Send(report))

    def _wants_span(self) -> bool:
        held = sum(grant.stop - grant.start for grant in self._spans.queue) - self._spans.used
        return self._epoch is not None and self._drain_until is None and held <= self._span_samples // 2

    def _say(self, fact: LearnerFact) -> None:
        self._effects.append(Say(fact))
