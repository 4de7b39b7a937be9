"""Makes the plan of a recipe. A pure function of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orchestrator.planner.checks import checked
from orchestrator.planner.forecast import forecast
from orchestrator.planner.plan import Plan, PlanContext, StepPace
from orchestrator.planner.sizing import capacity, memory
from orchestrator.planner.sizing import traffic as flows
from orchestrator.planner.sizing.costs import cost
from orchestrator.planner.sizing.fault_tolerance import expected, fault_outcomes
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.rates import FAILOVER, STORE, unit_step_s
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem


def make(recipe: Recipe, shapes: Shapes, context: PlanContext, busy: Sequence[Problem] = ()) -> Plan:
    """The plan of a resolved recipe. `busy`: warnings about the nodes, which the caller found."""
    step_s, syncer_region = recipe.fleet.step_s, recipe.fleet.syncer_region
    wanted = capacity.services(recipe, context.local, None if context.local else syncer_region)
    placement = capacity.place(recipe.learners, wanted, context.nodes, context.local)
    regions, pace = _regions(recipe, context, placement), _pace(recipe, shapes, step_s)
    rows = flows.table(shapes.fragments, recipe.sync)
    moved = flows.traffic(
        rows,
        recipe.sync,
        {name: regions[name] for name in recipe.learners},
        regions.get("syncer", syncer_region),
        pace.syncer_steps,
        shapes.parameter_bytes,
        shapes.inner_state_bytes,
        pace.step_s,
    )
    hub = syncer_region or regions.get("syncer") or flows.home(recipe)
    loads = tuple(flows.of_regions(recipe, moved, hub, pace.step_s))
    read_s = (flows.DOWN_BYTES * shapes.elements + sum(shapes.outer_state_bytes)) / STORE.value
    losses = expected(recipe)
    foreseen = forecast(recipe, shapes, step_s, hub) if context.forecast else None
    whole = foreseen if foreseen is not None and foreseen.whole else None
    committed = None if whole is None else whole.committed
    with_quorum = 1.0 - losses.below_quorum
    run_s = pace.run_s / with_quorum if pace.run_s and with_quorum and recipe.budget.syncer_steps is not None else None
    if whole is not None and not whole.step_is_assumed:
        run_s = whole.run_s
    run_tokens = recipe.budget.tokens or pace.syncer_steps * pace.step_tokens
    plan = Plan(
        recipe=recipe,
        context=context,
        shapes=shapes,
        fragments=rows,
        placement=placement,
        regions=regions,
        pace=pace,
        traffic=moved,
        memory=memory.of_run(recipe, shapes, flows.open_steps(recipe.sync, loads)),
        loads=loads,
        round_steps=flows.round_steps(recipe, loads),
        expected=losses,
        fault_outcomes=fault_outcomes(recipe, hub, context.shared_store, FAILOVER.value + read_s),
        forecast=foreseen,
        cost=cost(recipe, shapes.step_tokens, step_s, run_tokens, committed, run_s),
    )
    return checked(plan, busy)


def _regions(recipe: Recipe, context: PlanContext, placement: capacity.Placement) -> dict[str, str | None]:
    """The region of each learner and service: by its node, else, for a learner without one, where its pool wants it."""
    if context.local:
        return dict.fromkeys([*recipe.learners, "syncer"])
    of_node = {node.name: node.region for node in context.nodes}
    found = {name: pool.region for name, pool in recipe.learners.items()}
    found |= {name: of_node[places[0]] for name, places in placement.learners.items()}
    return found | {name: of_node[node] for name, node in placement.services.items()}


def _pace(recipe: Recipe, shapes: Shapes, step_s: float | None) -> StepPace:
    step_tokens = sum(shapes.step_tokens[pool.name] for pool in recipe.learners.values())
    steps = recipe.budget.syncer_steps
    if steps is None:
        assert recipe.budget.tokens is not None
        steps = max(1, -(-recipe.budget.tokens // step_tokens))
    takes_s = [unit_step_s(recipe, pool, step_s) for pool in recipe.learners.values()]
    known_s = [seconds for seconds in takes_s if seconds is not None]
    # The syncer's clock is the median learner's step.
    syncer_s = median(known_s) if len(known_s) == len(takes_s) else None
    return StepPace(
        syncer_steps=steps,
        rounds=steps / recipe.sync.round_steps,
        step_tokens=step_tokens,
        step_s=syncer_s,
        run_s=None if syncer_s is None else steps * syncer_s,
    )
