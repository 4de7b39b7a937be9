"""The learner: a pure state machine that decides what to step on, answer and adopt (paper section 2).

`handle(now, event) -> effects`. No I/O, no clock, no arrays: payloads are opaque handles. The shell's training loop
calls it at every boundary between two steps; the shell's event loop may call it in between, under the shell's lock.
events_effects.py is the manual. A learner never waits for a peer. It waits for the syncer only in strict overlap, a
setting for lock-step studies.

This file holds the phases, the boundary after a step is dispatched, and the end of a step, which comes before its
boundary or after it:

    Boundary -> stage copies -> Staged -> save, adopt, give state -> RunStep, Hold or Exit
    StepDone -> report, answer reads, log what was adopted at its boundary

The parts: Pipeline holds the steps in flight, Adoption the base of each fragment and what arrives for it, StagedReads
the copies and unanswered reads, HeldSpans the samples, Joining the way in, PendingTransfers the joiners that wait for
this learner's state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from learners.protocol.adoption import Adoption
from learners.protocol.events_effects import (
    Answer,
    Apply,
    Boundary,
    Compiled,
    Decline,
    Donate,
    Effect,
    Emit,
    Enter,
    Event,
    Exit,
    Fetched,
    FetchFailed,
    Hold,
    Leave,
    Reattach,
    Resume,
    RunStep,
    Save,
    Send,
    Stage,
    Staged,
    StateArrived,
    StateMissed,
    StateSent,
    StepDone,
    Waiting,
)
from learners.protocol.facts import (
    AdoptionRefused,
    Donated,
    LearnerFact,
    PhaseEntered,
    Resumed,
    StateSaved,
    StepFinished,
)
from learners.protocol.held_spans import HeldSpans
from learners.protocol.joining import Joining, PendingTransfers
from learners.protocol.pipeline import Pipeline
from learners.protocol.resume_state import ResumeState
from learners.protocol.staged_reads import Copy, StagedReads
from learners.protocol.step_timer import DATA, StepTimer
from outer.protocol.coverage import Mark
from outer.protocol.messages import (
    COMPILING,
    DRAINING,
    IMPORTING,
    JOINING,
    NON_FINITE_MAX,
    STARTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    StateRequest,
    Stop,
    Welcome,
)
from outer.protocol.schedule import Schedule

if TYPE_CHECKING:
    from outer.config import SyncConfig

# phase -> next phase -> condition. docs/protocol.md has the diagram. Before joining there is no boundary to stop at.
TRANSITIONS: dict[str, dict[str, str]] = {
    STARTING: {IMPORTING: "the process is up"},
    IMPORTING: {COMPILING: "task and trainer are loaded"},
    COMPILING: {JOINING: "compiled (Attach is sent)"},
    JOINING: {
        STEPPING: "a peer's state, or every fragment, is there",
        STOPPED: "Stop, or no state to start from in time",
    },
    STEPPING: {DRAINING: "asked to leave, at a boundary", STOPPED: "Stop, at a boundary"},
    DRAINING: {STOPPED: "Stop (nothing is left to give), or the deadline"},
    STOPPED: {},
}

SUSPENDED = "suspended"  # the exit reason of a loop that another process will continue
COMPLETION = "completion"  # why a loop holds: the next move needs a state without steps in flight
AHEAD = 2  # batches that the shell may prepare beyond the step to run
HOLD_S = 0.5  # a waiting loop wakes, and renews its lease, this often


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
        ahead_s: float = 0.0,
    ) -> None:
        """`fragments`: P. `start_s`: the lease, and the deadline for a state, before the first step. `ahead_s`: the
        learner asks for more samples while those it holds last for less than this. Both in seconds.
        """
        self.name, self.incarnation = name, incarnation
        self.phase = STARTING
        self._config = config
        self._schedule = Schedule(fragments, config.round_steps)
        self._start_s, self._ahead_s = start_s, ahead_s
        self._manifest: dict[str, Any] | None = None  # once it is compiled
        self._epoch: int | None = None
        self._syncer_step = 0
        self._progress = 0.0
        self._pipeline = Pipeline()
        self._clocks = deque([0, 0], maxlen=2)  # the syncer's, at the last boundaries
        self._adoption = Adoption(config, fragments)
        self._reads = StagedReads(strict=config.overlap == "strict")
        self._spans = HeldSpans(batch_size, span_steps)
        self._joining = Joining(name, incarnation, config, self._adoption)
        self._transfers = PendingTransfers()
        self._step_timer = StepTimer(config.smoothing)
        self._fetch_at = float("-inf")  # while joining, failed fetches are not repeated before this time
        self._drain_until: float | None = None  # set once it has to leave
        self._loss: float | None = None
        self._non_finite = 0  # losses in a row
        self._spoilt_at = 0  # the first sample of the first step of those
        self._waits_since: float | None = None  # for the data of the next step
        self._aux: dict[str, float] | None = None  # of the last step
        self._reports = 0
        self._reported_at, self._lease_s = float("-inf"), start_s
        self._stop = ""
        self._suspend = False  # the stop is a suspension
        self._suspended = False  # the loop has ended for it: nothing is saved any more
        self._snapshot = 0  # the newest snapshot for which its state is saved or about to be
        self._save = 0  # the snapshot to save for at the next boundary; 0 for none
        self._after_cut: list[Grant] = []  # samples lent after the cut that is about to be saved
        self._resumed = 0  # the snapshot that it was resumed from
        self._effects: list[Effect] = []
        self._handlers: dict[type[Any], Callable[[float, Any], None]] = {
            Enter: lambda now, event: self._enter(now, event.phase),
            Compiled: self._on_compiled,
            Welcome: self._on_welcome,
            Notice: self._on_notice,
            Grant: self._on_grant,
            ReadRequest: self._on_read,
            Drain: self._on_drain,
            Leave: lambda now, event: self._drain(now, self._config.drain_s),
            Reattach: lambda now, event: self._attach(),
            Stop: self._on_stop,
            Fetched: self._on_fetched,
            FetchFailed: self._on_fetch_failed,
            StateRequest: self._on_state_request,
            StateArrived: self._on_state,
            StateMissed: self._on_state_missed,
            StateSent: self._on_state_sent,
            Boundary: self._on_boundary,
            StepDone: self._on_step_done,
            Waiting: self._on_waiting,
            Staged: self._on_staged,
            Resume: lambda now, event: self._boundary(now),
        }

    def resume(self, snapshot: int, state: ResumeState) -> None:
        """Continue as the same incarnation from a saved state. Call it before any event."""
        self._resumed, self._pipeline.completed = snapshot, Mark(state.step, state.processed)
        self._loss, self._reports, self._snapshot = state.loss, state.reports, snapshot
        self._advance_clock(state.syncer_step, state.progress)
        self._adoption.restore(state.bases)
        self._spans.restore(state.newest_span, state.spans, state.used)

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Process one event; return the effects to perform, in order. `now`: seconds of a monotonic clock."""
        self._handlers[type(event)](now, event)
        effects, self._effects = self._effects, []
        return effects

    def may_save(self, snapshot: int) -> bool:
        """Whether this learner will save, or may yet save, its state for this snapshot."""
        awaits = self._save == snapshot or self._snapshot < snapshot
        return self.phase in (STEPPING, DRAINING) and awaits and not self._suspended

    def is_alive(self, now: float) -> bool:
        """Whether the training loop has reported within its lease. Its reports may still not arrive."""
        return now < self._reported_at + self._lease_s

    @property
    def step(self) -> int:
        """The last completed step."""
        return self._pipeline.completed.step

    @property
    def round_s(self) -> float:
        """The seconds of H of its steps; 0 while that is not known."""
        return self._config.round_steps * self._step_timer.step_s.value

    @property
    def epoch(self) -> int | None:
        """The epoch of the syncer that it is attached to; None before the first Welcome."""
        return self._epoch

    @property
    def held_versions(self) -> list[int]:
        """The version of each fragment that came from the syncer; 0 for none, and for one that an epoch has lost."""
        return [max(0, version) for version in self._adoption.versions]

    # -------------------------------------------------------------- from start to first step

    def _enter(self, now: float, phase: str) -> None:
        if self._resumed and self.phase in (STARTING, IMPORTING):
            self.phase = phase  # the log already knows this incarnation as stepping
            return
        if phase != self.phase:  # else its start takes long, and goes on
            assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
            self.phase = phase
            self._emit(PhaseEntered(phase))
        self._report(now)

    def _on_compiled(self, now: float, event: Compiled) -> None:
        self._manifest = event.manifest
        if self._resumed:
            self.phase = STEPPING
            self._step_timer.start(now)
            self._emit(Resumed(self._resumed, self.step))
        else:
            self._enter(now, JOINING)
        self._attach()

    def _attach(self) -> None:
        """Attach to the newest epoch, if compiled and not stopped."""
        if self._manifest is not None and self.phase != STOPPED:
            self._effects.append(Send(Attach(self.name, self.incarnation, self._manifest)))

    def _on_welcome(self, now: float, event: Welcome) -> None:
        """Adopt the syncer's clock, from which on no notice is missed; when joining, find a state to start from."""
        if self.phase == STOPPED or (self._epoch is not None and event.epoch <= self._epoch):
            return  # a duplicate
        first, self._epoch = self._epoch is None, event.epoch
        if self.phase == JOINING:
            self._snapshot = max(self._snapshot, event.snapshot)  # it was not part of the cut
        self._advance_clock(event.syncer_step, event.progress)
        self._reads.drop()
        self._adoption.disown(event.versions)
        if first and self._config.overlap == "strict":
            self._pipeline.completed = Mark(event.syncer_step, 0)
        self._report(now)
        if self.phase == JOINING:
            self._effects += self._joining.attach(now, event)

    def _on_state_missed(self, now: float, event: StateMissed) -> None:
        if self.phase == JOINING:
            self._effects += self._joining.miss(now, event, self._syncer_step)

    def _on_state(self, now: float, event: StateArrived) -> None:
        if self.phase == JOINING:
            self._effects += self._joining.receive(now, event.state, self._syncer_step)

    def _join(self, now: float) -> None:
        """Start stepping: from a peer's state and the newer versions, or once all the syncer's fragments are here."""
        if not self._joining.source:
            return
        self._effects += self._joining.inherit(now)
        self._adopt()
        if self._joining.source == "syncer":
            if not self._adoption.whole:
                if now >= self._fetch_at:
                    self._effects += self._joining.fetch_missing()
                return
            self._emit(self._joining.snapshot(now))
        self._step_timer.start(now)
        self._enter(now, STEPPING)

    # -------------------------------------------------------------- giving state to a joiner

    def _on_state_request(self, now: float, event: StateRequest) -> None:
        reason = self._unfit(event) or ("busy" if self._transfers.full else "")
        if reason:
            self._effects.append(Decline(event, reason))
        else:
            self._transfers.add(event, now)

    def _unfit(self, request: StateRequest) -> str:
        """Why this learner cannot give its state; empty when it can."""
        if request.epoch != self._epoch or request.donor_incarnation != self.incarnation:
            return "stale"
        if self.phase != STEPPING or not self._adoption.whole:
            return "not_whole"
        return "" if self._loss is None or math.isfinite(self._loss) else "non_finite"

    def _donate(self, now: float) -> None:
        """At a boundary, after adopting: give state to the joiners whose clock this learner has reached."""
        for request in self._transfers.ready(now, self._syncer_step):
            if reason := self._unfit(request):
                self._effects.append(Decline(request, reason))
            else:
                self._effects.append(Donate(request, self.step, self._syncer_step, self._adoption.versions))

    def _on_state_sent(self, now: float, event: StateSent) -> None:
        request = event.request
        joiner = (request.joiner, request.joiner_incarnation)
        self._emit(Donated(*joiner, event.step, event.digest, event.size, event.versions))

    # -------------------------------------------------------------- the inbox

    def _advance_clock(self, syncer_step: int, progress: float) -> None:
        self._syncer_step = max(self._syncer_step, syncer_step)
        self._progress = max(self._progress, progress)

    def _on_notice(self, now: float, event: Notice) -> None:
        if event.epoch != self._epoch:
            return
        self._note_snapshot(event.snapshot)
        self._advance_clock(event.syncer_step, event.progress)
        self._log(self._adoption.notice(event))

    def _on_fetched(self, now: float, event: Fetched) -> None:
        self._note_snapshot(event.snapshot)
        self._adoption.arrive(event)

    def _on_fetch_failed(self, now: float, event: FetchFailed) -> None:
        """While joining from the syncer, fetch again later; else the syncer repeats the notice."""
        if self.phase == STOPPED or self._suspended:
            return  # it has handed in its last fact
        self._log([Emit(AdoptionRefused(event.fragment, event.version, event.reason))])
        self._adoption.fail(event)
        self._fetch_at = now + HOLD_S

    def _on_grant(self, now: float, event: Grant) -> None:
        if event.epoch == self._epoch and event.incarnation == self.incarnation:
            self._note_snapshot(event.snapshot)
            if self._save and event.snapshot >= self._save:
                self._after_cut.append(event)
            else:
                self._spans.add(event)

    def _on_drain(self, now: float, event: Drain) -> None:
        if event.epoch == self._epoch and event.incarnation == self.incarnation:
            self._drain(now, event.deadline_s)

    def _drain(self, now: float, deadline_s: float) -> None:
        """Stop stepping after the current step; a learner without finished steps leaves at once."""
        if self._config.overlap == "strict" or self.phase not in (STEPPING, DRAINING):
            self._stop = self._stop or "drained"
            return
        # A repeated request may bring an earlier deadline.
        self._drain_until = min(now + deadline_s, self._drain_until or math.inf)

    def _on_stop(self, now: float, event: Stop) -> None:
        if self._epoch in (None, event.epoch):  # Stop may overtake the Welcome
            self._note_snapshot(event.snapshot)
            self._suspend = self._suspend or (event.suspend and not self._stop)
            self._stop = self._stop or event.reason

    def _note_snapshot(self, snapshot: int) -> None:
        """Save for a new snapshot before any message from after its cut takes effect (Lai and Yang, 1987).

        Versions and samples that arrive from now on take effect at the next boundary, after the save.
        """
        if snapshot > self._snapshot:
            self._snapshot = snapshot
            if self.phase in (STEPPING, DRAINING):  # before stepping there is nothing to save
                self._save = snapshot

    # -------------------------------------------------------------- reads

    def _on_read(self, now: float, event: ReadRequest) -> None:
        """Answer from a copy if there is one, else when the next one's step is done."""
        if event.epoch != self._epoch or event.incarnation != self.incarnation:
            return
        self._note_snapshot(event.snapshot)
        self._advance_clock(event.syncer_step if event.attempt else 0, event.progress)  # else asked ahead of its time
        if (copy := self._reads.copy_for(event)) is not None:
            self._adoption.note_read(event, copy.read_at)
            self._answer(event, copy)
        elif (copy := self._reads.wait(event, now)) is not None:
            self._adoption.note_read(event, copy.read_at)

    def _answer(self, request: ReadRequest, copy: Copy) -> None:
        assert self._epoch is not None
        contribution = Contribution(
            learner=self.name,
            incarnation=self.incarnation,
            epoch=self._epoch,
            syncer_step=request.syncer_step,
            fragment=request.fragment,
            attempt=request.attempt,
            step=copy.read_at.step,
            processed=copy.read_at.tokens,
            counters=copy.counters,
            payload=copy.payload,
            digest="",
            codec=request.codec,
            snapshot=0 if self._save else self._snapshot,
        )
        self._effects.append(Answer(contribution))

    # -------------------------------------------------------------- the end of a step

    def _on_step_done(self, now: float, event: StepDone) -> None:
        done = self._pipeline.finish(event.tokens)
        run = done.run
        self._loss, self._aux = event.loss, event.aux or None
        self._judge_loss(event.loss, run.start)
        step_time = self._step_timer.record_step(now, event.paused_s)
        self._emit(
            StepFinished(run.step, event.tokens, done.span, run.start, event.loss, *step_time, run.progress, self._aux)
        )
        self._report(now)
        self._pipeline.settle()
        if done.at is not None:  # its boundary has come: what waited for its end goes out, in the order of a boundary
            self._answer_staged(now)
            self._effects += done.facts

    def _judge_loss(self, loss: float, start: int) -> None:
        """End after NON_FINITE_MAX losses in a row that are not finite: no later step would help."""
        self._non_finite = 0 if math.isfinite(loss) else self._non_finite + 1
        self._spoilt_at = start if self._non_finite == 1 else self._spoilt_at
        if self._non_finite == NON_FINITE_MAX:
            since = f"from the batch at sample {self._spoilt_at} on"
            self._stop = self._stop or f"failed: the loss was not finite in {NON_FINITE_MAX} steps in a row, {since}"

    def _on_waiting(self, now: float, event: Waiting) -> None:
        """Report that the loop lives, for as long as a learner may take to start. Then its silence is a hang."""
        self._step_timer.hold(now, DATA)
        self._waits_since = now if self._waits_since is None else self._waits_since
        if now - self._waits_since <= self._start_s:
            self._report(now)

    def _answer_staged(self, now: float) -> None:
        for request, copy in self._reads.complete(now):
            self._answer(request, copy)

    # -------------------------------------------------------------- the boundary after a step is dispatched

    def _on_boundary(self, now: float, event: Boundary) -> None:
        if self._waits_since is not None:
            self._waits_since = None
            self._step_timer.release(now)
        self._pipeline.reach(event.tokens, self._adoption)
        self._reads.expire(now)
        self._effects.append(Stage(self._to_stage()))
        self._clocks.append(self._syncer_step)

    def _to_stage(self) -> tuple[int, ...]:
        """Fragments to copy now: those asked for, those asked for in vain, and those that may be asked for soon."""
        asked = self._reads.asked
        if self._config.overlap == "strict":
            due = self._schedule.due(self._pipeline.reached.step)
            return tuple(dict.fromkeys([*asked, *(() if due is None else (due,))]))
        behind = self._pipeline.busy  # by the time that these copies answer, the syncer is one learner step further
        steps = max(1, self._config.overlap_steps) + 1
        if behind:
            steps = min(steps + 1, max(2, self._syncer_step - self._clocks[0]))
        if (3.0 if behind else 2.0) * self._step_timer.step_s.value > self._config.read_timeout_s:
            steps = max(steps, self._schedule.gap)  # a read may time out before the next copies answer
        ahead = self._schedule.upcoming(self._syncer_step, steps)
        return tuple(p for p in dict.fromkeys([*asked, *self._reads.missed, *ahead]) if self._adoption.holds(p))

    def _on_staged(self, now: float, event: Staged) -> None:
        at = self._pipeline.reached
        for request, copy in self._reads.stage(at, self._adoption.counters(at), event.copies):
            self._adoption.note_read(request, copy.read_at)
        if not self._pipeline.busy:
            self._answer_staged(now)
        self._boundary(now)

    def _boundary(self, now: float) -> None:
        """Save, adopt, give state; then step, hold or exit."""
        if self._pipeline.busy and self._needs_completion():
            self._effects.append(Hold(0.0, COMPLETION))
            return
        if self.phase == DRAINING and self._drain_until is not None and now >= self._drain_until:
            self._stop = self._stop or "drained, but its last steps were not merged in time"
        self._save_if_due()
        if self.phase == STOPPED:
            self._effects.append(Exit(self._stop))
            return
        if self._suspend and self.phase == STEPPING:
            self._effects.extend(Decline(request, "stopped") for request in self._transfers.waiting)
            self._effects.append(Exit(SUSPENDED))  # without a fact or report: another process continues it
            self._suspended = True
            return
        if self._stop:
            self._enter(now, STOPPED)
            self._effects.extend(Decline(request, "stopped") for request in self._transfers.waiting)
            self._effects.append(Exit(self._stop))
            return
        if self.phase == JOINING:
            self._join(now)
        elif self._adopt() and self.phase == DRAINING:
            self._report(now)  # this adoption may have been the last one missing
        if self.phase == STEPPING and self._drain_until is not None:
            self._enter(now, DRAINING)
        self._donate(now)
        if self.phase == DRAINING and (asked := self._asked_for(now)):
            self._effects.append(Stage(asked))  # there is no next step after which to copy them
            return
        if reason := self._obstacle():
            self._hold(now, reason)
            return
        if not self._pipeline.busy:
            self._step_timer.release(now)
        self._run_step()

    def _needs_completion(self) -> bool:
        """Whether what comes next is as of a completed step: what leaves this learner for good, or ends it."""
        leaves = self.phase != STEPPING or self._stop or self._drain_until is not None
        return bool(leaves or self._save or self._transfers.due(self._syncer_step))

    def _run_step(self) -> None:
        span, start = self._spans.current, self._spans.start
        self._spans.use()
        run = RunStep(self._pipeline.reached.step + 1, start, self._progress, self._spans.ahead(AHEAD))
        self._pipeline.begin(run, span)
        self._effects.append(run)

    def _save_if_due(self) -> None:
        if not self._save:
            return
        if self.phase in (STEPPING, DRAINING) and self._adoption.whole:
            spans, used = self._spans.state()
            loss = self._loss if self._loss is not None and math.isfinite(self._loss) else None
            done, seen = self._pipeline.completed, (loss, self._reports, self._syncer_step, self._progress)
            state = ResumeState(done.step, done.tokens, *seen, self._adoption.state(), self._spans.newest, spans, used)
            self._emit(StateSaved(self._save, self.step, self._adoption.versions))
            self._effects.append(Save(self._save, state, self._suspend and self.phase == STEPPING))
        self._save = 0
        for grant in self._after_cut:
            self._spans.add(grant)
        self._after_cut = []

    def _asked_for(self, now: float) -> tuple[int, ...]:
        """Fragments with unanswered reads that this learner can give."""
        self._reads.expire(now)
        return tuple(p for p in self._reads.asked if self._adoption.holds(p))

    def _obstacle(self) -> str:
        """Say why the next step cannot start: drain, bootstrap, adoption, span; empty when it can."""
        if self.phase != STEPPING:
            return "drain" if self.phase == DRAINING else "bootstrap"
        if self._config.overlap == "strict":
            read_at = self._pipeline.reached.step - self._config.overlap_steps
            due = self._schedule.due(read_at)
            if due is not None and self._adoption.lacks(due, read_at):
                return "adoption"
        return "span" if self._spans.empty else ""

    def _hold(self, now: float, reason: str) -> None:
        if self._pipeline.busy:  # the device does not wait yet
            self._effects.append(Hold(0.0, COMPLETION))
            return
        self._step_timer.hold(now, reason if self.phase == STEPPING else "")
        if now - self._reported_at >= HOLD_S:
            self._report(now)
        if self.phase == JOINING and self._joining.seconds(now) > self._start_s:
            self._stop = self._stop or f"failed: no state to start from arrived within {self._start_s:.0f} s"
        self._effects.append(Hold(HOLD_S, reason))

    def _adopt(self) -> bool:
        """Adopt everything whose time has come. Returns whether there was anything."""
        effects = self._adoption.adopt(self._pipeline.reached)
        adopted = [effect.fragment for effect in effects if isinstance(effect, Apply)]
        self._reads.forget(adopted)
        self._log(effects)
        return bool(adopted)

    # -------------------------------------------------------------- reports

    def _report(self, now: float) -> None:
        lease_s = self._start_s
        step_s = self._step_timer.step_s
        if step_s.samples:  # the first step may still compile something, so it has the longer lease
            lease_s = max(self._config.lease_s, self._config.lease_steps * step_s.value)
        self._reports += 1
        self._reported_at, self._lease_s = now, lease_s
        report = Report(
            learner=self.name,
            incarnation=self.incarnation,
            epoch=self._epoch,
            sequence=self._reports,
            phase=self.phase,
            lease_s=lease_s,
            step=self.step,
            step_s=step_s.value,
            tokens=self._pipeline.completed.tokens,
            syncer_step=self._syncer_step,
            counters=self._pipeline.counters(self._adoption),
            newest_span=self._spans.newest,
            wants_span=self._wants_span(),
            loss=self._loss,
            non_finite=self._non_finite,
            waits=self._waits_since is not None,
            aux=self._aux,
            snapshot=0 if self._save else self._snapshot,
        )
        self._effects.append(Send(report))

    def _wants_span(self) -> bool:
        if self._epoch is None or self._drain_until is not None:
            return False
        step_s = self._step_timer.step_s.value
        return self._spans.low(self._ahead_s / step_s if step_s else 0.0)

    def _emit(self, fact: LearnerFact) -> None:
        self._effects.append(Emit(fact))

    def _log(self, effects: Iterable[Effect]) -> None:
        """Perform these effects; facts only after the step before the newest boundary."""
        for effect in effects:
            if not (isinstance(effect, Emit) and self._pipeline.hold_back(effect)):
                self._effects.append(effect)
