"""A resolved recipe as a fleet: its learners, speeds, links and rules, and what its [fleet] says of failures.

What a recipe does not tell is assumed, in the constants here; docs/planning.md lists them. Fragments and the
tokens of a step are arguments.
"""

from __future__ import annotations

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
    until_s: float,
    syncer_region: str | None = None,
) -> Fleet:
    """`step_s`: of a learner with slowdown 1. `until_s`: seconds for which spot hours are drawn.

    Units die at random, as [fleet] has it, and wait for hardware for an exponential time.
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
                step_model=Steady(unit_step_s(recipe, pool, step_s), Random(f"{seed} {name}"), NOISE),
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
        faults=_spot_hours(recipe, seed, until_s),
        span_steps=recipe.data.span_steps,
        ahead_s=recipe.data.ahead_s,
        look_s=max(1.0, 0.1 * step_s),
        death=lambda mean_s: dies.expovariate(1.0 / mean_s),
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


def _spot_hours(recipe: Recipe, seed: int, until_s: float) -> tuple[FleetFault, ...]:
    """The faults by which spot pools come and go, each as a whole, from an hour of the day that the seed draws."""
    faults, share = [], {pool.name: pool.spot for pool in recipe.fleet.pools}
    for name, pool in recipe.learners.items():
        length_s = (1.0 - share.get(pool.name, 1.0)) * DAY_S
        night_s = Random(f"{seed} {pool.name}").random() * DAY_S
        for day in range(-1, int(until_s / DAY_S) + 1) if length_s else ():
            begin_s = night_s + day * DAY_S
            leave_s, join_s = max(0.0, begin_s), min(until_s, begin_s + length_s)
            if join_s > leave_s:
                faults += [FleetFault("leave", name, leave_s), FleetFault("join", name, join_s)]
    return tuple(faults)
