"""A plan for a reader: tables and lines of text. Computes nothing that the plan does not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.cli import planfleet as fleet
from orchestrator.cli.plantrial import Trial
from orchestrator.cli.planwords import amount, grid, rate
from orchestrator.planner.plan import Plan
from orchestrator.planner.sizing.traffic import Flow
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.resources import ACCELERATOR, POD_TYPE, REGION
from orchestrator.recipe.toml_text import dump
from orchestrator.store.status_text import DASH, number, percent, seconds

NODES_SHOWN = 24
STEPS_SHOWN = 3  # syncer steps at which a fragment is due


def show(plan: Plan, commands: Sequence[str], tried: Trial | None, console: Console) -> None:
    """Print the whole plan. `tried`: what comes of what is recommended."""
    say = _printer(console)
    for heading, lines in (
        ("recipe, resolved", dump(plan.recipe).rstrip().splitlines()),
        (f"placement on {_source(plan)}", [_nodes(plan), *_services(plan)]),
        (_fragments_heading(plan), [_fragments(plan)]),
        ("budget", list(_pace(plan))),
        ("traffic, payloads alone", [_traffic(plan), *_compared(plan)]),
        ("what keeping it costs", [_modes(plan), *_checkpoints(plan)]),
        ("memory, activations and data not counted", [_memory(plan)]),
        ("links between regions", fleet.links(plan)),
        ("what you survive", fleet.survived(plan)),
        ("forecast", fleet.foreseen(plan)),
        ("what it costs", list(fleet.cost(plan))),
        ("recommendation", fleet.recommended(plan, tried)),
        (f"limits broken: {len(plan.limits)}", list(_problems(plan.limits))),
        (f"warnings: {len(plan.warnings) or 'none'}", list(_problems(plan.warnings))),
        ("and now", list(commands)),
    ):
        if lines or heading == "warnings: none":
            say(Text(heading, style="bold"), *lines, "")
    say(_verdict(plan))


def _printer(console: Console) -> Any:
    def say(*lines: Any) -> None:
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=isinstance(line, (str, Text)))

    return say


def _verdict(plan: Plan) -> str:
    how = "can be placed" if plan.ok else "CANNOT RUN AS PLANNED"
    return f"{plan.recipe.name}: {how}, config hash {plan.recipe.config_hash}"


# ------------------------------------------------------------------ placement


def _source(plan: Plan) -> str:
    count = len(plan.setting.nodes)
    if plan.setting.source == "this machine":
        return "this machine"
    return f"{count} {'node' if count == 1 else 'nodes'} {'declared' if plan.setting.source == 'declared' else 'there'}"


def _nodes(plan: Plan) -> Table:
    table = grid("node", "region", "offers", "learners", left=4)
    pools = {name: pool.name for name, pool in plan.recipe.learners.items()}
    for node in plan.setting.nodes[:NODES_SHOWN]:
        there = Counter(pools[name] for name, place in plan.placement.learners.items() if place == node.name)
        who = ", ".join(f"{count} x {pool}" for pool, count in there.items())
        offers = ", ".join(
            [f"{kind}={value:g}" for kind, value in node.resources.items() if kind != "memory" and ":" not in kind]
            + [value for label, value in node.labels.items() if label in (ACCELERATOR, POD_TYPE)]
            + [f"{label}={value}" for label, value in node.labels.items() if label != REGION and "/" not in label]
        )
        memory = f", {amount(node.memory_bytes)} memory" if node.memory_bytes else ""
        table.add_row(node.name, node.region or DASH, offers + memory, who or DASH)
    if (more := len(plan.setting.nodes) - NODES_SHOWN) > 0:
        table.add_row(f"and {more} more", "", "", "")
    return table


def _services(plan: Plan) -> Iterator[str]:
    yield "  ".join(f"{name} on {node}" for name, node in plan.placement.services.items())
    if plan.at_max is not None:
        unplaced = sum(one.units for one in plan.at_max.shortfalls)
        sizes = ", ".join(f"{pool.max or pool.learners} x {pool.name}" for pool in plan.recipe.pools)
        yield f"with every pool at its max, {sizes}: {f'{unplaced} find no place' if unplaced else 'all find a place'}"
    if not plan.setting.local:
        yield "Ray chooses where the services go; the syncer is counted as being where it stands here"


# ------------------------------------------------------------------ fragments, budget, traffic, memory


def _fragments_heading(plan: Plan) -> str:
    sizes = [row.elements for row in plan.fragments]
    ratio = f"{max(sizes) / min(sizes):.2f}" if min(sizes) else DASH
    tensors = sum(row.tensors for row in plan.fragments)
    return (
        f"{len(sizes)} fragments of {tensors} tensors, {plan.shapes.elements:,} elements, "
        f"{amount(plan.shapes.parameter_bytes)} in the model; largest to smallest {ratio}"
    )


def _fragments(plan: Plan) -> Table:
    table = grid("fragment", "tensors", "elements", "up", "down", "share", "due at syncer steps")
    round_steps = plan.recipe.sync.round_steps
    for row in plan.fragments:
        first = row.due or round_steps  # step 0 does not exist
        due = [first + i * round_steps for i in range(STEPS_SHOWN) if first + i * round_steps <= plan.pace.syncer_steps]
        more = ", ..." if first + STEPS_SHOWN * round_steps <= plan.pace.syncer_steps else ""
        table.add_row(
            str(row.fragment),
            number(row.tensors),
            number(row.elements),
            amount(row.up_bytes),
            amount(row.down_bytes),
            percent(row.share),
            (", ".join(map(str, due)) + more) or "never",
        )
    return table


def _pace(plan: Plan) -> Iterator[str]:
    pace, recipe = plan.pace, plan.recipe
    yield (
        f"T = {number(pace.syncer_steps)} syncer steps of {number(pace.step_tokens)} tokens, H = "
        f"{recipe.sync.round_steps}: {number(pace.rounds, 1)} rounds"
    )
    for pool, tokens in pace.learner_tokens.items():
        yield f"{number(tokens)} tokens for each learner of {pool}"
    if pace.run_s is not None:
        yield f"{seconds(pace.run_s)} of stepping, at {number(pace.step_s, 3)} s a syncer step"


def _traffic(plan: Plan) -> Table:
    table = grid("", "mean/step", "peak/step", "a round", "mean", "peak")
    told = plan.traffic
    rows = [("one learner up", told.learner_up), ("one learner down", told.learner_down)]
    for region in told.regions:
        known = region.region or region.syncer_region
        ends = f", {region.region or DASH} -> {region.syncer_region or DASH}" if known else ""
        rows.append((f"{region.learners} learners{ends}, up", region.up))
        rows.append((f"{region.learners} learners{ends}, down", region.down))
    for name, flow in rows:
        table.add_row(name, *_flow(flow))
    return table


def _flow(flow: Flow) -> list[str]:
    return [
        amount(flow.per_step_bytes),
        amount(flow.peak_bytes),
        amount(flow.per_round_bytes),
        rate(flow.per_second_bits),
        rate(flow.peak_second_bits),
    ]


def _compared(plan: Plan) -> Iterator[str]:
    told = plan.traffic
    yield (
        f"the whole run: {amount(told.run_up_bytes)} up, {amount(told.run_down_bytes)} down; each evaluation fetches "
        f"{amount(told.evaluation_bytes)}"
    )
    given = told.donation_bytes
    peer = "" if given is None else f"{amount(given)} from a peer, parameters and inner optimizer; where none gives, "
    yield f"a learner that joins fetches {peer}{amount(told.joining_bytes)} from the syncer"
    plain = told.data_parallel
    if plain.ratio is not None:
        yield (
            f"plain data-parallel training: each learner sends and receives {amount(plain.each_way_bytes)} in every "
            f"step, {plain.ratio:.3g} times as much as here"
        )


def _modes(plan: Plan) -> Table:
    table = grid("durability.mode", "a commit", "written a second", "held at the most")
    for mode in plan.upkeep.modes:
        name = f"{mode.mode}, as the recipe has it" if mode.mode == plan.upkeep.mode else mode.mode
        second = DASH if mode.per_second_bytes is None else amount(mode.per_second_bytes)
        table.add_row(name, amount(mode.commit_bytes), second, amount(mode.held_bytes))
    return table


def _checkpoints(plan: Plan) -> Iterator[str]:
    cost, every_s = plan.upkeep, plan.recipe.durability.every_s
    often = (
        f"one each {seconds(every_s)} is {amount(cost.checkpoint_per_second_bytes)} a second" if every_s else "at stops"
    )
    most = amount(cost.checkpoints_bytes)
    yield f"a checkpoint is {amount(cost.checkpoint_bytes)}, {often}; at the most {most} lie there"


def _memory(plan: Plan) -> Table:
    table = grid("process", "of which", "own", "object store", "device", left=2)
    for name, process in plan.memory.items():
        sums = (process.host_bytes, process.store_bytes, process.device_bytes)
        table.add_row(Text(name, style="bold"), "in all", *map(amount, sums))
        for part in process.parts:
            cells = (amount(part.bytes) if part.where == where else "" for where in ("host", "store", "device"))
            table.add_row("", part.what, *cells)
    return table


def _problems(problems: Sequence[Problem]) -> Iterator[str]:
    for problem in problems:
        yield from str(problem).splitlines()
