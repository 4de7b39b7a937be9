"""Plans the faults of a run: the recipe's own, and random ones from a seed.

A pure function of configuration and seed: the same on every machine and in every process. One more fault in the
recipe changes none of the others. The actor finds out whether a target is alive when the time comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from orchestrator.recipe.config import ON_RANKS, SYNCER

if TYPE_CHECKING:
    from orchestrator.recipe.config import ChaosConfig


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


ANY = "any"


def plan(chaos: ChaosConfig, learners: Sequence[str], seed: int) -> tuple[PlannedFault, ...]:
    """The recipe's faults in its order, `any` resolved; `seed` is the run's, used where [chaos] has none.

    `learners`: what can be struck, as Recipe.processes. Raises ValueError for a fault that names none of them.
    """
    faults = []
    for index, wanted in enumerate(chaos.faults):
        if wanted.learner not in (ANY, SYNCER, *learners):
            raise ValueError(
                f"chaos.faults[{index}].learner is {wanted.learner!r}; allowed are {', '.join(learners)}, `{ANY}` and "
                f"`{SYNCER}`: name one of them"
            )
        learner = wanted.learner
        if learner == ANY:
            learner = struck(wanted.kind, _pick(_stream(chaos, seed, f"planned {index}"), learners))
        numbers = _meaningful(wanted.kind, wanted.duration_s, wanted.delay_s)
        when = (wanted.at_step, wanted.at_s)
        faults.append(PlannedFault(index, wanted.kind, learner, *when, *numbers, wanted.point or ""))
    return tuple(faults)


def random_faults(
    chaos: ChaosConfig, learners: Sequence[str], seed: int, first_identifier: int
) -> Iterator[PlannedFault]:
    """Endless faults at exponential gaps of mean `mtbf_s` over the whole run; none where it is not set.

    Ordered by `at_s`; kind and learner are uniform and independent of the times.
    """
    if chaos.mtbf_s is None:
        return
    times, choices = _stream(chaos, seed, "times"), _stream(chaos, seed, "choices")
    at_s, identifier = 0.0, first_identifier
    while True:
        at_s -= chaos.mtbf_s * math.log(1.0 - times.random())
        kind = _pick(choices, chaos.kinds)
        learner = struck(kind, _pick(choices, learners))
        lasts_s = chaos.freeze_s if kind == "freeze" else chaos.duration_s
        yield PlannedFault(identifier, kind, learner, None, at_s, *_meaningful(kind, lasts_s, chaos.delay_s))
        identifier += 1


def _meaningful(kind: str, duration_s: float, delay_s: float) -> tuple[float, float]:
    """Duration and delay, 0 where the kind has no use for them."""
    return duration_s if KINDS[kind].lasts else 0.0, delay_s if KINDS[kind].delays else 0.0


def struck(kind: str, process: str) -> str:
    """Return what a fault of this kind strikes in place of this process: the process, or its learner."""
    return process if kind in ON_RANKS else process.partition("/")[0]


def due(
    faults: Sequence[PlannedFault], now_s: float | None, syncer_step: int
) -> tuple[tuple[PlannedFault, ...], tuple[PlannedFault, ...]]:
    """(faults to inject now, the others), each in the given order; `now_s`: see PlannedFault.is_due."""
    now = tuple(fault for fault in faults if fault.is_due(now_s, syncer_step))
    return now, tuple(fault for fault in faults if fault not in now)


def _stream(chaos: ChaosConfig, seed: int, purpose: str) -> Random:
    """Seeded by text, which Random hashes itself: independent of the hash seed of the process."""
    return Random(f"{seed if chaos.seed is None else chaos.seed} {purpose}")


def _pick(stream: Random, items: Sequence[str]) -> str:
    """Uses random() only, whose values Python keeps the same from version to version."""
    return items[int(stream.random() * len(items))]
