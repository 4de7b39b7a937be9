"""What a run survives, in words: who may be lost, what goes on meanwhile, what it costs; and how often to expect it.

From the recipe alone: M, K, pools, regions, leases, durability, and what `[fleet]` says of failures. Losses are taken
to be independent, which those of a region or of spot capacity are not: these have rows of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.recipe.config import PoolConfig, Recipe

HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(frozen=True)
class FaultOutcome:
    """One loss, and what comes of it."""

    lost: str
    commits_go_on: bool
    stopped_s: float | None  # without a commit; 0: none; None: until somebody does something
    words: str


@dataclass(frozen=True)
class Expected:
    """Losses of learners as `[fleet]` has them."""

    unit_mtbf_hours: dict[str, float]  # by pool
    losses_per_day: float
    outage_s: float  # of each
    alive_mean: float  # learners, of those configured
    below_quorum: float  # share of the time
    step_loss_most: int  # steps of a lost learner that no commit holds, at the most


def expected(recipe: Recipe) -> Expected:
    """By mean times and independence: a learner lives mtbf of every mtbf + outage, and its pool's share of the day."""
    mtbf = {pool.name: unit_mtbf_hours(recipe, pool) for pool in recipe.pools}
    spots = {pool.name: pool.spot for pool in recipe.fleet.pools}
    outage = recipe.fleet.outage_s / HOUR_S
    alive = [
        spots.get(pool.name, 1.0) * mtbf[pool.name] / (mtbf[pool.name] + outage) for pool in recipe.learners.values()
    ]
    return Expected(
        unit_mtbf_hours=mtbf,
        losses_per_day=sum(24.0 / mtbf[pool.name] for pool in recipe.learners.values()),
        outage_s=recipe.fleet.outage_s,
        alive_mean=sum(alive),
        below_quorum=sum(_counts(alive)[: recipe.quorum]),
        step_loss_most=recipe.sync.round_steps + recipe.sync.overlap_steps,
    )


def unit_mtbf_hours(recipe: Recipe, pool: PoolConfig) -> float:
    """Of one learner unit: as said for the pool, else a chip's over the number of its chips."""
    said = {each.name: each for each in recipe.fleet.pools}.get(pool.name)
    return (said and said.mtbf_hours) or recipe.fleet.mtbf_hours / unit_chips(recipe, pool)


def unit_chips(recipe: Recipe, pool: PoolConfig) -> int:
    """Of one learner unit: as said for the pool, else as many as it steps on."""
    said = {each.name: each for each in recipe.fleet.pools}.get(pool.name)
    return (said and said.chips) or pool.known_devices


def _counts(alive: list[float]) -> list[float]:
    """The probability of each number of learners that live, 0 to all."""
    found = [1.0]
    for share in alive:
        up, down = [0.0, *(p * share for p in found)], [*(p * (1.0 - share) for p in found), 0.0]
        found = [a + b for a, b in zip(up, down, strict=True)]
    return found


# ------------------------------------------------------------------ in words


