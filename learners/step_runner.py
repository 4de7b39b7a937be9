"""Runs a learner's steps on its devices, two at a time at most, with the faults that slow or spoil them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from learners.fault_effects import FaultEffects
from learners.protocol.events_effects import RunStep, StepDone
from learners.protocol.facts import Spoiled
from learners.protocol.learner import HOLD_S
from learners.protocol.pipeline import IN_FLIGHT_MAX
from outer.protocol.quorum import Average

if TYPE_CHECKING:
    from learners.training.trainer import InFlight, Trainer

PAUSE_MIN_S = 0.001  # a shorter pause is no pause


@dataclass(frozen=True)
class _Flight:
    run: RunStep
    pending: InFlight
    began: float  # monotonic
    spoiled: bool


class StepRunner:
    """Used by the training loop alone. `done` is told of each completed step, in order; `waits` is called again and
    again while a batch is not there; `say` takes facts.

    With a `slowdown` above 1 one step runs at a time: the loop sleeps in its stead, as if the device were slower.
    """

    def __init__(
        self,
        trainer: Trainer,
        batch_size: int,
        tokens: int,
        slowdown: float,
        smoothing: float,
        faults: FaultEffects,
        done: Callable[[StepDone], None],
        waits: Callable[[], None],
        say: Callable[[Spoiled], None],
    ) -> None:
        self._trainer, self._batch_size, self._tokens = trainer, batch_size, tokens
        self._slowdown, self._compute_s = slowdown, Average(smoothing)
        self._faults, self._done, self._waits, self._say = faults, done, waits, say
        self._flights: deque[_Flight] = deque()
        self._depth = IN_FLIGHT_MAX if slowdown <= 1.0 else 1
        self._paused_s = 0.0  # since the last step began

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    def paused(self, seconds: float) -> None:
        """The loop stood still for so long to take a snapshot; no step is in flight."""
        if seconds >= PAUSE_MIN_S:
            self._paused_s += seconds

    def run(self, run: RunStep) -> None:
        """Dispatch a step, then complete the one before it. Raises what the task or the devices raise."""
        if (delay_s := self._faults.delay_s()) > 0.0:
            self.complete()  # the device is slower: it computes nothing meanwhile
            time.sleep(delay_s)
        spoiled = self._faults.pop_poison()
        if spoiled:
            self._trainer.load(0, np.full(self._trainer.fragments[0].size, np.nan, np.float32))
        while not self._trainer.ready(run.start, self._batch_size, HOLD_S):
            self.complete()  # the device waits, too
            self._waits()
        try:
            pending = self._trainer.dispatch(run.start, self._batch_size, run.progress)
        except BaseException:
            self.complete()  # the steps before it are as good as any
            raise
        self._flights.append(_Flight(run, pending, time.monotonic(), spoiled))
        self._trainer.expect(run.ahead, self._batch_size)
        while len(self._flights) >= self._depth:
            self._complete_oldest()

    def complete(self) -> None:
        """Wait for every step in flight."""
        while self._flights:
            self._complete_oldest()

    def _complete_oldest(self) -> None:
        flight = self._flights.popleft()
        loss, aux = flight.pending.result()
        if self._slowdown > 1.0:
            self._slow_down(time.monotonic() - flight.began)
        if flight.spoiled:
            self._say(Spoiled(flight.run.step, 0))  # after what the log has of the step before
        paused_s, self._paused_s = self._paused_s, 0.0
        self._done(StepDone(loss, self._tokens, aux, paused_s))

    def _slow_down(self, seconds: float) -> None:
        """Lengthen the step by the pool's `slowdown`. A step that was delayed counts as an average one."""
        usual = self._compute_s.value if self._compute_s.samples else seconds  # of the steps before this one
        self._compute_s.add(seconds)
        time.sleep((self._slowdown - 1.0) * min(seconds, usual))
