"""The steps in flight, and the facts that wait for their end.

A step is in flight from its RunStep to its StepDone. A shell that dispatches the next step while one computes comes to
the boundary after a step before that step is done. What the log has after the step, and what a report may claim, then
waits for StepDone. At most two steps are in flight: one behind the newest boundary, one ahead of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from learners.protocol.adoption import Adoption
from learners.protocol.events_effects import Emit, RunStep
from outer.protocol.coverage import Mark
from outer.protocol.messages import FragmentCounters

IN_FLIGHT_MAX = 2


@dataclass
class Flight:
    """One step in flight. `at`, and what follows, once its boundary has come."""

    run: RunStep
    span: int
    at: Mark | None = None
    counters: tuple[FragmentCounters, ...] = ()  # as of then, before anything was adopted there
    facts: list[Emit] = field(default_factory=list)  # of that boundary


class Pipeline:
    """The completed step, those in flight, and between them the newest boundary."""

    def __init__(self) -> None:
        self.completed = Mark(0, 0)
        self._flights: deque[Flight] = deque()
        self._counters: tuple[FragmentCounters, ...] | None = None  # of the completed step; None: the bases' own

    @property
    def busy(self) -> bool:
        """Whether a step is in flight."""
        return bool(self._flights)

    @property
    def reached(self) -> Mark:
        """The newest boundary: after the completed step, or after the one in flight."""
        at = self._flights[0].at if self._flights else None
        return at or self.completed

    def begin(self, run: RunStep, span: int) -> None:
        """A step is dispatched, on samples of this span."""
        assert len(self._flights) < IN_FLIGHT_MAX
        self._flights.append(Flight(run, span))

    def reach(self, tokens: int, adoption: Adoption) -> None:
        """The boundary after the newest step has come. `tokens`: of that step. Nothing was adopted there yet."""
        if not self._flights:
            return
        (flight,) = self._flights
        assert flight.at is None, "one boundary follows a step"
        self._counters = adoption.counters(self.completed)
        flight.at = Mark(flight.run.step, self.completed.tokens + tokens)
        flight.counters = adoption.counters(flight.at)

    def hold_back(self, fact: Emit) -> bool:
        """Keep a fact until the step before the newest boundary is done. False if it is."""
        if not self._flights or self._flights[0].at is None:
            return False
        self._flights[0].facts.append(fact)
        return True

    def finish(self, tokens: int) -> Flight:
        """The oldest step in flight is done. Until `settle`, counters are those of its boundary, before adopting."""
        flight = self._flights.popleft()
        self.completed = Mark(flight.run.step, self.completed.tokens + tokens)
        assert flight.at in (None, self.completed), "the boundary was told of other tokens"
        self._counters = flight.counters if flight.at else None
        return flight

    def settle(self) -> None:
        """The completed step's boundary is in the log, with what was adopted there."""
        self._counters = None

    def counters(self, adoption: Adoption) -> tuple[FragmentCounters, ...]:
        """The progress on each fragment up to the completed step, as the log has it."""
        return adoption.counters(self.completed) if self._counters is None else self._counters
