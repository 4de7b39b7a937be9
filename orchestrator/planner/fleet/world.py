"""What all parts of one simulated fleet share, and what is counted of it. Holds; does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.planner.fleet.crowd import SharedHost
from orchestrator.planner.fleet.description import Fleet
from orchestrator.planner.fleet.network import Network
from orchestrator.simulation.timeline import Timeline
from outer.protocol.messages import StateRequest

Key = tuple[str, int]  # writer, incarnation


class Stepped(NamedTuple):
    """One step, in virtual seconds, and what it is worth; the last one may be under way."""

    began: float
    ended: float
    share: float
    tokens: int


class Merged(NamedTuple):
    """One commit, as far as it is counted."""

    at: float
    participants: tuple[str, ...]  # with a weight above 0
    live: int
    tokens_committed: int  # with it


@dataclass
class World:
    fleet: Fleet
    time: Timeline
    network: Network
    crowd: SharedHost  # of those that start
    keeps_journal: bool  # a syncer is to die
    events: int = 0  # handed to machines
    units: dict[str, Any] = field(default_factory=dict)  # the newest incarnation of each
    sought: dict[Key, StateRequest] = field(default_factory=dict)  # what a joiner waits for
    steps: dict[str, list[Stepped]] = field(default_factory=dict)  # by learner, in order
    ready_at: dict[str, float] = field(default_factory=dict)  # by learner: its hardware stands still until then
    merges: list[Merged] = field(default_factory=list)
    facts: dict[Key, list[tuple[float, Any]]] = field(default_factory=dict)
    told: dict[Key, int] = field(default_factory=dict)  # how many of a learner's are in the log
