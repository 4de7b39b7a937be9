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
    DRAINING = "draining"  # asked to leave, not gone yet
    ENDING = "ending"  # asked to be ended, not gone yet
    DONE = "done"  # the run is over, or it is not wanted any more


# From each state to which, and when. docs/protocol.md draws it.
TRANSITIONS: dict[State, dict[State, str]] = {
    State.WAITING: {State.STARTING: "its time has come", State.DONE: "not wanted any more, or the run is over"},
    State.STARTING: {
        State.RUNNING: "its process is up",
        State.WAITING: "gone and still wanted",
        State.DRAINING: "asked to leave",
        State.ENDING: "silent for too long",
        State.DONE: "gone and not wanted, or the run is over",
    },
    State.RUNNING: {
        State.WAITING: "gone and still wanted",
        State.DRAINING: "asked to leave",
        State.ENDING: "silent for too long",
        State.DONE: "gone and not wanted, or the run is over",
    },
    State.DRAINING: {
        State.WAITING: "gone and still wanted",
        State.ENDING: "silent for too long",
        State.DONE: "gone and not wanted, or the run is over",
    },
    State.ENDING: {State.WAITING: "gone and still wanted", State.DONE: "gone and not wanted, or the run is over"},
    State.DONE: {State.WAITING: "wanted again"},
}


@dataclass(frozen=True)
class Start:
    """Grant the next incarnation and create its actor."""

    learner: str


@dataclass(frozen=True)
class Drain:
    """Ask the incarnation to leave without losing anything; answer with `left` when it is gone."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class End:
    """Kill the incarnation's process; answer with `lost` when it is gone."""

    learner: str
    incarnation: int
    reason: str


Action = Start | Drain | End


@dataclass
class Unit:
    """What is known of one learner."""

    state: State = State.WAITING
    wanted: bool = True
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

    @property
    def wanted(self) -> list[str]:
        """The learners that are to be there."""
        return [name for name, unit in self.units.items() if unit.wanted]

    def want(self, learner: str) -> None:
        """This learner is to be there; one that is on its way out comes back once it has left."""
        unit = self.units.setdefault(learner, Unit())
        unit.wanted = True
        if unit.state is State.DONE:
            unit.failures, unit.start_at = 0, float("-inf")
            unit.move(State.WAITING)

    def unwant(self, learner: str, reason: str) -> list[Action]:
        """This learner is to leave for good."""
        unit = self.units[learner]
        unit.wanted = False
        if unit.state is State.WAITING:
            unit.move(State.DONE)
        return self.drain(learner, reason)

    def drain(self, learner: str, reason: str) -> list[Action]:
        """This incarnation is to leave; if the learner is still wanted, another follows."""
        unit = self.units[learner]
        if unit.state not in (State.STARTING, State.RUNNING):
            return []
        unit.move(State.DRAINING)
        return [Drain(learner, unit.incarnation, reason)]

    def left(self, learner: str, incarnation: int) -> None:
        """It has left without losing anything."""
        unit = self.units[learner]
        if unit.incarnation == incarnation and unit.state not in (State.WAITING, State.DONE):
            unit.failures, unit.start_at = 0, float("-inf")
            unit.move(State.WAITING if unit.wanted else State.DONE)

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
        unit.move(State.WAITING if unit.wanted else State.DONE)
        return wait

    def silent(self, learner: str, incarnation: int, silent_s: float) -> list[Action]:
        """Its lease has run out, and it has not been heard of for so long."""
        unit = self.units[learner]
        if unit.incarnation != incarnation or unit.state not in (State.STARTING, State.RUNNING, State.DRAINING):
            return []
        if silent_s < self._hang_s:
            return []
        unit.move(State.ENDING)
        return [End(learner, incarnation, f"silent for {silent_s:.1f} s")]

    def finished(self, learner: str, incarnation: int) -> None:
        """Its training loop returned because the run is over."""
        unit = self.units[learner]
        if unit.incarnation == incarnation and unit.state is not State.DONE:
            unit.wanted = False
            unit.move(State.DONE)
