"""The actions that the controller asks of the learner manager that drives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.eventlog.facts import NodePreempted, PoolScaled


@dataclass(frozen=True)
class Start:
    """Grant the next incarnation and create its actor."""

    learner: str


@dataclass(frozen=True)
class AskToLeave:
    """Ask the incarnation to leave without losing anything; answer with `left` when it is gone."""

    learner: str
    incarnation: int
    reason: str
    deadline_s: float = math.inf


@dataclass(frozen=True)
class Probe:
    """Ask the incarnation itself, and look for its nodes; answer with `probed`."""

    learner: str
    incarnation: int


@dataclass(frozen=True)
class End:
    """Kill the incarnation's processes; answer with `lost` when they are gone."""

    learner: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class Release:
    """Give back the place that was reserved for the learner: no incarnation of it is there or will come."""

    learner: str


# The facts are for the log.
Action = Start | AskToLeave | Probe | End | Release | PoolScaled | NodePreempted
