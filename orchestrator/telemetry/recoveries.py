"""Recoveries of learners in a running run: how long each took.

As the summary's `recovery_s` of a death: from the best known moment of the death (the injected fault that explains
it, else the last sign of life) to the first commit with a contribution of a later incarnation. Freezes that were
survived are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.telemetry.log_tail import Line

SIGNS = {"PhaseEntered", "StepFinished"}  # written by the learner
ABOUT = {"LearnerRequested", "LearnerStarted", "LearnerAttached"}  # written about it


class Recovery(NamedTuple):
    learner: str
    seconds: float


@dataclass
class _Incarnation:
    last_sign: float = 0.0
    killed: float | None = None  # by a kill
    frozen: float | None = None  # since, by a freeze that has not healed
    frozen_by: int | None = None  # its fault
    noticed: float | None = None  # when it was considered dead

    @property
    def died(self) -> float:
        assert self.noticed is not None
        if self.killed is not None:
            return self.killed
        return min(self.noticed, self.frozen if self.frozen is not None else self.last_sign or self.noticed)


class Recoveries:
    """Takes the log line by line; yields each recovery once."""

    def __init__(self) -> None:
        self._incarnations: dict[str, dict[int, _Incarnation]] = {}  # learner -> incarnation -> until recovered from
        self._over = False

    def take(self, line: Line) -> Iterator[Recovery]:
        fact = line.fact
        if line.kind in SIGNS:
            self._incarnation(line.writer, line.incarnation).last_sign = line.at
        elif line.kind in ABOUT:
            self._incarnation(fact["learner"], fact["incarnation"]).last_sign = line.at
        elif line.kind in ("LearnerFenced", "LearnerLost"):
            state = self._incarnation(fact["learner"], fact["incarnation"])
            if not self._over and (state.noticed is None or line.kind == "LearnerLost"):
                state.noticed = line.at  # the orchestrator's time counts before the syncer's
        elif line.kind == "FaultInjected":
            self._on_injected(line)
        elif line.kind == "FaultHealed":
            self._on_healed(line)
        elif line.kind in ("Finished", "RunFinished"):
            self._over = True
        elif line.kind == "Committed":
            yield from self._committed(line)

    def _incarnation(self, learner: str, incarnation: int) -> _Incarnation:
        return self._incarnations.setdefault(learner, {}).setdefault(incarnation, _Incarnation())

    def _on_injected(self, line: Line) -> None:
        state = self._incarnation(line.fact["target"], line.fact["incarnation"])
        if line.fact["fault_kind"] == "kill":
            state.killed = line.at if state.killed is None else state.killed
        elif line.fact["fault_kind"] == "freeze":
            state.frozen, state.frozen_by = line.at, line.fact["fault"]

    def _on_healed(self, line: Line) -> None:
        for state in self._incarnations.get(line.fact["target"], {}).values():
            if state.frozen_by == line.fact["fault"] and state.noticed is None:
                state.frozen = state.frozen_by = None

    def _committed(self, line: Line) -> Iterator[Recovery]:
        for one in line.fact["participants"]:
            incarnations = self._incarnations.get(one["learner"], {})
            for incarnation in [number for number in incarnations if number < one["incarnation"]]:
                state = incarnations.pop(incarnation)
                if state.noticed is not None:
                    yield Recovery(one["learner"], line.at - state.died)
