"""Which faults a run gets: the recipe's own, and random ones from a seed.

A pure function of configuration and seed: the same on every machine and in every process. One more fault in the
recipe changes none of the others. The actor finds out whether a target is alive when the time comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

from chaos.faults import DELAYING, LASTING, Fault
from orchestrator.recipe.config import ON_RANKS, SYNCER

if TYPE_CHECKING:
    from orchestrator.recipe.config import ChaosConfig

ANY = "any"


def plan(chaos: ChaosConfig, learners: Sequence[str], seed: int) -> tuple[Fault, ...]:
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
        duration_s = wanted.duration_s if wanted.kind in LASTING else 0.0
        delay_s = wanted.delay_s if wanted.kind in DELAYING else 0.0
        when = (wanted.at_step, wanted.at_s)
        faults.append(Fault(index, wanted.kind, learner, *when, duration_s, delay_s, wanted.point or ""))
    return tuple(faults)


def random_faults(chaos: ChaosConfig, learners: Sequence[str], seed: int, first_identifier: int) -> Iterator[Fault]:
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
        delay_s = chaos.delay_s if kind in DELAYING else 0.0
        yield Fault(identifier, kind, learner, None, at_s, lasts_s if kind in LASTING else 0.0, delay_s)
        identifier += 1


def struck(kind: str, process: str) -> str:
    """What a fault of this kind strikes that was to strike this process: the process, or its learner."""
    return process if kind in ON_RANKS else process.partition("/")[0]


def due(faults: Sequence[Fault], now_s: float | None, syncer_step: int) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    """(faults to inject now, the others), each in the given order; `now_s`: see Fault.is_due."""
    now = tuple(fault for fault in faults if fault.is_due(now_s, syncer_step))
    return now, tuple(fault for fault in faults if fault not in now)


def _stream(chaos: ChaosConfig, seed: int, purpose: str) -> Random:
    """Seeded by text, which Random hashes itself: independent of the hash seed of the process."""
    return Random(f"{seed if chaos.seed is None else chaos.seed} {purpose}")


def _pick(stream: Random, items: Sequence[str]) -> str:
    """Uses random() only, whose values Python keeps the same from version to version."""
    return items[int(stream.random() * len(items))]
