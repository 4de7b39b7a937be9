"""A plan as tables and lines of text. It shows what the plan says and computes nothing more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.planner.checks import some
from orchestrator.planner.plan import Plan
from orchestrator.planner.sizing.rates import rates
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.resources import ACCELERATOR, POD_TYPE, REGION
from orchestrator.store.status_text import DASH, amount, number, percent, seconds

NODES_SHOWN = 24
LINES_MOST = 60


def show(plan: Plan, commands: Sequence[str], console: Console, full: bool) -> None:
    """Print the plan, whether it fits and what is wrong with it first; unless `full`, LINES_MOST lines of it."""
    how = "can be placed" if plan.ok else "CANNOT RUN AS PLANNED"
    with console.capture() as captured:
        for heading, lines in (
            (f"{plan.recipe.name}: {how}, config hash {plan.recipe.config_hash}", list(_rounds(plan))),
            (f"limits broken: {len(plan.limits)}", list(_problems(plan.limits))),
            (f"warnings: {len(plan.warnings) or 'none'}", list(_problems(plan.warnings))),
            ("next commands", list(commands)),
            ("forecast", list(_foreseen(plan))),
            ("what it costs", list(_cost(plan))),
            (f"placement on {_source(plan)}", [_nodes(plan), *_services(plan)]),
            ("traffic of payloads", [_fragments(plan), _traffic(plan), *_compared(plan)]),
            ("links", _links(plan)),
            ("memory, without activations and data", [_memory(plan, full)]),
            ("faults and what follows", _survived(plan)),
            ("rates, and where they come from", list(_rates(plan)) if full else []),
        ):
            if lines or heading == "warnings: none":
                for line in (Text(heading, style="bold"), *lines, ""):
                    console.print(line, markup=False, highlight=False, soft_wrap=isinstance(line, (str, Text)))
    shown = captured.get().splitlines()
    left = 0 if full else max(0, len(shown) - LINES_MOST + 1)
    more = [] if full else [f"{left} lines more, and details: --full" if left else "details: --full"]
    typer.echo("\n".join([*shown[: len(shown) - left], *more]))


# ------------------------------------------------------------------ placement


def _source(plan: Plan) -> str:
    count, source = len(plan.context.nodes), plan.context.source
    if source == "this machine":
        return source
    return f"{count} {'node' if count == 1 else 'nodes'} {'declared' if source == 'declared' else 'there'}"


def _nodes(plan: Plan) -> Table:
    table = _grid("node", "region", "offers", "learners", left=4)
    pools = {name: pool.name for name, pool in plan.recipe.learners.items()}
    for node in plan.context.nodes[:NODES_SHOWN]:
        there = Counter(pools[name] for name in plan.on_node(node) if name in pools)
        who = ", ".join(f"{count} x {pool}" for pool, count in there.items())
        offers = [f"{kind}={value:g}" for kind, value in node.resources.items() if kind != "memory" and ":" not in kind]
        offers += [value for label, value in node.labels.items() if label in (ACCELERATOR, POD_TYPE)]
        offers += [f"{label}={value}" for label, value in node.labels.items() if label != REGION and "/" not in label]
        offers += [f"{amount(node.memory_bytes)} memory"] if node.memory_bytes else []
        table.add_row(node.name, node.region or DASH, ", ".join(offers), who or DASH)
    if (more := len(plan.context.nodes) - NODES_SHOWN) > 0:
        table.add_row(f"and {more} more", "", "", "")
    return table


def _services(plan: Plan) -> Iterator[str]:
    yield "  ".join(f"{name} on {node}" for name, node in plan.placement.services.items())
    if not plan.context.local:
        yield "Ray chooses where the services go; the syncer is counted as being where it stands here"


# ------------------------------------------------------------------ rounds, traffic, memory


def _fragments(plan: Plan) -> str:
    sizes, shapes = [row.elements for row in plan.fragments], plan.shapes
    ratio = f"{max(sizes) / min(sizes):.2f}" if min(sizes) else DASH
    tensors = sum(row.tensors for row in plan.fragments)
    return (
        f"{len(sizes)} fragments of {tensors} tensors, {shapes.elements:,} elements, "
        f"{amount(shapes.parameter_bytes)} in the model; largest to smallest {ratio}"
    )


def _rounds(plan: Plan) -> Iterator[str]:
    pace, asked = plan.pace, plan.recipe.sync.round_steps
    steps, tokens, rounds = number(pace.syncer_steps), number(pace.step_tokens), number(pace.rounds, 1)
    yield f"T = {steps} syncer steps of {tokens} tokens, H = {asked}: {rounds} rounds"
    known = [load.exchange_steps for load in plan.loads if load.exchange_steps is not None]
    if plan.round_steps is not None and known:
        longest = f"the longest exchange takes {math.ceil(max(known))}"
        yield f"rounds take {math.ceil(plan.round_steps)} inner steps, sync.H = {asked}; {longest}"
    elif plan.loads and not known:
        yield "how many steps an exchange takes is not known: give fleet.step_s and fleet.links"
    if pace.run_s is not None:
        yield f"{seconds(pace.run_s)} of stepping, at {number(pace.step_s, 3)} s a syncer step"


def _traffic(plan: Plan) -> Table:
    table, told = _grid("", "mean/step", "peak/step", "a round", "mean"), plan.traffic
    for name, flow in (("one learner up", told.learner_up), ("one learner down", told.learner_down)):
        sizes = map(amount, (flow.per_step_bytes, flow.peak_bytes, flow.per_round_bytes))
        table.add_row(name, *sizes, _rate(flow.per_second_bits))
    return table


def _compared(plan: Plan) -> Iterator[str]:
    told = plan.traffic
    up, down, joining = map(amount, (told.run_up_bytes, told.run_down_bytes, told.joining_bytes))
    yield f"the whole run: {up} up, {down} down"
    given = told.donation_bytes
    peer = "" if given is None else f"parameters and inner optimizer, {amount(given)}, from a peer, or "
    yield f"a learner that joins fetches {peer}{joining} from the syncer"
    if told.data_parallel_ratio is not None:
        plain, ratio = amount(told.data_parallel_bytes), told.data_parallel_ratio
        yield (
            f"plain data-parallel training: each learner sends and receives {plain} in every step, {ratio:.3g} times "
            "as much as here"
        )


def _memory(plan: Plan, full: bool) -> Table:
    """A row for each kind of process and, if `full`, each of its parts; pools that need the same are told together."""
    table, alike = _grid("process", "of which", "own", "object store", "device", left=2), dict[Any, list[str]]()
    for name, process in plan.memory.items():
        alike.setdefault(process.parts, []).append(name)
    for names, process in ((names, plan.memory[names[0]]) for names in alike.values()):
        sums = (process.host_bytes, process.store_bytes, process.device_bytes)
        table.add_row(Text(some(names), style="bold"), "in all", *map(amount, sums))
        for part in (each for each in process.parts if each.bytes and full):
            cells = (amount(part.bytes) if part.where == where else "" for where in ("host", "store", "device"))
            table.add_row("", part.what, *cells)
    return table


def _problems(problems: Sequence[Problem]) -> Iterator[str]:
    for problem in problems:
        yield from str(problem).splitlines()


# ------------------------------------------------------------------ links, faults, forecast, cost


def _links(plan: Plan) -> list[Any]:
    """A row for each region apart from the syncer's; nothing where there is none."""
    if not plan.loads:
        return []
    table = _grid("learners", "up", "down", "link", "used", "exchange", "tau", "a join", "a day", "price")
    for load in plan.loads:
        link = DASH if load.link_bits is None else f"{_rate(load.link_bits)}, {1e3 * load.latency_s:g} ms"
        price = DASH if load.day_price is None else f"{load.day_price:,.2f}"
        exchange, tau = (None if each is None else math.ceil(each) for each in (load.exchange_steps, load.update_steps))
        table.add_row(
            f"{load.learners}, {load.ends}",
            *(_rate(load.up_bits), _rate(load.down_bits)),
            *(link, percent(load.share), DASH if exchange is None else f"{exchange} steps", number(tau)),
            *(seconds(load.joining_s), amount(load.day_bytes), price),
        )
    return [table, "of all learners of a link together; tau: how old an update is that crosses it, in steps"]


