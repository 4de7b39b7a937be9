"""What all parts of one simulated run share. Holds; does nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.simulation.network import Network
from chaos.simulation.profile import Options
from chaos.simulation.trace import Trace
from chaos.simulation.truth import Truth
from orchestrator.simulation.timeline import Timeline

if TYPE_CHECKING:
    from random import Random

MANIFEST = {"seed": 0}  # what everybody agrees on
OTHER_MANIFEST = {"seed": 1}

Fact = tuple[float, Any]  # dated by its writer's wall clock


@dataclass
class Setting:
    options: Options
    time: Timeline
    network: Network
    truth: Truth
    chance: Random  # of what hosts do: how long steps last, what is damaged
    fired: Counter[str]  # by kind of fault, how often one had an effect
    make_syncer: Callable[..., Any]
    make_learner: Callable[..., Any]
    trace: Trace | None = None
    facts: dict[tuple[str, int], list[Fact]] = field(default_factory=dict)  # by writer and incarnation
    recorded: dict[tuple[str, int], int] = field(default_factory=dict)  # how many of them are in the log
    traps: dict[tuple[str, str], float] = field(default_factory=dict)  # (learner, moment) -> it dies so much later
    trapped: Callable[[str, str], None] = lambda learner, moment: None  # a learner has come to such a moment
    flips: dict[str, tuple[float, float]] = field(default_factory=dict)  # kind -> (until, share) of what is damaged

    def damaged(self, kind: str) -> bool:
        """Whether this one payload is."""
        until, share = self.flips.get(kind, (0.0, 0.0))
        if self.time.now >= until or self.chance.random() >= share:
            return False
        self.fired[kind] += 1
        return True
