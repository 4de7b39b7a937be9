"""Runs a learner's steps on its devices, two at a time at most, with the faults that slow or spoil them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from learners.fault_effects import FaultEffects
from learners.ports import Device, Pace, Pending
from learners.protocol.events_effects import RunStep, StepDone, Waiting
from learners.protocol.facts import Spoiled
from learners.protocol.learner import HOLD_S
from learners.protocol.pipeline import IN_FLIGHT_MAX
from learners.spec import LearnerSpec
from outer.protocol.quorum import Average

PAUSE_MIN_S = 0.001  # a shorter pause is no pause


@dataclass(frozen=True)
class _Flight:
    run: RunStep
    pending: Pending
    began: float  # monotonic
    spoiled: bool


class StepRunner:
    """Used by the training loop alone. `drive` is told of each completed step, in order, and again and again that a
    batch is not there; `say` takes facts.

    With a `slowdown` above 1 one step runs at a time: the loop sleeps in its stead, as if the device were slower.
    """

    def __init__(
        self,
        device: Device,
        spec: LearnerSpec,
        faults: FaultEffects,
        pace: Pace,
        drive: Callable[[StepDone | Waiting], None],
        say: Callable[[Spoiled], None],
    ) -> None:
        self._trainer, self._tokens = device.trainer, device.tokens_per_step
        self._batch_size, self._slowdown = spec.batch_size, spec.slowdown
        self._compute_s = Average(spec.sync.smoothing)
        self._faults, self._pace, self._drive, self._say = faults, pace, drive, say
        self._flights: deque[_Flight] = deque()
        self._depth = IN_FLIGHT_MAX if spec.slowdown <= 1.0 else 1
        self._paused_s = 0.0  # since the last step began

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    def paused(self, seconds: float) -> None:
        """The loop stood still for so long to take a snapshot; no step is in flight."""
        if seconds >= PAUSE_MIN_S:
            self._paused_s += seconds

    async def run(self, run: RunStep) -> None:
        """Dispatch a step, then complete the one before it. Raises what the task or the devices raise."""
        if (delay_s := self._faults.delay_s()) > 0.0:
            await self.complete()  # the device is slower: it computes nothing meanwhile
            await self._pace.sleep(delay_s)
        spoiled = self._faults.pop_poison()
        if spoiled:
            self._trainer.load(0, np.full(self._trainer.fragments[0].size, np.nan, np.float32))
        while not await self._pace.ready(self._trainer, run.start, self._batch_size, HOLD_S):
            await self.complete()  # the device waits, too
            self._drive(Waiting())
        try:
            pending = self._trainer.dispatch(run.start, self._batch_size, run.progress)
        except BaseException:
            await self.complete()  # the steps before it are as good as any
            raise
        self._flights.append(_Flight(run, pending, self._pace.now(), spoiled))
        self._trainer.expect(run.ahead, self._batch_size)
        while len(self._flights) >= self._depth:
            await self._complete_oldest()

    async def complete(self) -> None:
        """Wait for every step in flight."""
        while self._flights:
            await self._complete_oldest()

    async def _complete_oldest(self) -> None:
        flight = self._flights.popleft()
        loss, aux = await self._pace.result(flight.pending)
        if self._slowdown > 1.0:
            await self._slow_down(self._pace.now() - flight.began)
        if flight.spoiled:
            self._say(Spoiled(flight.run.step, 0))  # after what the log has of the step before
        paused_s, self._paused_s = self._paused_s, 0.0
        self._drive(StepDone(loss, self._tokens, aux, paused_s))

    async def _slow_down(self, seconds: float) -> None:
        """Lengthen the step by the pool's `slowdown`. A step that was delayed counts as an average one."""
        usual = self._compute_s.value if self._compute_s.samples else seconds  # of the steps before this one
        self._compute_s.add(seconds)
        await self._pace.sleep((self._slowdown - 1.0) * min(seconds, usual))
