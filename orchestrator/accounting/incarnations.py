"""What the log says of each learner's incarnations. Filled in by orchestrator/accounting/history.py."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Generic, Literal, NamedTuple, TypeVar

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.facts import FaultInjected

F = TypeVar("F")
Key = tuple[str, int]  # learner, incarnation
_step: Callable[[StepFinished], int] = attrgetter("step")


class Said(NamedTuple, Generic[F]):
    """A fact and its place in the log."""

    position: int  # in the merged log
    at: float  # Unix seconds, on the writer's clock
    writer: str
    incarnation: int  # the syncer's: its epoch
    fact: F


@dataclass
class Freeze:
    """One suspension of a process, [start, stop) in Unix seconds; stop is None while it lasts."""

    fault: int
    start: float
    stop: float | None


@dataclass
class Incarnation:
    """One incarnation of one learner, as the log tells it. Times are Unix seconds; None: not in the log."""

    learner: str
    number: int
    requested: float | None = None
    started: float | None = None
    attached: float | None = None
    epoch: int = 0  # of the syncer that it attached to last
    phases: list[tuple[float, str]] = field(default_factory=list)
    steps: list[Said[StepFinished]] = field(default_factory=list)
    adoptions: list[Said[Adopted]] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)  # when it went on after the run was suspended
    expired: list[tuple[float, float | None]] = field(default_factory=list)  # without a lease, [from, to)
    kills: list[Said[FaultInjected]] = field(default_factory=list)
    freezes: list[Freeze] = field(default_factory=list)
    other_faults: list[Said[FaultInjected]] = field(default_factory=list)  # injected, neither kills nor freezes
    fenced: float | None = None
    lost: float | None = None
    over: Literal["", "killed", "drained", "stopped"] = ""  # stopped: its end came after the run's

    @property
    def key(self) -> Key:
        return (self.learner, self.number)

    @property
    def noticed(self) -> float | None:
        """When the orchestrator, or else the syncer, first considered this incarnation dead."""
        return self.lost if self.lost is not None else self.fenced

    @property
    def last_sign(self) -> float | None:
        """The time of the last sign of life."""
        signs = [at for at, _ in self.phases] + [said.at for said in self.steps[-1:]]
        signs += [at for at in (self.requested, self.started, self.attached) if at is not None]
        return max(signs, default=None)

    @property
    def killer(self) -> Said[FaultInjected] | None:
        """The injected fault that ended its process: the first one."""
        return self.kills[0] if self.over == "killed" and self.kills else None

    @property
    def fatal_freeze(self) -> Freeze | None:
        """The freeze during which it was considered dead, if no kill explains its end."""
        noticed = self.noticed
        if self.over != "killed" or self.kills or noticed is None:
            return None
        during = (f for f in self.freezes if f.start <= noticed and (f.stop is None or noticed <= f.stop))
        return next(during, None)

    @property
    def died(self) -> float | None:
        """The best known time of its death: the fault that explains it, else its last sign of life."""
        noticed = self.noticed
        if self.over != "killed" or noticed is None:
            return None
        if self.killer is not None:
            return min(noticed, self.killer.at)
        if self.fatal_freeze is not None:
            return self.fatal_freeze.start
        return noticed if self.last_sign is None else min(noticed, self.last_sign)

    def entered(self, phase: str) -> float | None:
        """When it first entered this phase."""
        return next((at for at, name in self.phases if name == phase), None)

    @cached_property
    def ordered(self) -> list[StepFinished]:
        """Its StepFinished facts, by ascending step."""
        return sorted([said.fact for said in self.steps], key=_step)

    @cached_property
    def step_numbers(self) -> list[int]:
        """The numbers of its steps, ascending."""
        return [fact.step for fact in self.ordered]

    @cached_property
    def tokens(self) -> list[int]:
        """Cumulative tokens of the ascending steps, int[steps + 1], from 0."""
        return list(accumulate([fact.tokens for fact in self.ordered], initial=0))

    @cached_property
    def clock(self) -> list[float]:
        """Seconds from its first boundary to the end of each step, waiting included, float[steps + 1], from 0."""
        return list(accumulate([fact.seconds + fact.waited_s for fact in self.ordered], initial=0.0))

    @cached_property
    def adopted(self) -> dict[int, list[Adopted]]:
        """Its adoptions by fragment, in its own order."""
        by_fragment: dict[int, list[Adopted]] = {}
        for said in self.adoptions:
            by_fragment.setdefault(said.fact.fragment, []).append(said.fact)
        return by_fragment

    def inside(self, after: int, upto: int) -> tuple[int, int]:
        """Its steps (after, upto] as a slice of `step_numbers`; the pair also indexes `tokens` and `clock`."""
        return bisect_right(self.step_numbers, after), bisect_right(self.step_numbers, upto)
