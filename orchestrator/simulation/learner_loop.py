"""One incarnation of a learner as a process: the production machine, its start, its training loop and its end.

Training is time that passes. With two steps in flight the second is dispatched while the first computes, and begins
when that ends. LearnerProcess adds what a learner says to the syncer and to its peers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappush
from typing import Any

from learners.protocol import events_effects
from learners.protocol.fact_buffer import FactBuffer
from orchestrator.simulation.context import SimContext
from orchestrator.simulation.process import Process
from outer.protocol.messages import COMPILING, DRAINING, IMPORTING, STEPPING, STOPPED

LINGER_S = 3.0  # until a process that is slow to end has ended
LOSS = 2.0
NOTHING = events_effects.Staged({})
BOUNDARIES: dict[int, events_effects.Boundary] = {}  # by a step's tokens


class LearnerLoop(Process):
    """`ended` is called with the reason once the process has ended by itself."""

    def __init__(self, context: SimContext, name: str, incarnation: int, ended: Callable[[Any, str], None]) -> None:
        super().__init__(context.time, context.specs[name].host, (name, incarnation))
        self.name, self.incarnation = name, incarnation
        self.machine = context.make_learner(name, incarnation)
        self.values = context.make_values(self.key)
        self.manifest = context.manifest
        self.poisoned = self.known_poisoned = False  # its numbers are not finite; it has seen so in its loss
        self.exited = ""  # why its loop has ended
        self.reported_at = context.time.now  # virtual seconds, like what follows
        self.stepped_at = 0.0  # when its newest step is, or was, done
        self.facts = context.facts.setdefault(self.key, [])
        self.outbox = FactBuffer(float, monotonic=self.clock)  # of their numbers
        self._context, self._ended = context, ended
        self._trace, self._recording = context.trace, context.recording
        self._step = context.durations.step
        self._loss = LOSS
        self._turn = 0  # number of the loop's present move: a callback of an earlier one is void
        self._in_flight_max = context.in_flight_max
        self._in_flight: deque[int] = deque()  # steps
        self._holding = self._completing = self._changed = self._lingers = self._spoilt = False
        self._perform: dict[type[Any], Callable[[Any], None]] = {
            events_effects.Emit: self._emit,
            events_effects.Stage: self._stage,
            events_effects.RunStep: self._run_step,
            events_effects.Hold: self._hold,
            events_effects.Exit: self._exit,
            events_effects.Save: self._save,
        }

    # -------------------------------------------------------------- the process

    def begin(self) -> None:
        """Import, compile, attach."""
        durations = self._context.durations
        self.drive(events_effects.Enter(IMPORTING))
        import_s, compile_s = durations.startup(self)
        durations.work(import_s, self, self._compile, compile_s)

    def _compile(self, seconds: float) -> None:
        self.drive(events_effects.Enter(COMPILING))
        self._context.durations.work(seconds, self, self._compiled)

    def _compiled(self) -> None:
        self.drive(events_effects.Compiled(dict(self.manifest)))
        self.drive(events_effects.Resume())

    def leave(self) -> bool:
        """Its host tells it to end. Returns False if it has nothing to lose, so that it may be killed."""
        if self.machine.phase not in (STEPPING, DRAINING, STOPPED):
            return False
        self.on_message(events_effects.Leave())
        return True

    def die(self) -> None:
        super().die()
        self._turn += 1
        self._context.durations.died(self)

    def fail(self, reason: str) -> None:
        """The training loop ends by an exception."""
        self._leave(f"failed: {reason}")

    def _leave(self, reason: str) -> None:
        if not self.exited:
            self.exited = reason
            self._turn += 1
            self._say_last_words()
            self._lingers = self._context.faults.damages("linger")
            self.after(self._context.durations.exit_s + (LINGER_S if self._lingers else 0.0), self._end)

    def _say_last_words(self) -> None:
        """Send the facts that the syncer does not have yet."""

    def _end(self) -> None:
        if self.alive:
            self.die()
            self._ended(self, self.exited)

    # -------------------------------------------------------------- the machine and its effects

    def on_message(self, event: Any) -> None:
        """Handle an event from outside the loop. It wakes a loop that waits."""
        if self.exited:
            if self._lingers:
                self.drive(event)
            return
        self.drive(event)
        self._changed = True
        if self._holding:
            self._resume(self._turn)

    def drive(self, event: Any) -> None:
        """Hand an event to the machine, and perform its effects."""
        if self._trace is not None:
            self._trace(self.time.now, self.label, event)
        self.handled += 1
        host, perform = self.host, self._perform
        for effect in self.machine.handle(host.offset_s + host.rate * self.time.now, event):
            perform[type(effect)](effect)

    def _emit(self, effect: events_effects.Emit) -> None:
        if not self._recording:
            return
        host = self.host
        if host.jumped:
            host.jumped = False
            self._context.fault_counts["wall_jump"] += 1
        self.facts.append((self.time.now + host.wall_s, effect.fact))
        self.outbox.add(None)
        if self._trace is not None:
            self._trace(self.time.now, self.label, effect.fact)

    def _save(self, effect: events_effects.Save) -> None:
        """Checkpoints are not simulated."""

    # -------------------------------------------------------------- the training loop

    def _run_step(self, effect: events_effects.RunStep) -> None:
        self._context.observer.steps(self)
        self._turn += 1
        self._holding = False
        if self._context.faults.spoils(self, effect.start):
            self._spoilt = True
            self._fail_if_spoilt()
            return
        self.values.step += 1  # what a copy would hold once the device has come to it
        self._in_flight.append(effect.step)
        if len(self._in_flight) == 1:
            tokens = self._compute()
            if self._in_flight_max > 1:
                self._reach(tokens)

    def _compute(self) -> int:
        """The oldest step in flight begins. Returns its tokens."""
        self.stepped_at, tokens = self._step(self, self._in_flight[0])
        time = self.time
        heappush(time.queue, (self.stepped_at, time.number(), self, self._step_done, (tokens,)))
        return tokens

    def _reach(self, tokens: int) -> None:
        boundary = BOUNDARIES.get(tokens) or BOUNDARIES.setdefault(tokens, events_effects.Boundary(tokens))
        self.drive(boundary)

    def _fail_if_spoilt(self) -> None:
        """The steps before a batch that cannot be built are completed first."""
        if self._spoilt and not self._in_flight:
            self.fail("its batch cannot be built")

    def _step_done(self, tokens: int) -> None:
        if self.exited:
            return
        self._in_flight.popleft()
        self.known_poisoned = self.poisoned
        self.drive(events_effects.StepDone(self._loss, tokens))
        if self._spoilt:
            self._fail_if_spoilt()
        elif self._in_flight:
            self._reach(self._compute())
        elif self._completing:
            self._completing = self._changed = False
            self.drive(events_effects.Resume())
        else:
            self._reach(tokens)

    def _hold(self, effect: events_effects.Hold) -> None:
        self._turn += 1
        if self._in_flight:
            self._completing = True
            self._holding = False
        elif self._changed:  # since it last looked
            self._changed = False
            self._holding = False
            self.time.reach(0.0, self, self._resume, self._turn)
        else:
            self._holding = True
            self.after(effect.seconds, self._resume, self._turn)

    def _resume(self, turn: int) -> None:
        if turn == self._turn and not self.exited:
            self._holding = self._changed = False
            self.drive(events_effects.Resume())

    def _exit(self, effect: events_effects.Exit) -> None:
        self._context.observer.leaves(self, effect.reason)
        self._leave(effect.reason)

    def _stage(self, effect: events_effects.Stage) -> None:
        fragments = effect.fragments
        self.drive(events_effects.Staged(self.values.copies(fragments)) if fragments else NOTHING)

    # -------------------------------------------------------------- faults

    def poison(self) -> None:
        """From here on its numbers are not finite, until it is restarted."""
        self.poisoned = True
        self._loss = math.nan
