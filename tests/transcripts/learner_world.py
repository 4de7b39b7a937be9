"""The learner alone, in a shell whose every move is a test's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from learners.protocol.events_effects import (
    Boundary,
    Compiled,
    Effect,
    Emit,
    Enter,
    Event,
    Fetched,
    Resume,
    Send,
    Stage,
    Staged,
    StateArrived,
    StateSent,
    StepDone,
)
from learners.protocol.learner import Learner
from outer.config import SyncConfig
from outer.protocol.messages import (
    COMPILING,
    IMPORTING,
    Grant,
    Notice,
    ReadRequest,
    Report,
    State,
    StateRequest,
    Welcome,
)

T = TypeVar("T")
TOKENS = 10  # of a step


class Loop:
    """P = 2, H = 4, tau = 1: fragment 0 is due at 4, 8; 1 at 2, 6. Joins from the syncer's snapshot."""

    def __init__(self, span_steps: int = 100, **sync: Any) -> None:
        self.now = 0.0
        self.log: list[Effect] = []
        self.machine = Learner(
            name="a",
            incarnation=3,
            config=SyncConfig.model_validate({"P": 2, "H": 4, "tau": 1, "recover": "syncer", **sync}),
            fragments=2,
            batch_size=2,
            span_steps=span_steps,
            start_s=60.0,
        )

    def do(self, *events: Event) -> list[Effect]:
        """Hand over events; returns the last one's effects."""
        effects: list[Effect] = []
        for event in events:
            effects = self.machine.handle(self.now, event)
            self.log += effects
        return effects

    def compile(self) -> None:
        self.do(Enter(IMPORTING), Enter(COMPILING), Compiled({"seed": 0}))

    def join(self, versions: tuple[int, int] = (0, 0), syncer_step: int = 0, samples: int = 200) -> None:
        """Compile, attach, fetch everything, take a span, and begin the first step."""
        self.compile()
        self.do(Welcome(1, syncer_step, 0.0, versions))
        self.do(*(Fetched(fragment, version, f"v{version}") for fragment, version in enumerate(versions)))
        self.do(Grant(1, 3, 0, 0, samples), Resume())

    def step(self, seconds: float = 1.0, loss: float = 2.0) -> list[Effect]:
        """The running step ends; what is asked for is copied. Returns what the boundary said."""
        self.now += seconds
        effects = self.do(StepDone(loss, TOKENS), Boundary(TOKENS))
        [stage] = only(Stage, effects)
        return self.do(Staged({p: f"copy of {p} at {self.machine.step}" for p in stage.fragments}))

    def reach(self) -> list[Effect]:
        """The boundary after the step just dispatched; what is asked for is copied. Returns what it said."""
        [stage] = only(Stage, self.do(Boundary(TOKENS)))
        at = self.machine.step + 1
        return self.do(Staged({p: f"copy of {p} at {at}" for p in stage.fragments}))

    def done(self, seconds: float = 1.0, loss: float = 2.0) -> list[Effect]:
        """The oldest step in flight ends."""
        self.now += seconds
        return self.do(StepDone(loss, TOKENS))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def read(self, syncer_step: int, fragment: int, **change: Any) -> None:
        given: dict[str, Any] = {"epoch": 1, "incarnation": 3, "attempt": 1, "progress": 0.0, "deadline_s": 2.0}
        self.do(ReadRequest(syncer_step=syncer_step, fragment=fragment, **(given | change)))

    def notice(self, version: int, fragment: int, **change: Any) -> None:
        self.do(replace(Notice(1, version, fragment, version, "digest", 0.0), **change))

    def state_arrived(self, **state: Any) -> None:
        self.do(StateArrived(State(**state)))

    def state_sent(self, step: int, digest: str, size: int) -> None:
        self.do(StateSent(StateRequest(1, "b", 2, "a", 3, 0, 60.0), step, digest, size, (4, 2)))

    def staged(self) -> None:
        """What was asked for last is copied."""
        asked = only(Stage, self.log)[-1].fragments
        self.do(Staged({p: f"copy of {p} at {self.machine.step}" for p in asked}))

    def deliver(self, version: int, fragment: int, merged_step: int | None = None) -> None:
        """A notice and what it announces; adopted at the next boundary."""
        self.notice(version, fragment, merged_step=merged_step)
        self.do(Fetched(fragment, version, f"v{version}"))

    def facts(self, kind: type[T]) -> list[T]:
        return [e.fact for e in self.log if isinstance(e, Emit) and isinstance(e.fact, kind)]

    @property
    def reports(self) -> list[Report]:
        return [e.message for e in self.log if isinstance(e, Send) and isinstance(e.message, Report)]


def only(kind: type[T], effects: Iterable[Any]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def joined(**sync: Any) -> Loop:
    loop = Loop(**sync)
    loop.join()
    return loop
