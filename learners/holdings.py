"""What a learner holds between two boundaries: bases, host copies, requests, spans, and how far its joining is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from outer.coverage import Mark
from outer.messages import FragmentCounters, Grant, ReadRequest, State, StateRequest


@dataclass
class Base:
    """What the learner holds of one fragment."""

    version: int | None = None  # None until adopted from the syncer
    step: int = 0  # adopted after this step
    processed: int = 0  # tokens processed by then
    reads: dict[int, Mark] = field(default_factory=dict)  # by this learner's step, since it was adopted


@dataclass
class Copy:
    """A fragment on the host, as of one completed step, with that step's counters."""

    step: int
    processed: int
    counters: FragmentCounters
    payload: Any


@dataclass
class Request:
    """A read that no copy could answer."""

    message: ReadRequest
    expires_at: float


@dataclass
class Donation:
    """A joiner that waits for this learner's state."""

    request: StateRequest
    expires_at: float


@dataclass
class Joining:
    """From the Welcome to the first step."""

    attached_at: float = 0.0
    syncer_step: int = 0  # of the Welcome: every later commit is noticed
    versions: tuple[int, ...] = ()  # of the syncer's snapshot
    failed: tuple[str, ...] = ()  # donors that gave nothing
    source: str = ""  # peer | syncer, once it is decided
    state: State | None = None  # a peer's, until it is loaded


@dataclass
class Spans:
    """Samples lent to this incarnation and not yet used."""

    queue: deque[Grant] = field(default_factory=deque)
    newest: int = -1
    used: int = 0  # samples of the first span that are used
