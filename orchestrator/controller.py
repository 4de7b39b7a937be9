"""Keeps the wanted learners alive: desired against actual, as a pure machine that returns actions.

Knows names, incarnations and times; not Ray, placement or the protocol. Times are seconds of the shell's
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

BACKOFF_S_MAX = 30.0
SOUND_S = 60.0  # a learner that has lived this long is forgiven its earlier failures


class State(Enum):
    WAITING = "waiting"  # for its time to start
    STARTING = "starting"  # asked for, not heard from yet
    RUNNING = "running"
    ENDING = "ending"  # asked to be ended, not gone yet
    DONE = "done"  # its training loop returned, the run being over


TRANSITIONS: dict[State, tuple[State, ...]] = {
    State.WAITING: (State.STARTING, State.DONE),
    State.STARTING: (State.RUNNING, State.WAITING, State.ENDING, State.DONE),
    State.RUNNING: (State.WAITING, State.ENDING, State.DONE),
    State.ENDING: (State.WAITING, State.DONE),
    State.DONE: (),
}


@dataclass(frozen=True)
class Start:
    """Grant the next incarnation and create its actor."""

    learner: str


@dataclass(frozen=True)
class End:
    """Kill the incarnation's process; answer with `lost` when it is gone."""

    learner: str
    incarnation: int
    reason: str


Action = Start | End


@dataclass
class Unit:
    """What is known of one wanted learner."""

    state: State = State.WAITING
    incarnation: int = 0
    failures: int = 0  # in a row
    start_at: float = float("-inf")
    began_at: float = 0.0

    def move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state


class Controller:
    """Restarts without waiting after the first failure, later with a back-off that doubles."""

    def __init__(self, learners: Iterable[str], *, backoff_s: float, hang_s: float) -> None:
        self.units = {name: Unit() for name in learners}
        self._backoff_s, self._hang_s = backoff_s, hang_s

    def advance(self, now: float) -> list[Action]:
        """The starts that are due."""
        due = [name for name, unit in self.units.items() if unit.state is State.WAITING and now >= unit.start_at]
        for name in due:
            self.units[name].move(State.STARTING)
            self.units[name].began_at = now
        return [Start(name) for name in due]

    def started(self, learner: str, incarnation: int) -> None:
        """The incarnation was granted."""
        self.units[learner].incarnation = incarnation

    def answered(self, learner: str, incarnation: int) -> None:
        """Its process is up."""
        unit = self.units[learner]
        if unit.incarnation == incarnation and unit.state is State.STARTING:
            unit.move(State.RUNNING)

    def lost(self, now: float, learner: str, incarnation: int) -> float | None:
        """It is gone. Returns after how many seconds it starts again; None if that is old news."""
        unit = self.units[learner]
        if unit.incarnation != incarnation or unit.state in (State.WAITING, State.DONE):
            return None
        unit.failures = 1 if now - unit.began_at >= SOUND_S else unit.failures + 1
        wait = 0.0 if unit.failures == 1 else min(BACKOFF_S_MAX, self._backoff_s * 2.0 ** (unit.failures - 2))
        unit.start_at = now + wait
        unit.move(State.WAITING)
        return wait

    def silent(self, learner: str, incarnation: int, silent_s: float) -> list[Action]:
        """Its lease has run out, and it has not been heard of for so long."""
        unit = self.units[learner]
        if unit.incarnation != incarnation or unit.state not in (State.STARTING, State.RUNNING):
            return []
        if silent_s < self._hang_s:
            return []
        unit.move(State.ENDING)
        return [End(learner, incarnation, f"silent for {silent_s:.1f} s")]

    def finished(self, learner: str, incarnation: int) -> None:
        """Its training loop returned because the run is over."""
        unit = self.units[learner]
        if unit.incarnation == incarnation and unit.state is not State.DONE:
            unit.move(State.DONE)
