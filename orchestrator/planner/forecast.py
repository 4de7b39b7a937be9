"""Forecasts a run: the recipe in virtual time, with the failures, links and spot hours that its [fleet] names.

The production machines run once, from the beginning of the run to its end or for as many steps as can be simulated in
seconds. Failures that come less often than that are in the plan's mean times (sizing/fault_tolerance.py) alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from orchestrator.planner.fleet.recipes import fleet
from orchestrator.planner.fleet.world import simulate
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.units import unit_step_s
from orchestrator.recipe.config import Recipe

STEPS_MAX = 20_000  # of all learners together
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
    made = fleet(recipe, shapes, pace, recipe.seed, until_s, syncer_region)
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
        committed=min(1.0, outcome.tokens_committed / (able * outcome.seconds)),
    )
