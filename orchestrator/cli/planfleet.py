"""The part of a plan that looks beyond one run's bytes: links between regions, losses, cost, recommendation.

Computes nothing that the plan does not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from orchestrator.cli.plantrial import Trial
from orchestrator.cli.planwords import amount, grid, rate
from orchestrator.planner.forecast import Forecast
from orchestrator.planner.plan import Plan
from orchestrator.store.status_text import DASH, number, percent, seconds


def links(plan: Plan) -> list[Any]:
    """A row for each region whose learners are not in the syncer's; nothing where there is none."""
    if not plan.loads:
        return []
    table = grid("learners", "up/step", "down/step", "up", "down", "link", "used", "a fragment", "tau steps", "a join")
    for load in plan.loads:
        who = f"{load.learners}, {load.region} - {load.syncer_region}"
        link = DASH if load.link_bits is None else f"{rate(load.link_bits)}, {1e3 * load.latency_s:g} ms"
        times = (seconds(load.fragment_s), seconds(load.window_s), seconds(load.joining_s))
        bytes_ = (amount(load.up_bytes), amount(load.down_bytes), rate(load.up_bits), rate(load.down_bits))
        table.add_row(who, *bytes_, link, percent(load.share), *times)
    return [table, "all learners of a region together; a fragment: the largest, of all of them, up and down"]


def survived(plan: Plan) -> list[Any]:
    """What may be lost, and how often learners will be."""
    table = Table("lost", "commits", "meanwhile", box=None, pad_edge=False, header_style="dim")
    table.columns[0].no_wrap = True
    for one in plan.survivals:
        stop = "until somebody acts" if one.stopped_s is None else f"stop, {seconds(one.stopped_s)}"
        table.add_row(Text(one.lost), "go on" if one.commits_go_on else stop, Text(one.words))
    return [table, *_expected(plan)]


def _expected(plan: Plan) -> Iterator[str]:
    told = plan.expected
    each = ", ".join(f"{name} {number(hours)} h" for name, hours in told.unit_mtbf_hours.items())
    yield f"between two losses of one learner, in the mean: {each}; in all {told.losses_per_day:.3g} a day"
    yield (
        f"each back in {told.outage_s:.0f} s: {told.alive_mean:.3g} of {len(plan.recipe.learners)} live in the mean, "
        f"fewer than K = {plan.recipe.quorum} in {told.below_quorum:.2g} of the time, if losses are independent"
    )


def foreseen(plan: Plan) -> list[Any]:
    """Shares over many courses of the run, and what one death costs."""
    told = plan.forecast
    if told is None:
        return []
    table = Table("", "mean", "95 % of the runs", box=None, pad_edge=False, header_style="dim")
    for name, share in (
        ("goodput: time stepping", told.goodput),
        ("uptime: at least one learner steps", told.uptime),
        (f"the quorum is there, K = {plan.recipe.quorum}", told.quorum),
        ("participation in commits", told.participation),
        ("tokens committed, of what all could process", told.committed),
    ):
        table.add_row(name, percent(share.mean), f"{percent(share.low)} to {percent(share.high)}")
    return [table, *_tolls(told)]


def _tolls(told: Forecast) -> Iterator[str]:
    step = f"steps of {told.step_s:g} s" + (", as none is given: --step-seconds" if told.step_is_assumed else "")
    yield f"{told.courses} runs of {seconds(told.run_s)} with {told.deaths:.3g} losses of learners each; {step}"
    for pool, toll in told.tolls.items():
        yield (
            f"one loss in {pool}: {seconds(toll.stepping_s)} without its steps, {seconds(toll.contributing_s)} without "
            f"its contributions, {seconds(toll.tokens_s)} of its tokens; and the wait for hardware each time"
        )


def cost(plan: Plan) -> Iterator[str]:
    """Lines for what is known of it; none where neither prices nor a step's length are."""
    told = plan.cost
    if told.tokens_per_hour is not None:
        how = "as forecast" if told.goodput_is_given else "as if nobody failed"
        yield f"{number(told.tokens_per_hour)} committed tokens an hour: {percent(told.goodput)}, {how}"
    if told.run_hours is not None:
        yield f"the budget takes {number(told.run_hours, 1)} h"
    if told.per_hour is not None:
        yield f"{told.per_hour:,.2f} an hour for all learners"
    if told.per_billion_tokens is not None:
        yield f"{told.per_billion_tokens:,.2f} for a billion committed tokens; {told.run_cost:,.2f} for the whole run"
    if told.unpriced and len(told.unpriced) < len(plan.recipe.pools):
        yield f"no cost: fleet.pools gives no price_per_hour of {', '.join(told.unpriced)}"


def recommended(plan: Plan, tried: Trial | None) -> list[Any]:
    """Letter by letter, with the reason; and what comes of it."""
    table = Table("", "recipe", "advised", "because", box=None, pad_edge=False, header_style="dim")
    for one in plan.recommendations:
        table.add_row(
            one.letter, str(one.now), Text(str(one.advised), style="bold" if one.changes else ""), Text(one.reason)
        )
    return [table, *(_compared(plan, tried) if tried is not None else [])]


def _compared(plan: Plan, tried: Trial) -> Iterator[str]:
    what = f"all but {', '.join(tried.untried)}" if tried.untried else "all of it"
    if tried.refusal:
        yield f"with {what} the recipe cannot run: {tried.refusal}"
    elif tried.plan is not None and plan.forecast is not None and tried.plan.forecast is not None:
        pairs = [
            (name, getattr(plan.forecast, field).mean, getattr(tried.plan.forecast, field).mean)
            for name, field in (("participation", "participation"), ("tokens committed", "committed"))
        ]
        shares = "; ".join(f"{name} {percent(there)}, not {percent(here)}" for name, here, there in pairs)
        yield f"with {what}: {shares}; limits broken {len(tried.plan.limits)}, not {len(plan.limits)}"
    yield f"to plan it so: {tried.command}"
