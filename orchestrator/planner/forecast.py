"""Forecasts a run: the recipe in virtual time, with the failures and links that its [fleet] names.

The production shells run once, from the beginning of the run to its end or for as many steps as can be simulated in
seconds. Failures that come less often than that are in the plan's mean times (sizing/fault_tolerance.py) alone. What a
recipe does not say is assumed, in the constants here; docs/planning.md lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from statistics import median

from orchestrator.planner.fleet.description import (
    Draw,
    Fleet,
    FleetLink,
    FleetMember,
    Steady,
    Timing,
    constant,
)
from orchestrator.planner.fleet.world import simulate
from orchestrator.planner.sizing import rates
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.rates import HOUR_S, unit_mtbf_hours, unit_step_s
from orchestrator.planner.sizing.traffic import home, journal_s, usable_bits
from orchestrator.recipe.config import Recipe
from outer.protocol.schedule import Budget

NOISE = 0.02  # standard deviation of a step's time, as a share of it
IMPORTING = 0.3  # share of a learner's start; the rest is compiling
STEPS_MAX = 6_000  # of all learners together
ROUNDS_MIN = 3  # fewer rounds of H steps say nothing
ASSUMED_STEP_S = 1.0


@dataclass(frozen=True)
class Forecast:
    """The simulated part of a run. Shares, 0 to 1, are of all configured learners."""

    step_s: float
    step_is_assumed: bool
    run_s: float  # virtual seconds that were simulated
    whole: bool  # to the end of the run
    losses: int  # of learners
    goodput: float  # time stepping
    uptime: float  # time in which at least one learner steps
    participation: float | None  # of commits; None without any
    round_steps: float | None  # inner steps of the median learner in the newest round; None before it
    committed: float  # tokens, of those that all learners could process


def forecast(recipe: Recipe, shapes: Shapes, step_s: float | None, syncer_region: str | None = None) -> Forecast | None:
    """Simulate a run. `step_s`: of a learner with slowdown 1.

    None for lock-step studies, and where a few rounds are too many steps to simulate.
    """
    learners, pace = list(recipe.learners.values()), step_s or ASSUMED_STEP_S
    steps = STEPS_MAX // len(learners)
    if recipe.sync.overlap == "strict" or steps < ROUNDS_MIN * recipe.sync.round_steps:
        return None
    takes_s = [unit_step_s(recipe, pool, pace) for pool in learners]
    until_s = steps * median(takes_s)
    made = _fleet(recipe, shapes, pace, syncer_region)
    outcome, world = simulate(made, until_s)
    able = sum(shapes.step_tokens[pool.name] / seconds for pool, seconds in zip(learners, takes_s, strict=True))
    return Forecast(
        step_s=pace,
        step_is_assumed=any(unit_step_s(recipe, pool, step_s) is None for pool in learners),
        run_s=outcome.seconds,
        whole=outcome.finished_at is not None,
        losses=sum(learner.incarnation - 1 for learner in world.learners.values()),
        goodput=outcome.goodput,
        uptime=outcome.uptime,
        participation=outcome.participation if outcome.commits else None,
        round_steps=outcome.round_steps,
        committed=min(1.0, outcome.tokens_committed / (able * outcome.seconds)),
    )


# ------------------------------------------------------------------ the recipe as a fleet


def _fleet(recipe: Recipe, shapes: Shapes, step_s: float, syncer_region: str | None) -> Fleet:
    """`step_s`: of a learner with slowdown 1.

    Units die at random, as [fleet] has it, and wait for hardware for an exponential time.
    """
    told, seed, hub = recipe.fleet, recipe.seed, syncer_region or home(recipe) or ""
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
        links=_links(recipe, hub),
        syncer_region=hub,
        state_bytes=shapes.parameter_bytes + shapes.inner_state_bytes,
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
        append_s=journal_s,
        backoff_s=run.restart_backoff_s,
        hang_s=run.hang_s,
        unreachable_s=run.unreachable_s,
        start_s=max(run.start_s, 2.0 * told.start_s),
    )


def _exponential(rng: Random, mean_s: float) -> Draw:
    return (lambda: rng.expovariate(1.0 / mean_s)) if mean_s else constant(0.0)


def _links(recipe: Recipe, hub: str) -> Mapping[tuple[str, str], FleetLink]:
    links, there = {}, Counter(pool.region for pool in recipe.learners.values())
    for link in recipe.fleet.links:
        one, other = link.between
        bits = usable_bits(link, there[one if other == hub else other] or 1)
        links[one, other] = links[other, one] = FleetLink(bits, link.latency_ms / 1e3)
    return links