def fault_outcomes(
    recipe: Recipe, hub: str | None, shared_store: bool, step_s: float | None
) -> tuple[FaultOutcome, ...]:
    """Every loss that the recipe knows of. `hub`: the syncer's region, if known. `step_s`: of a syncer step."""
    return (
        *_learners(recipe, step_s),
        *_groups(recipe, hub),
        *_syncer(recipe, shared_store),
        *_orchestrator(),
        *_store(recipe),
        *_everything(recipe, shared_store),
    )


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
            f"nobody waits for them: a dead one is fenced at once, a silent one after {lease:g} s. Each is back after "
            f"some {back:.0f} s with {given}. Its steps since a fragment was last read, at most "
            f"{sync.round_steps + sync.overlap_steps}, are lost for that fragment; the samples are lent again",
        )
    yield FaultOutcome(
        "any learner" if not spare else f"{spare + 1} learners or more" if count > 1 else "the learner",
        False,
        back,
        f"fewer than K = {quorum} are left: no commit until one is back, after some {back:.0f} s. Those left step on; "
        "no commit is lost",
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
    said = {pool.name: pool for pool in recipe.fleet.pools}.get(name) if kind == "pool" else None
    often = f", {1.0 - said.spot:.0%} of the day," if said is not None and said.spot < 1.0 else ""
    lost = f"{kind} {name}{often} with {size} of {len(recipe.learners)} learners"
    if with_syncer:
        words = "the syncer, and most likely the orchestrator, are there too: see these, and their node"
        return FaultOutcome(f"{lost} and the syncer", False, None, words)
    if holds:
        return FaultOutcome(lost, True, 0.0, f"{left} are left, K = {quorum}: the run goes on at {left} learners' pace")
    fix = f"sync.quorum = {left} or less would go on" if left else "spread the learners"
    away = (1.0 - said.spot) * DAY_S if said is not None and often else recipe.fleet.outage_s
    return FaultOutcome(lost, False, away, f"only {left} are left, K = {quorum}: no commit; {fix}")


def _syncer(recipe: Recipe, shared_store: bool) -> Iterator[FaultOutcome]:
    lease, durability = recipe.run.syncer_lease_s, recipe.durability
    kept = {
        "journal": "from the journal, so no commit is lost",
        "replica": "from the replica's memory, so no commit is lost",
        "checkpoint": "from the newest checkpoint, and what learners hold that is newer: outer momentum since then is "
        "lost",
    }[durability.mode]
    yield FaultOutcome(
        "the syncer's process",
        False,
        lease,
        f"a dead one is followed at once, a silent one after {lease:g} s; the next goes on {kept}. Learners step on",
    )
    if durability.mode == "journal" and not _outlives_node(recipe, shared_store):
        words = (
            "the journal lies on one node's disk: if it is this one, no commit until the disk is back; set "
            "durability.store to object or shared storage"
        )
        yield FaultOutcome("the syncer's node", False, None, words)
    else:
        yield FaultOutcome("the syncer's node", False, lease, f"as its process: the next starts elsewhere, {kept}")


def _orchestrator() -> Iterator[FaultOutcome]:
    yield FaultOutcome(
        "the orchestrator",
        True,
        0.0,
        "learners and syncer go on; nobody is replaced until there is another: the shell that started the run starts "
        "one, else `diloco run` with the same name",
    )


def _store(recipe: Recipe) -> Iterator[FaultOutcome]:
    mode, every_s = recipe.durability.mode, recipe.durability.every_s
    if mode == "journal":
        words = "commits wait until it takes them again, learners step on; once damaged, see docs/failures.md"
        yield FaultOutcome("the store, full or away", False, None, words)
    else:
        words = "only checkpoints are in it" + ("" if every_s else ", and none is written before a stop")
        yield FaultOutcome("the store, full or away", True, 0.0, words)


def _everything(recipe: Recipe, shared_store: bool) -> Iterator[FaultOutcome]:
    mode, every_s = recipe.durability.mode, recipe.durability.every_s
    back = recipe.fleet.outage_s
    if mode == "journal":
        disk = "" if _outlives_node(recipe, shared_store) else ", if the disk with the journal is among what comes back"
        words = f"`diloco run` goes on at the newest commit{disk}; learners with the newest checkpoint's moments"
        yield FaultOutcome("everything at once", False, back, words)
    elif every_s:
        words = f"`diloco run` goes on from the newest checkpoint: up to {every_s:g} s of commits are lost"
        yield FaultOutcome("everything at once", False, back, words)
    else:
        yield FaultOutcome("everything at once", False, None, "all is lost: no checkpoint is written before a stop")


def _outlives_node(recipe: Recipe, shared_store: bool) -> bool:
    """Whether the journal is elsewhere than on one node's disk, as far as can be told."""
    store = recipe.durability.store
    return shared_store if store is None else "://" in store and not store.startswith("file://")
