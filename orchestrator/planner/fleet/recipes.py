"""A resolved recipe as a fleet: its learners, speeds, links and rules, and what its [fleet] says of failures.

What a recipe does not tell is assumed, in the constants here; docs/planning.md lists them. Fragments and the
tokens of a step are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from orchestrator.planner.fleet.description import (
    Draw,
    Fleet,
    FleetFault,
    FleetLink,
    FleetMember,
    Steady,
    Timing,
    Varying,
    constant,
)
from orchestrator.planner.sizing import rates
from orchestrator.planner.sizing.links import home
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.units import DAY_S, HOUR_S, unit_mtbf_hours, unit_step_s
from orchestrator.recipe.config import FleetConfig, Recipe
from outer.protocol.schedule import Budget

NOISE = 0.02  # standard deviation of a step's time, as a share of it
IMPORTING = 0.3  # share of a learner's start; the rest is compiling


def fleet(
    recipe: Recipe,
    shapes: Shapes,
    step_s: float,
    seed: int,
    *,
    faults: tuple[FleetFault, ...] = (),
    failing: bool = False,
    syncer_region: str | None = None,
    recorded: bool = False,
) -> Fleet:
    """`step_s`: of a learner with slowdown 1. `failing`: units die at random, as [fleet] has it, and
    wait for hardware for an exponential time.
    """
    told, hub = recipe.fleet, syncer_region or home(recipe) or ""
    mtbf_s = {pool.name: HOUR_S * unit_mtbf_hours(recipe, pool) for pool in recipe.pools}
    rng = Random(f"{seed} fleet")
    dies = Random(f"{seed} deaths")
    return Fleet(
        sync=recipe.sync,
        quorum=recipe.quorum,
        fragments=shapes.fragments,
        members=tuple(
            FleetMember(
                name=name,
                batch_size=pool.batch_size,
                tokens=shapes.step_tokens[pool.name],
                step_model=Varying(Steady(unit_step_s(recipe, pool, step_s)), Random(f"{seed} {name}"), noise=NOISE),
                pool=pool.name,
                region=pool.region or "",
                mtbf_s=mtbf_s[pool.name],
            )
            for name, pool in recipe.learners.items()
        ),
        budget=Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
        timing=_timing(recipe, _exponential(rng, told.replace_s)),
        links=_links(told),
        syncer_region=hub,
        state_bytes=shapes.parameter_bytes + shapes.inner_state_bytes,
        faults=faults,
        span_steps=recipe.data.span_steps,
        ahead_s=recipe.data.ahead_s,
        warm=True,
        look_s=max(1.0, 0.1 * step_s),
        death=(lambda mean_s: dies.expovariate(1.0 / mean_s)) if failing else lambda mean_s: math.inf,
        recorded=recorded,
    )


def _timing(recipe: Recipe, replace_s: Draw) -> Timing:
    told, run = recipe.fleet, recipe.run
    return Timing(
        import_s=constant(IMPORTING * told.start_s),
        compile_s=constant((1.0 - IMPORTING) * told.start_s),
        detect_s=constant(told.detect_s),
        replace_s=replace_s,
        merge_s=lambda elements, learners: rates.merge_s(recipe.sync.codec, elements, learners),
        append_s=lambda elements: 8.0 * elements / rates.STORE.value,
        backoff_s=run.restart_backoff_s,
        hang_s=run.hang_s,
        unreachable_s=run.unreachable_s,
        start_s=max(run.start_s, 2.0 * told.start_s),
    )


def _exponential(rng: Random, mean_s: float) -> Draw:
    return (lambda: rng.expovariate(1.0 / mean_s)) if mean_s else constant(0.0)


def _links(told: FleetConfig) -> Mapping[tuple[str, str], FleetLink]:
    links = {}
    for link in told.links:
        one, other = link.between
        links[one, other] = links[other, one] = FleetLink(link.gbit_s * 1e9, link.latency_ms / 1e3)
    return links


# ------------------------------------------------------------------ spot capacity: away at the same hours every day

Interval = tuple[float, float]  # begin, end


def spot_hours(recipe: Recipe, seed: int, until_s: float) -> tuple[FleetFault, ...]:
    """The faults by which spot pools come and go, each as a whole, from an hour of the day that the seed draws."""
    share = {pool.name: pool.spot for pool in recipe.fleet.pools}
    night = {name: Random(f"{seed} {name}").random() * DAY_S for name in share}
    learners = {name: pool.name for name, pool in recipe.learners.items() if pool.name in share}
    return comings({name: absences(share[pool], night[pool], until_s) for name, pool in learners.items()})


def absences(share: float, night_s: float, until_s: float) -> list[Interval]:
    """Seconds of a run in which capacity that is there for this share of the day is not, from `night_s` of a day on."""
    length = (1.0 - share) * DAY_S
    days = range(-1, int(until_s / DAY_S) + 1)
    found = [(max(0.0, night_s + day * DAY_S), min(until_s, night_s + day * DAY_S + length)) for day in days]
    return [(begin, end) for begin, end in found if end > begin and length]


def comings(away: Mapping[str, list[Interval]]) -> tuple[FleetFault, ...]:
    """The same as faults: learners, by name, leave and join again."""
    spans = [(name, begin, end) for name, intervals in away.items() for begin, end in intervals]
    return tuple(
        fault
        for name, begin, end in spans
        for fault in (FleetFault("leave", name, begin), FleetFault("join", name, end))
    )
