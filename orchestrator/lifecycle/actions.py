"""The actions that the controller asks of the learner manager that drives it."""

from __future__ import annotations

import math
from dataclasses import dataclass


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


@dataclass(frozen=True)
class RecordScaling:
    """Write to the log that the pool is to have this many learners."""

    pool: str
    learners: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class RecordNotice:
    """Write to the log that a node with these learners is about to end."""

    node: str
    learners: tuple[str, ...]
    remaining_s: float | None  # None: the node did not say


Action = Start | AskToLeave | Probe | End | Release | RecordScaling | RecordNotice
