"""Fault tolerance of a recipe: each loss, whether commits go on, for how long they stop, and how often to expect it.

Computed from the recipe alone: M, K, pools, regions, leases, durability and `[fleet]`. Losses are assumed independent,
which those of a region are not; it has rows of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.sizing.rates import availability, unit_mtbf_hours
from orchestrator.recipe.config import Recipe


@dataclass(frozen=True)
class FaultOutcome:
    """One loss and its effect."""

    lost: str
    stopped_s: float | None  # without a commit; 0: commits go on; None: until a user acts


@dataclass(frozen=True)
class Expected:
    """Losses of learners to expect, by `[fleet]`."""

    unit_mtbf_hours: dict[str, float]  # by pool
    losses_per_day: float
    outage_s: float  # of each
    alive_mean: float  # learners, of those configured
    below_quorum: float  # share of the time


def expected(recipe: Recipe) -> Expected:
    """From mean times and independence: a learner is alive for mtbf of every mtbf + outage."""
    mtbf = {pool.name: unit_mtbf_hours(recipe, pool) for pool in recipe.pools}
    alive = [availability(recipe, pool) for pool in recipe.learners.values()]
    return Expected(
        unit_mtbf_hours=mtbf,
        losses_per_day=sum(24.0 / mtbf[pool.name] for pool in recipe.learners.values()),
        outage_s=recipe.fleet.outage_s,
        alive_mean=sum(alive),
        below_quorum=sum(_counts(alive)[: recipe.quorum]),
    )


def _counts(alive: list[float]) -> list[float]:
    """The probability of each number of live learners, from 0 to all."""
    found = [1.0]
    for share in alive:
        up, down = [0.0, *(p * share for p in found)], [*(p * (1.0 - share) for p in found), 0.0]
        found = [a + b for a, b in zip(up, down, strict=True)]
    return found


# ------------------------------------------------------------------ what may be lost


def fault_outcomes(recipe: Recipe, hub: str | None, shared_store: bool, failover_s: float) -> tuple[FaultOutcome, ...]:
    """A row for each kind of loss; docs/failures.md says what happens. `hub`: the syncer's region, if known.

    `failover_s`: from a syncer's death to the next commit.
    """
    return (*_learners(recipe), *_groups(recipe, hub), *_services(recipe, shared_store, failover_s))


def _learners(recipe: Recipe) -> Iterator[FaultOutcome]:
    count = len(recipe.learners)
    spare = count - recipe.quorum
    if spare:
        yield FaultOutcome(f"any {spare} of {count} learners" if spare > 1 else f"any one of {count} learners", 0.0)
    more = "any learner" if not spare else f"{spare + 1} learners or more" if count > 1 else "the learner"
    yield FaultOutcome(more, recipe.fleet.outage_s)


def _groups(recipe: Recipe, hub: str | None) -> Iterator[FaultOutcome]:
    """Pools and regions as wholes, where there is more than one."""
    by_pool = Counter(pool.name for pool in recipe.learners.values())
    by_region = Counter(pool.region for pool in recipe.learners.values() if pool.region is not None)
    for kind, groups in (("pool", by_pool), ("region", by_region)):
        if len(groups) > 1:
            yield from (_group(recipe, kind, name, size, hub) for name, size in groups.items())


def _group(recipe: Recipe, kind: str, name: str, size: int, hub: str | None) -> FaultOutcome:
    lost = f"{kind} {name} with {size} of {len(recipe.learners)} learners"
    if kind == "region" and name == hub:
        return FaultOutcome(f"{lost} and the syncer", None)
    if len(recipe.learners) - size >= recipe.quorum:
        return FaultOutcome(lost, 0.0)
    return FaultOutcome(lost, recipe.fleet.outage_s)


def _services(recipe: Recipe, shared_store: bool, failover_s: float) -> Iterator[FaultOutcome]:
    """The syncer, the orchestrator, the store, and everything at once."""
    journal = recipe.durability.mode == "journal"
    stuck = journal and not _outlives_node(recipe, shared_store)
    yield FaultOutcome("the syncer's process", failover_s)
    yield FaultOutcome("the syncer's node, with the journal's disk" if stuck else "the syncer's node",
                       None if stuck else failover_s)  # fmt: skip
    yield FaultOutcome("the orchestrator", 0.0)
    yield FaultOutcome("the store, full or away", None if journal else 0.0)
    yield FaultOutcome("everything at once", recipe.fleet.outage_s if journal or recipe.durability.every_s else None)


def _outlives_node(recipe: Recipe, shared_store: bool) -> bool:
    """True if the journal survives the loss of one node's disk, as far as is known."""
    store = recipe.durability.store
    return shared_store if store is None else "://" in store and not store.startswith("file://")
