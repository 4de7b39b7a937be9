"""The kinds of fault, one row each, and a planned fault: its kind, its target and its time.

A new kind is a row here and a name in orchestrator/recipe/config.py, which also says what it can strike. What a learner
does to itself is in learners/fault_effects.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """How a kind of fault is begun and healed, and what it needs."""

    words: str  # for the command's help
    by: str  # agent: of the target's node, by a signal; learner: by FaultEffects; orchestrator: by its next incarnation
    lasts: bool = False  # heals by itself after `duration_s`, even if the chaos actor is dead by then
    delays: bool = False  # needs `delay_s`, of a step


KINDS = {
    "kill": Kind("end the process with SIGKILL", "agent"),
    "freeze": Kind("stop the process with SIGSTOP", "agent", lasts=True),
    "link": Kind("hold back all messages to and from the learner; they arrive late", "learner", lasts=True),
    "slow": Kind("make every step longer, by --delay seconds", "learner", lasts=True, delays=True),
    "straggle": Kind("make some steps much longer, by --delay seconds on average", "learner", lasts=True, delays=True),
    "corrupt": Kind("flip one bit in every contribution", "learner", lasts=True),
    "non_finite": Kind("make the parameters NaN; the learner starts anew", "learner"),
    "wrong_config": Kind("kill the learner, and start it once with another recipe", "orchestrator"),
}


@dataclass(frozen=True)
class PlannedFault:
    """One fault of a plan. Exactly one of `at_step` and `at_s` is set."""

    identifier: int  # unique in its run
    kind: str  # of KINDS
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
