"""The plan of a run: placement, traffic, memory, failures and cost of a recipe, computed before anything starts.

A pure function of its arguments. `as_json` is what `diloco plan --json` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from orchestrator.planner.forecast import Forecast, forecast
from orchestrator.planner.sizing import fit, link_load, memory
from orchestrator.planner.sizing.cost import Cost, cost
from orchestrator.planner.sizing.draft import Draft
from orchestrator.planner.sizing.fault_tolerance import Expected, FaultOutcome, expected, fault_outcomes
from orchestrator.planner.sizing.limits import limits
from orchestrator.planner.sizing.link_load import LinkLoad
from orchestrator.planner.sizing.lint import warnings
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.nodes import Node
from orchestrator.planner.sizing.rates import rates
from orchestrator.planner.sizing.step_times import unit_step_s
from orchestrator.planner.sizing.storage_cost import StorageCost, storage_cost
from orchestrator.planner.sizing.traffic import DOWN_BYTES, FragmentRow, Traffic, table, traffic
from orchestrator.planner.sizing.upkeep import CONSTANTS, Upkeep, upkeep
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import Problem


@dataclass(frozen=True)
class PlanContext:
    """Where and how the run is to go."""

    nodes: Sequence[Node]
    source: Literal["declared", "this machine", "cluster"]
    cores: int  # of this machine
    store: str  # the run's folder
    shared_store: bool  # it is on a network file system
    step_s: float | None = None  # of one inner step, without a pool's slowdown; None: as in `fleet`
    syncer_region: str | None = None  # likewise
    forecast: bool = True  # or none is made

    @property
    def local(self) -> bool:
        """One node on which `diloco run` starts Ray by itself: regions do not bind."""
        return self.source == "this machine"


@dataclass(frozen=True)
class Pace:
    """How long the run is, in the units that matter."""

    syncer_steps: int  # T; for a token budget, with every learner stepping once in each
    rounds: float  # T / H
    step_tokens: int  # of one step of every learner
    learner_tokens: dict[str, int]  # of one learner over the whole run, by pool
    step_s: float | None
    run_s: float | None  # of stepping alone


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    context: PlanContext
    shapes: Shapes
    fragments: tuple[FragmentRow, ...]
    placement: fit.Placement
    at_max: fit.Placement | None  # of `recipe.learners` and those that may join; None: no pool may grow
    pace: Pace
    traffic: Traffic
    storage_cost: StorageCost
    upkeep: Upkeep
    memory: dict[str, memory.Memory]
    loads: tuple[LinkLoad, ...]
    expected: Expected
    fault_outcomes: tuple[FaultOutcome, ...]
    forecast: Forecast | None  # None: it was not asked for, or is of no use in lock-step
    cost: Cost
    limits: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether it can be placed within all limits."""
        return not self.limits


def make(
    recipe: Recipe,
    shapes: Shapes,
    context: PlanContext,
    busy: Sequence[Problem] = (),
) -> Plan:
    """The plan of a resolved recipe. `busy`: warnings about the nodes, which the caller found."""
    context = _completed(context, recipe)
    wanted = fit.services(recipe, context.local, context.syncer_region)
    placement = fit.fit(recipe.learners, wanted, context.nodes, anywhere=context.local)
    grown = _grown(recipe)
    at_max = fit.fit(grown, wanted, context.nodes, anywhere=context.local) if grown else None
    regions = _regions(recipe, context, placement)
    pace = _pace(recipe, shapes, context.step_s)
    rows = table(shapes.fragments, recipe.sync)
    moved = traffic(
        rows,
        recipe.sync,
        {name: regions[name] for name in recipe.learners},
        regions.get("syncer", context.syncer_region),
        pace.syncer_steps,
        shapes.parameter_bytes,
        shapes.inner_state_bytes,
        pace.step_s,
    )
    hub = context.syncer_region or recipe.fleet.syncer_region or regions.get("syncer") or link_load.home(recipe)
    largest = DOWN_BYTES * max(row.elements for row in rows)
    loads = link_load.of_regions(recipe, moved, hub, pace.step_s, largest)
    kept = memory.of_run(recipe, shapes, [pool.name for pool in recipe.pools])
    draft = Draft(
        recipe=recipe,
        shapes=shapes,
        rows=rows,
        traffic=moved,
        memory=kept,
        nodes=context.nodes,
        placement=placement,
        at_max=at_max,
        regions=regions,
        local=context.local,
        cores=context.cores if context.local else None,
        step_s=pace.step_s,
        syncer_steps=pace.syncer_steps,
        loads=loads,
        shared_store=context.shared_store,
        store=context.store,
    )
    broken, doubtful = tuple(limits(draft)), (*warnings(draft), *busy)
    stored = storage_cost(rows, shapes, len(recipe.learners), recipe.sync.round_steps, pace.step_s, recipe.durability)
    values = [4 * row.elements + state for row, state in zip(rows, shapes.outer_state_bytes, strict=True)]
    own = [kept[who].host_bytes for who in ("syncer", "orchestrator")]
    aged = upkeep(recipe, values, pace.syncer_steps, pace.step_s, context.step_s, own)
    losses = expected(recipe)
    foreseen = forecast(recipe, shapes, context.step_s, hub) if context.forecast else None
    committed = foreseen.committed if foreseen is not None and foreseen.whole else None
    with_quorum = 1.0 - losses.below_quorum
    run_s = pace.run_s / with_quorum if pace.run_s and with_quorum and recipe.budget.syncer_steps is not None else None
    if foreseen is not None and foreseen.whole and not foreseen.step_is_assumed:
        run_s = foreseen.run_s
    run_tokens = recipe.budget.tokens or pace.syncer_steps * pace.step_tokens
    return Plan(
        recipe=recipe,
        context=context,
        shapes=shapes,
        fragments=rows,
        placement=placement,
        at_max=at_max,
        pace=pace,
        traffic=moved,
        storage_cost=stored,
        upkeep=aged,
        memory=kept,
        loads=loads,
        expected=losses,
        forecast=foreseen,
        fault_outcomes=fault_outcomes(recipe, hub, context.shared_store, pace.step_s, aged.failover_s),
        cost=cost(recipe, shapes.step_tokens, context.step_s, run_tokens, committed, run_s),
        limits=broken,
        warnings=doubtful,
    )