def _rates(plan: Plan) -> Iterator[str]:
    for name, rate in rates(plan.recipe).items():
        yield f"{name}: {rate.value:.3g} {rate.unit} ({rate.source})"


def _survived(plan: Plan) -> list[Any]:
    """A table of losses and what they do to commits, and how often to expect them."""
    table = _grid("lost", "commits", left=2)
    for one in plan.fault_outcomes:
        stop = "stop until you act" if one.stopped_s is None else f"stop for {seconds(one.stopped_s)}"
        table.add_row(Text(one.lost), stop if one.stopped_s != 0.0 else "go on")
    told = plan.expected
    each = ", ".join(f"{name} {number(hours)} h" for name, hours in told.unit_mtbf_hours.items())
    return [
        table,
        f"mean time between failures of one learner: {each}; {told.losses_per_day:.3g} failures a day in all",
        f"each is back in {told.outage_s:.0f} s: on average {told.alive_mean:.3g} of {len(plan.recipe.learners)} are "
        f"alive, and fewer than K = {plan.recipe.quorum} for {told.below_quorum:.2g} of the time, if failures are "
        "independent",
    ]


def _foreseen(plan: Plan) -> Iterator[str]:
    told = plan.forecast
    if told is None:
        return
    rate = f"steps of {told.step_s:g} s" + (" assumed; give fleet.step_s" if told.step_is_assumed else "")
    part = "the whole run" if told.whole else f"its first {seconds(told.run_s)}"
    goodput, uptime, participation, committed = map(
        percent, (told.goodput, told.uptime, told.participation, told.committed)
    )
    yield f"one simulation of {part}, with {told.losses} losses of learners, in {rate}"
    yield f"goodput {goodput} of learners' time stepping; uptime {uptime} with at least one that steps"
    yield f"participation {participation} in commits; {committed} of the tokens committed that all could process"
    if told.round_steps is not None:
        yield f"rounds of {told.round_steps:.3g} inner steps"


def _cost(plan: Plan) -> Iterator[str]:
    """Lines for what is known; none without prices and the length of a step."""
    told = plan.cost
    if told.tokens_per_hour is not None:
        how = "as forecast" if told.goodput_is_given else "by the mean times of [fleet]"
        yield f"{number(told.tokens_per_hour)} committed tokens an hour: {percent(told.goodput)}, {how}"
    if told.run_hours is not None:
        yield f"the budget takes {number(told.run_hours, 1)} h"
    if told.per_hour is not None:
        yield f"{told.per_hour:,.2f} an hour for all learners"
    if told.per_billion_tokens is not None:
        yield f"{told.per_billion_tokens:,.2f} for a billion committed tokens; {told.run_cost:,.2f} for the whole run"
    if told.unpriced and len(told.unpriced) < len(plan.recipe.pools):
        yield f"no cost: fleet.pools gives no price_per_hour of {', '.join(told.unpriced)}"


# ------------------------------------------------------------------ sizes, rates, tables


def _rate(bits: float | None) -> str:
    if bits is None:
        return DASH
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits:.0f} bit/s"


def _grid(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=index > 0 and index >= left)
    return table
