"""A recipe trained by a fleet that fails: the log that such a run would have, for real training to follow.

Learners are units that die and are replaced, or come and go with spot capacity (the recipe's [fleet]); or islands of
many chips, that stand still while slices go and return. A step with slices missing is a whole step here, for a tape's
batches are the recipe's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import check
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunStarted
from orchestrator.planner.fleet.description import Fleet, StepModel, StepSample
from orchestrator.planner.fleet.islands.failures import Draws, Failures
from orchestrator.planner.fleet.islands.island import Island
from orchestrator.planner.fleet.recipes import NOISE, fleet
from orchestrator.planner.fleet.run import Outcome, simulate
from orchestrator.planner.fleet.speeds import Varying
from orchestrator.planner.fleet.spot import DAY_S, Interval, absences, comings
from orchestrator.planner.sizing.fault_tolerance import HOUR_S
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.step_times import unit_step_s
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
    outcome: Outcome


class Whole:
    """An island whose steps are whole even while slices are missing."""

    def __init__(self, island: Island) -> None:
        self._island = island

    def sample(self, now: float) -> StepSample:
        sample = self._island.sample(now)
        return StepSample(sample.seconds, sample.stall_s)


def record(
    recipe: Recipe,
    shapes: Shapes,
    step_s: float,
    seed: int,
    chips: int | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Simulated:
    """Simulate a resolved recipe. `chips`: of the whole fleet, in islands; None: units die as [fleet] has it.

    `progress` is told the share of the budget that is committed. Raises InputError where the run comes to no end.
    """
    slowest = max(unit_step_s(recipe, pool, step_s) for pool in recipe.pools)
    until_s = DAY_S + PATIENCE * slowest * (recipe.target_syncer_steps + recipe.sync.round_steps)
    made = fleet(recipe, shapes, step_s, seed, failing=chips is None, recorded=True)
    made = replace(made, faults=comings(_away(recipe, seed, until_s)))
    fleet_of = made if chips is None else _islands(recipe, made, chips, step_s, seed)
    outcome, world = simulate(fleet_of, until_s, progress=progress)
    if outcome.finished_at is None:
        message = (
            f"the simulated run comes to no end: {outcome.commits} commits in {world.time.now:,.0f} virtual seconds"
        )
        raise InputError([Problem("fleet.mtbf_hours", recipe.fleet.mtbf_hours, message, "let units live longer")])
    how = f"simulated fleet, seed {seed}, fastest step {step_s:g} s" + (f", {chips} chips" if chips is not None else "")
    started = RunStarted(recipe.name, recipe.config_hash, recipe.seed, {"synthetic": how, "code": code_digest()})
    world.context.facts["orchestrator", 1].insert(0, (0.0, started))
    events = [replace(event, fact=bare(event.fact)) for event in world.context.events()]
    return Simulated(events, check(events), outcome)


def _away(recipe: Recipe, seed: int, until_s: float) -> dict[str, list[Interval]]:
    """When spot capacity is: all of a pool at the same hours, which the seed draws."""
    spots = {pool.name: (pool.spot, Random(f"{seed} {pool.name}").random() * DAY_S) for pool in recipe.fleet.pools}
    return {name: absences(*spots[pool.name], until_s) for name, pool in recipe.learners.items() if pool.name in spots}


def _islands(recipe: Recipe, made: Fleet, chips: int, step_s: float, seed: int) -> Fleet:
    """The same learners, each an island of its part of the chips. One that stands still does not hang."""
    count, model = len(made.members), Failures(step_s=step_s, mtbi_s=HOUR_S * recipe.fleet.mtbf_hours)
    members = []
    for index, member in enumerate(made.members):
        island: StepModel = Whole(Island(model, chips / count, Draws(seed, 0, index)))
        slowdown, rng = recipe.pool_of(member.name).slowdown, Random(f"{seed} {member.name}")
        members.append(replace(member, step_model=Varying(island, rng, slowdown, NOISE)))
    return replace(made, members=tuple(members), timing=replace(made.timing, hang_s=math.inf))