def _completed(context: PlanContext, recipe: Recipe) -> PlanContext:
    """The context, completed from the recipe's `fleet`. A local node has no region."""
    region = context.syncer_region or (None if context.local else recipe.fleet.syncer_region)
    return replace(context, step_s=context.step_s or recipe.fleet.step_s, syncer_region=region)


def _grown(recipe: Recipe) -> dict[str, PoolConfig]:
    """Every learner by name with the pools at their `max`; empty where none says that it may grow."""
    pools = [pool.model_copy(update={"learners": pool.max or pool.learners}) for pool in recipe.pools]
    found = {name: pool for pool in pools for name in pool.names(pool.learners)}
    return found if len(found) > len(recipe.learners) else {}


def _regions(recipe: Recipe, context: PlanContext, placement: fit.Placement) -> dict[str, str | None]:
    """Where each learner and service is: by its node, else, for a learner without one, where its pool wants it."""
    if context.local:
        return dict.fromkeys([*recipe.learners, "syncer"])
    of_node = {node.name: node.region for node in context.nodes}
    found = {name: pool.region for name, pool in recipe.learners.items()}
    return found | {name: of_node[node] for name, node in (placement.learners | placement.services).items()}


def _pace(recipe: Recipe, shapes: Shapes, step_s: float | None) -> Pace:
    step_tokens = sum(shapes.step_tokens[pool.name] for pool in recipe.learners.values())
    steps = recipe.budget.syncer_steps
    if steps is None:
        assert recipe.budget.tokens is not None
        steps = max(1, -(-recipe.budget.tokens // step_tokens))
    takes_s = [unit_step_s(recipe, pool, step_s) for pool in recipe.learners.values()]
    known_s = [seconds for seconds in takes_s if seconds is not None]
    # The syncer's clock is the median learner's step.
    syncer_s = median(known_s) if len(known_s) == len(takes_s) else None
    return Pace(
        syncer_steps=steps,
        rounds=steps / recipe.sync.round_steps,
        step_tokens=step_tokens,
        learner_tokens={pool.name: steps * shapes.step_tokens[pool.name] for pool in recipe.pools},
        step_s=syncer_s,
        run_s=None if syncer_s is None else steps * syncer_s,
    )


def as_json(plan: Plan, commands: Sequence[str]) -> dict[str, Any]:
    """The whole plan in JSON values. Bytes, seconds, bits per second; what is not known is null."""
    recipe, shapes = plan.recipe, plan.shapes
    largest = max(row.elements for row in plan.fragments)
    smallest = min(row.elements for row in plan.fragments)
    return {
        "name": recipe.name,
        "config_hash": recipe.config_hash,
        "ok": plan.ok,
        "recipe": recipe.canonical(),
        "placement": {
            "source": plan.context.source,
            "nodes": [
                asdict(node) | {"region": node.region, "free": plan.placement.free[node.name]}
                for node in plan.context.nodes
            ],
            "learners": plan.placement.learners,
            "services": plan.placement.services,
            "unplaced": [asdict(one) for one in plan.placement.shortfalls],
            "at_max": plan.at_max
            and {"learners": plan.at_max.learners, "unplaced": [asdict(one) for one in plan.at_max.shortfalls]},
        },
        "model": {
            "tensors": sum(row.tensors for row in plan.fragments),
            "elements": shapes.elements,
            "parameter_bytes": shapes.parameter_bytes,
            "largest_to_smallest": largest / smallest if smallest else None,
        },
        "fragments": [asdict(row) for row in plan.fragments],
        "pace": asdict(plan.pace),
        "traffic": asdict(plan.traffic),
        "durability": asdict(plan.storage_cost),
        "upkeep": asdict(plan.upkeep)
        | {"constants": {name: constant._asdict() for name, constant in CONSTANTS.items()}},
        "memory": {
            name: {"host_bytes": one.host_bytes, "store_bytes": one.store_bytes, "device_bytes": one.device_bytes}
            | {"parts": [asdict(part) for part in one.parts]}
            for name, one in plan.memory.items()
        },
        "fleet": recipe.fleet.model_dump(mode="json"),
        "rates": {name: rate._asdict() for name, rate in rates(recipe).items()},
        "links": [asdict(load) | {"share": load.share} for load in plan.loads],
        "expected": asdict(plan.expected),
        "survives": [asdict(one) for one in plan.fault_outcomes],
        "forecast": plan.forecast and asdict(plan.forecast),
        "cost": asdict(plan.cost),
        "limits": [_problem(problem) for problem in plan.limits],
        "warnings": [_problem(problem) for problem in plan.warnings],
        "commands": list(commands),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"field": problem.field, "value": problem.value, "message": problem.message, "fix": problem.fix}
