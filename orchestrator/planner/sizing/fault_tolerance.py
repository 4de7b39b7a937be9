"""Fault tolerance of a recipe: each loss, whether commits go on, for how long they stop, and how often to expect it.

Computed from the recipe alone: M, K, pools, regions, leases, durability and `[fleet]`. Losses are assumed independent,
which those of a region or of spot capacity are not; these have rows of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.sizing.rates import DAY_S, availability, fleet_pool, unit_mtbf_hours
from orchestrator.recipe.config import Recipe


@dataclass(frozen=True)
class FaultOutcome:
    """One loss and its effect."""

    lost: str
    commits_go_on: bool
    stopped_s: float | None  # without a commit; 0: none; None: until a user acts
    words: str


@dataclass(frozen=True)
class Expected:
    """Losses of learners to expect, by `[fleet]`."""

    unit_mtbf_hours: dict[str, float]  # by pool
    losses_per_day: float
    outage_s: float  # of each
    alive_mean: float  # learners, of those configured
    below_quorum: float  # share of the time


def expected(recipe: Recipe) -> Expected:
    """From mean times and independence: a learner is alive for mtbf of every mtbf + outage of its pool's spot hours."""
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


# ------------------------------------------------------------------ in words


def fault_outcomes(
    recipe: Recipe, hub: str | None, shared_store: bool, step_s: float | None, failover_s: float
) -> tuple[FaultOutcome, ...]:
    """A row for each kind of loss. `hub`: the syncer's region, if known. `step_s`: of a syncer step. `failover_s`: from
    a syncer's death to the next commit.
    """
    return (*_learners(recipe, step_s), *_groups(recipe, hub), *_services(recipe, shared_store, failover_s))


def _learners(recipe: Recipe, step_s: float | None) -> Iterator[FaultOutcome]:
    count, quorum, sync = len(recipe.learners), recipe.quorum, recipe.sync
    lease = max(sync.lease_s, sync.lease_steps * (step_s or 0.0))
    back = recipe.fleet.outage_s
    given = "a peer's state" if sync.recover == "peer" else "the syncer's versions and fresh moments"
    spare = count - quorum
    if spare:
        yield FaultOutcome(
            f"any {spare} of {count} learners" if spare > 1 else f"any one of {count} learners",
            True,
            0.0,
            f"the others go on. A dead learner is fenced at once, a silent one after {lease:g} s; each is back after "
            f"about {back:.0f} s with {given}. A fragment loses its steps since the last read, at most "
            f"{sync.round_steps + sync.overlap_steps}; their samples are leased again",
        )
    yield FaultOutcome(
        "any learner" if not spare else f"{spare + 1} learners or more" if count > 1 else "the learner",
        False,
        back,
        f"fewer than K = {quorum} remain: no commit until one is back, after about {back:.0f} s. The others keep "
        "stepping, and no commit is lost",
    )


def _groups(recipe: Recipe, hub: str | None) -> Iterator[FaultOutcome]:
    """Pools and regions as wholes, where there is more than one."""
    by_pool = Counter(pool.name for pool in recipe.learners.values())
    by_region = Counter(pool.region for pool in recipe.learners.values() if pool.region is not None)
    for kind, groups in (("pool", by_pool), ("region", by_region)):
        if len(groups) > 1:
            yield from (_group(recipe, kind, name, size, hub) for name, size in groups.items())


def _group(recipe: Recipe, kind: str, name: str, size: int, hub: str | None) -> FaultOutcome:
    left, quorum = len(recipe.learners) - size, recipe.quorum
    holds = left >= quorum
    with_syncer = kind == "region" and name == hub
    spot = fleet_pool(recipe, name).spot if kind == "pool" else 1.0
    often = f", {1.0 - spot:.0%} of the day," if spot < 1.0 else ""
    lost = f"{kind} {name}{often} with {size} of {len(recipe.learners)} learners"
    if with_syncer:
        words = "the syncer, and probably the orchestrator, run there too: see their rows"
        return FaultOutcome(f"{lost} and the syncer", False, None, words)
    if holds:
        return FaultOutcome(lost, True, 0.0, f"{left} remain, K = {quorum}: the run goes on with {left} learners")
    fix = f"sync.quorum = {left} or less would go on" if left else f"spread the learners over more {kind}s"
    away = (1.0 - spot) * DAY_S if often else recipe.fleet.outage_s
    return FaultOutcome(lost, False, away, f"only {left} remain, K = {quorum}: no commit; {fix}")


def _services(recipe: Recipe, shared_store: bool, failover_s: float) -> Iterator[FaultOutcome]:
    """The syncer, the orchestrator, the store, and everything at once."""
    every_s, back = recipe.durability.every_s, recipe.fleet.outage_s
    journal, safe = recipe.durability.mode == "journal", _outlives_node(recipe, shared_store)
    kept = "from the journal, so no commit is lost"
    if not journal:
        kept = "from the newest checkpoint and the newer fragments that learners hold; the outer momentum since then "
        kept += "is lost"
    yield FaultOutcome(
        "the syncer's process",
        False,
        failover_s,
        f"a dead one is replaced at once, a silent one {recipe.run.syncer_lease_s:g} s later; the next one resumes "
        f"{kept}, however old the run is. Learners keep stepping",
    )
    elsewhere = f"as for its process: the next one starts elsewhere, {kept}"
    one_disk = (
        "the journal is on one node's disk. If that node is lost, no commit until the disk is back; set "
        "durability.store to object or shared storage"
    )
    stuck = journal and not safe
    yield FaultOutcome("the syncer's node", False, None if stuck else failover_s, one_disk if stuck else elsewhere)
    yield FaultOutcome(
        "the orchestrator",
        True,
        0.0,
        "learners and syncer go on, but no dead learner is replaced until the orchestrator is: by the shell that "
        "started the run, or else by `diloco run` with the same name",
    )
    if journal:
        store = "commits wait until it takes them again, and learners keep stepping; if damaged, see docs/failures.md"
        disk = "" if safe else ", if the journal's disk comes back"
        end = f"`diloco run` resumes at the newest commit{disk}; learners get the newest checkpoint's moments"
    elif every_s:
        store = "it holds checkpoints alone"
        end = f"`diloco run` resumes from the newest checkpoint: up to {every_s:g} s of commits are lost"
    else:
        store = "it holds checkpoints alone, and the first is written when the run is stopped"
        end = "all is lost: no checkpoint is written before a stop"
    yield FaultOutcome("the store, full or away", not journal, None if journal else 0.0, store)
    yield FaultOutcome("everything at once", False, back if journal or every_s else None, end)


def _outlives_node(recipe: Recipe, shared_store: bool) -> bool:
    """True if the journal survives the loss of one node's disk, as far as is known."""
    store = recipe.durability.store
    return shared_store if store is None else "://" in store and not store.startswith("file://")
