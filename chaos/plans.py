"""Plans the faults of a run: the recipe's own, and random ones from a seed.

A pure function of configuration and seed: the same on every machine and in every process. One more fault in the
recipe changes none of the others. The actor finds out whether a target is alive when the time comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

from chaos.faults import KINDS, PlannedFault
from orchestrator.recipe.config import ON_RANKS, SYNCER

if TYPE_CHECKING:
    from orchestrator.recipe.config import ChaosConfig

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
