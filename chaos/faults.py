"""A planned fault: its kind, its target and its time."""

from __future__ import annotations

from dataclasses import dataclass

LASTING = frozenset({"freeze", "slow", "straggle", "link", "corrupt"})  # heal by themselves after a while
DELAYING = frozenset({"slow", "straggle"})


@dataclass(frozen=True)
class Fault:
    """One planned fault. Exactly one of `at_step` and `at_s` is set."""

    identifier: int  # unique in its run
    kind: str  # one of orchestrator.recipe.config.FaultKind
    learner: str  # with /1, /2, ... for a rank other than 0
    at_step: int | None  # fires when the syncer reaches this step
    at_s: float | None  # seconds after the first learner step
    duration_s: float  # 0: does not heal by itself
    delay_s: float = 0.0  # of every step (slow), or of a step on average (straggle)
    point: str = ""  # of a commit, where the syncer is killed; "": at once

    def __post_init__(self) -> None:
        assert (self.at_step is None) != (self.at_s is None), "a fault has exactly one trigger"

    @property
    def target(self) -> tuple[str, int]:
        """(learner, rank)"""
        learner, _, rank = self.learner.partition("/")
        return learner, int(rank or 0)

    def is_due(self, now_s: float | None, syncer_step: int) -> bool:
        """`now_s`: seconds since the first learner step, None before it."""
        if self.at_step is not None:
            return syncer_step >= self.at_step
        return now_s is not None and self.at_s is not None and now_s >= self.at_s
