"""A recipe trained by a fleet that fails: the log that such a run would have, for real training to follow.

Learners are units that die and are replaced, or come and go with spot capacity (the recipe's [fleet]).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import check
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunStarted
from orchestrator.planner.fleet.recipes import Interval, absences, comings, fleet
from orchestrator.planner.fleet.world import ForecastOutcome, simulate
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.units import DAY_S, unit_step_s
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.simulation.tape_log import bare
from outer.protocol.manifest import code_digest

PATIENCE = 50.0  # so many times as long as without failures, and it is held for standing still


@dataclass(frozen=True)
class Simulated:
    """A run that never was."""

    events: list[Event]
    verdicts: list[Verdict]  # the checkers', on its log
    outcome: ForecastOutcome


def record(
    recipe: Recipe,
    shapes: Shapes,
    step_s: float,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Simulated:
    """Simulate a resolved recipe, whose units die as [fleet] has it.

    `progress` is told the share of the budget that is committed. Raises InputError where the run comes to no end.
    """
    slowest = max(unit_step_s(recipe, pool, step_s) for pool in recipe.pools)
    until_s = DAY_S + PATIENCE * slowest * (recipe.target_syncer_steps + recipe.sync.round_steps)
    made = fleet(recipe, shapes, step_s, seed, failing=True, recorded=True)
    made = replace(made, faults=comings(_away(recipe, seed, until_s)))
    outcome, world = simulate(made, until_s, progress=progress)
    if outcome.finished_at is None:
        message = (
            f"the simulated run comes to no end: {outcome.commits} commits in {world.time.now:,.0f} virtual seconds"
        )
        raise InputError([Problem("fleet.mtbf_hours", recipe.fleet.mtbf_hours, message, "let units live longer")])
    how = f"simulated fleet, seed {seed}, fastest step {step_s:g} s"
    started = RunStarted(recipe.name, recipe.config_hash, recipe.seed, {"synthetic": how, "code": code_digest()})
    world.context.facts["orchestrator", 1].insert(0, (0.0, started))
    events = [replace(event, fact=bare(event.fact)) for event in world.context.events()]
    return Simulated(events, check(events), outcome)


def _away(recipe: Recipe, seed: int, until_s: float) -> dict[str, list[Interval]]:
    """When spot capacity is: all of a pool at the same hours, which the seed draws."""
    spots = {pool.name: (pool.spot, Random(f"{seed} {pool.name}").random() * DAY_S) for pool in recipe.fleet.pools}
    return {name: absences(*spots[pool.name], until_s) for name, pool in recipe.learners.items() if pool.name in spots}
