"""Costs of a run: the price of its tokens, what the store keeps, how its log grows, how long failovers take.

Units are paid for as long as they can be had, also while they restart. Records and headers in the store, a few hundred
bytes a commit, are not counted. None of the times depends on how old the run is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.rates import DAY_S, HOUR_S, STORE, Constant, availability, fleet_pool, unit_step_s
from orchestrator.recipe.config import Recipe
from outer.journal.chain import SEGMENT_ROWS
from outer.journal.journal import SNAPSHOT_GROUPS

ELEMENT_BYTES = 4  # parameters are kept in float32
BILLION = 1e9

EARLIER = "commit 6429e58"  # of scripts that are gone
CONSTANTS = {
    "step_bytes": Constant(15.0, "bytes of log for a learner's step and its adoption", f"log_size.py, {EARLIER}"),
    "commit_bytes": Constant(74.0, "bytes of log for a commit", f"log_size.py, {EARLIER}"),
    "contribution_bytes": Constant(39.0, "bytes of log for a contribution", f"log_size.py, {EARLIER}"),
    "failover_s": Constant(2.8, "seconds from a syncer's death to the next commit", f"failover.py, {EARLIER}"),
    "read_rows_s": Constant(
        150_000.0, "facts that are read from segments, a second and core", f"log_size.py, {EARLIER}"
    ),
    "fold_rows_s": Constant(680_000.0, "facts that checks and accounts take, the same", f"check_speed.py, {EARLIER}"),
    "report_s": Constant(10.0, "seconds to write summary and report", "assumed"),
    "store_bytes_s": STORE,
}


@dataclass(frozen=True)
class Cost:
    """In the currency of the recipe's prices. None where a price or the step's length is not given."""

    per_hour: float | None  # of all learners, by the share of the day in which they can be had
    tokens_per_hour: float | None  # that are committed
    goodput: float  # committed tokens, of those that all configured learners could process, as taken here
    goodput_is_given: bool  # by a forecast; else it is the share of the time in which learners are there
    per_billion_tokens: float | None
    run_hours: float | None  # until the budget is committed
    run_cost: float | None
    unpriced: tuple[str, ...]  # pools


def cost(
    recipe: Recipe,
    step_tokens: Mapping[str, int],
    step_s: float | None,
    run_tokens: int,
    goodput: float | None = None,
    run_s: float | None = None,
) -> Cost:
    """`step_tokens`: of one step of a learner, by pool. `step_s`: of pools without a step of their own.

    `run_tokens`: the budget. `run_s`: of a run whose budget is in syncer steps, with the time that has no quorum.

    `goodput`: forecast for the whole run, 0 to 1; None: the share of the time in which learners are there.
    """
    learners = list(recipe.learners.values())
    told = {pool.name: fleet_pool(recipe, pool.name) for pool in recipe.pools}
    unpriced = tuple(p.name for p in recipe.pools if told[p.name].price_per_hour is None and p.learners)
    per_hour = tokens = None
    takes_s = [unit_step_s(recipe, pool, step_s) for pool in learners]
    rates = [step_tokens[p.name] / (s or p.slowdown) for p, s in zip(learners, takes_s, strict=True)]
    had = [rate * availability(recipe, pool) for rate, pool in zip(rates, learners, strict=True)]
    share = sum(had) / sum(rates) if goodput is None else goodput
    if not unpriced:
        per_hour = sum((told[pool.name].price_per_hour or 0.0) * told[pool.name].spot for pool in learners)
    if None not in takes_s:
        tokens = HOUR_S * share * sum(rates)
    hours = run_s / HOUR_S if run_s is not None else run_tokens / tokens if tokens else None
    return Cost(
        per_hour=per_hour,
        tokens_per_hour=tokens,
        goodput=share,
        goodput_is_given=goodput is not None,
        per_billion_tokens=None if per_hour is None or not tokens else BILLION * per_hour / tokens,
        run_hours=hours,
        run_cost=None if per_hour is None or hours is None else per_hour * hours,
        unpriced=unpriced,
    )


@dataclass(frozen=True)
class Storage:
    """The bytes that the store takes. A rate is None while a step's length is not given."""

    commit_bytes: float  # of a commit on average, before it is announced; 0 without a journal
    journal_per_second_bytes: float | None
    journal_bytes: int  # at most
    checkpoint_bytes: int  # all parts


def storage(recipe: Recipe, shapes: Shapes, step_s: float | None) -> Storage:
    """`step_s`: seconds of a syncer step, if known."""
    sizes = value_bytes(shapes)
    kept = sum(sizes) if recipe.durability.mode == "journal" else 0
    mean = kept / len(sizes)
    part = shapes.parameter_bytes + shapes.inner_state_bytes + ELEMENT_BYTES * shapes.elements  # what it was sent last
    return Storage(
        commit_bytes=mean,
        journal_per_second_bytes=None if step_s is None else kept / (recipe.sync.round_steps * step_s),
        # Between two snapshots nothing is removed, and each fragment's newest value stays.
        journal_bytes=int(kept + max(SNAPSHOT_GROUPS, len(sizes)) * mean),
        checkpoint_bytes=sum(sizes) + len(recipe.learners) * part,
    )


def value_bytes(shapes: Shapes) -> list[int]:
    """The size of each fragment with its outer state."""
    return [ELEMENT_BYTES * f.size + state for f, state in zip(shapes.fragments, shapes.outer_state_bytes, strict=True)]


@dataclass(frozen=True)
class Upkeep:
    """None: not known without the length of a step."""

    log_day_bytes: float | None
    log_run_bytes: float
    failover_s: float  # from the syncer's death to the next commit
    failover_silent_s: float  # of one that is frozen or cut off
    end_s: float  # from the last commit to summary and report
    check_core_s: float  # of `diloco check` afterwards, on one core


def upkeep(
    recipe: Recipe, values: Sequence[int], syncer_steps: int, syncer_step_s: float | None, step_s: float | None
) -> Upkeep:
    """`values`: bytes of each fragment with its outer state. `syncer_step_s`: of the syncer's clock. `step_s`: of a
    learner without slowdown.
    """
    sizes = {name: constant.value for name, constant in CONSTANTS.items()}
    learners, share = len(recipe.learners), len(values) / recipe.sync.round_steps  # of the syncer steps that commit
    taken = [unit_step_s(recipe, pool, step_s) for pool in recipe.learners.values()]
    steps = sum(1.0 if syncer_step_s is None or not seconds else syncer_step_s / seconds for seconds in taken)
    each = steps * sizes["step_bytes"] + share * (sizes["commit_bytes"] + learners * sizes["contribution_bytes"])
    rows = syncer_steps * (steps * (1.0 + share) + share * (1.0 + learners))  # a step, its adoptions; commits
    row_s = 1.0 / sizes["read_rows_s"] + 1.0 / sizes["fold_rows_s"]
    read_s = sum(values) / sizes["store_bytes_s"]
    failover_s = sizes["failover_s"] + read_s
    return Upkeep(
        log_day_bytes=None if syncer_step_s is None else each * DAY_S / syncer_step_s,
        log_run_bytes=each * syncer_steps,
        failover_s=failover_s,
        failover_silent_s=recipe.run.syncer_lease_s + failover_s,
        end_s=sizes["report_s"] + min(rows, SEGMENT_ROWS) * row_s + read_s,
        check_core_s=rows * row_s,
    )
