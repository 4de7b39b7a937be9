"""Recommended M, K, H, P, tau and codec, with reasons. A setting within its bounds stays; others get the nearest bound.

Bounds come from the model's tensors, the budget, the declared links and `[fleet]`'s failures. docs/planning.md names
the sources of the constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.planner.sizing.fault_tolerance import HOUR_S, unit_chips, unit_mtbf_hours
from orchestrator.planner.sizing.link_load import SHARE, LinkLoad
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.rates import floor_s
from orchestrator.recipe.config import Recipe
from outer.numeric.formats import named
from outer.protocol.leases import longest_s

FRAGMENTS_MOST = 24  # as the paper's
BALANCE = 2.0  # the largest fragment, in means
ROUNDS_LEAST = 60  # below, outer optimization costs more loss than it saves traffic
MEMORIES = 5.0  # rounds, in the outer momentum's 1 / (1 - momentum)
OVERLAP_SHARE = 1 / 6  # tau / H with next to no loss
DOWN_SHARE = 0.05  # of a learner's time, lost to failures, above which smaller learners are better
LEARNERS_MOST = 16  # as far as the paper went
LOSS_PER_DOUBLING = 2**0.0116 - 1  # of the loss, from DiLoCo's scaling laws (arXiv 2503.09799)


@dataclass(frozen=True)
class Recommendation:
    letter: str  # M, K, H, P, tau, codec; reads, transfers or joins, for a deadline
    field: str  # of the recipe
    now: Any
    advised: Any
    reason: str

    @property
    def changes(self) -> bool:
        return bool(self.now != self.advised)


@dataclass(frozen=True)
class _Case:
    """The input of the rules; `fragments`, `round_steps` and `codec` as advised so far."""

    recipe: Recipe
    shapes: Shapes
    loads: Sequence[LinkLoad]
    syncer_steps: int
    step_s: float | None
    codec: str
    fragments: int
    round_steps: int

    @property
    def largest_bytes(self) -> int:
        """Of a fragment, up and down: no smaller than the largest tensor or the mean."""
        tensor = max(tensor.size for fragment in self.shapes.fragments for tensor in fragment.tensors)
        largest = max(tensor, self.shapes.elements // self.fragments)
        return sum(named(each).bytes(largest) for each in (self.codec, self.recipe.sync.downlink))


def recommend(
    recipe: Recipe, shapes: Shapes, loads: Sequence[LinkLoad], syncer_steps: int, step_s: float | None
) -> tuple[Recommendation, ...]:
    """One for each letter, and one for each deadline that links do not keep.

    `syncer_steps`: T. `step_s`: of a syncer step, if known. `recipe` must be resolved.
    """
    sync = recipe.sync
    case = _Case(recipe, shapes, loads, syncer_steps, step_s, sync.codec, len(shapes.fragments), sync.round_steps)
    codec = _codec(case)
    case = replace(case, codec=codec.advised)
    fragments = _fragments(case)
    case = replace(case, fragments=fragments.advised)
    rounds = _round(case)
    case = replace(case, round_steps=rounds.advised)
    if case.fragments > case.round_steps:
        fragments = replace(fragments, advised=case.round_steps, reason=f"P cannot be above H = {case.round_steps}")
        case = replace(case, fragments=case.round_steps)
    return _learners(case), _quorum(case), rounds, fragments, _overlap(case), codec, *_deadlines(case)


# ------------------------------------------------------------------ who


def _learners(case: _Case) -> Recommendation:
    recipe = case.recipe
    count, outage = len(recipe.learners), recipe.fleet.outage_s / HOUR_S
    mtbf = min(unit_mtbf_hours(recipe, pool) for pool in recipe.learners.values())
    down = outage / (mtbf + outage)
    base = f"a learner fails every {_hours(mtbf)} h on average and is away for {60 * outage:.3g} min, "
    base += f"{down:.2%} of its time"
    least = min(unit_chips(recipe, pool) for pool in recipe.learners.values())
    pieces = 1
    while down / pieces > DOWN_SHARE and count * pieces < LEARNERS_MOST and pieces < least:
        pieces *= 2
    advised, reason = count * pieces, base
    if count == 1 and pieces == 1:
        advised, reason = 2, "with one learner, its failure stops the run"
    elif pieces > 1:
        reason += f": divide each by {pieces}, so that a failure takes less with it; each doubling costs about "
        reason += f"{LOSS_PER_DOUBLING:.1%} of loss"
    elif down > DOWN_SHARE:
        reason += f": more than {DOWN_SHARE:.0%}, but learners cannot be divided further"
    elif count > LEARNERS_MOST:
        reason += (
            f"; above {LEARNERS_MOST} nothing is published, and each doubling costs about {LOSS_PER_DOUBLING:.1%} "
        )
        reason += "of loss"
    return Recommendation("M", "pools.learners", count, advised, reason)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10.0 else f"{hours:.2g}"


def _quorum(case: _Case) -> Recommendation:
    recipe, count = case.recipe, len(case.recipe.learners)
    most, why = max(1, count - 1), "so that any one may be lost"
    for name, size, kind in _losable(recipe):
        if 1 <= count - size < most:
            most, why = count - size, f"so that {kind} {name}, {size} of {count} learners, may be lost"
    advised = min(recipe.quorum, most)
    stays = "it is low enough" if advised == recipe.quorum else f"at most {most}"
    reason = f"{stays}, {why}; the grace window admits more learners"
    if recipe.sync.overlap == "strict":
        return Recommendation(
            "K", "sync.quorum", recipe.quorum, recipe.quorum, "lock-step studies wait for all learners"
        )
    return Recommendation("K", "sync.quorum", recipe.quorum, advised, reason if count > 1 else "there is one learner")


def _losable(recipe: Recipe) -> Iterator[tuple[str, int, str]]:
    pools = Counter(pool.name for pool in recipe.learners.values())
    regions = Counter(pool.region for pool in recipe.learners.values() if pool.region is not None)
    yield from ((name, size, "pool") for name, size in pools.items() if len(pools) > 1)
    yield from ((str(name), size, "region") for name, size in regions.items() if len(regions) > 1)
    spot = sum(pools[pool.name] for pool in recipe.fleet.pools if pool.spot < 1.0)
    if spot:
        yield "all of it", spot, "spot capacity,"


# ------------------------------------------------------------------ what, how often


def _codec(case: _Case) -> Recommendation:
    now = case.recipe.sync.codec
    if case.loads:
        reason = "contributions cross regions; the paper saw no loss from 16 bits on"
        return Recommendation("codec", "sync.codec", now, "bf16" if named(now).bits > 16 else now, reason)
    return Recommendation("codec", "sync.codec", now, now, "nothing crosses regions, as far as the recipe says")


def _fragments(case: _Case) -> Recommendation:
    sizes = [tensor.size for fragment in case.shapes.fragments for tensor in fragment.tensors]
    balanced = max(1, int(BALANCE * case.shapes.elements / max(1, max(sizes))))
    most = min(FRAGMENTS_MOST, len(sizes), balanced)
    now = len(case.shapes.fragments)
    advised = min(now, most)
    reason = (
        f"the largest tensor has {max(sizes) / max(1, case.shapes.elements):.1%} of the model: with more than {most} "
    )
    reason += f"fragments its own would be over {BALANCE:g} times the mean, and links would carry bursts"
    if most < balanced:
        reason = f"up to {most} fragments spread the traffic; the paper has {FRAGMENTS_MOST}"
    return Recommendation("P", "sync.P", now, advised, reason)


def _round(case: _Case) -> Recommendation:
    """No shorter than links allow and no longer than the budget allows; links win, since they are a limit."""
    sync, outer = case.recipe.sync, case.recipe.outer
    least = max([case.fragments, *(_carried(case, load) for load in case.loads)])
    rounds = ROUNDS_LEAST
    if outer.optimizer == "sgd" and outer.momentum:
        rounds = max(rounds, math.ceil(MEMORIES / (1.0 - outer.momentum)))
    most = case.syncer_steps // rounds
    now = sync.round_steps
    advised = min(max(now, least), max(most, least, 1))
    if advised != now:
        even = [case.fragments * count for count in (-(-advised // case.fragments), advised // case.fragments)]
        advised = next((steps for steps in even if least <= steps <= max(most, least)), advised)
    links = [load for load in case.loads if load.link_bits is not None and case.step_s is not None]
    told = f"links are at most {SHARE:.0%} full from H = {least} on" if links else f"H is at least P = {case.fragments}"
    reason = f"{told}; T / H = {case.syncer_steps / advised:.3g} rounds; at least {rounds} are needed"
    if least > most:
        longer = f"; both need a budget of {rounds * least:,} syncer steps, or wider links"
        reason += longer if links else f": a budget of {rounds * least:,} syncer steps would do"
    return Recommendation("H", "sync.H", now, advised, reason)


def _carried(case: _Case, load: LinkLoad) -> int:
    """The least H at which a link carries the mean traffic, with the advised codec."""
    if load.link_bits is None or case.step_s is None:
        return 1
    width = max(named(each).bits / 8 for each in (case.codec, case.recipe.sync.downlink))
    bits = 8.0 * load.learners * case.shapes.elements * width
    return math.ceil(bits / (SHARE * load.link_bits * case.step_s))


def _overlap(case: _Case) -> Recommendation:
    now = case.recipe.sync.overlap_steps
    most = max(1, int(OVERLAP_SHARE * case.round_steps))
    known = [load for load in case.loads if load.link_bits is not None]
    if not known or case.step_s is None:
        reason = f"up to H / 6 = {most} costs next to nothing; without links and step_s no transfer time is known"
        return Recommendation("tau", "sync.tau", now, min(now, most), reason)
    slowest = max(known, key=lambda load: _transfer_s(case, load))
    takes = _transfer_s(case, slowest)
    least = max(1, math.ceil(takes / case.step_s))
    advised = min(max(now, least), max(most, 1))
    reason = (
        f"the largest fragment goes up and down in {takes:.3g} s between {slowest.region} and {slowest.syncer_region}, "
    )
    reason += f"{takes / case.step_s:.2g} steps; up to H / 6 = {most} costs next to nothing"
    if least > most:
        reason += f": not enough; H = {6 * least}, more fragments or a wider link would do"
    return Recommendation("tau", "sync.tau", now, advised, reason)


def _deadlines(case: _Case) -> Iterator[Recommendation]:
    """Twice the slowest link's time when all learners of a region are read at once; for a peer's state, three times."""
    sync = case.recipe.sync
    known = [load for load in case.loads if load.link_bits is not None and load.joining_s is not None]
    if not known:
        return
    slowest = max(known, key=lambda load: _transfer_s(case, load))
    takes_s, joining_s = _transfer_s(case, slowest), max(load.joining_s or 0.0 for load in known)
    between = f"between {slowest.region} and {slowest.syncer_region}"
    whole, joining = max(load.whole_bytes for load in known), max(load.joining_bytes for load in known)
    for letter, field, now, size, needed, reason in (
        (
            "reads",
            "sync.read_timeout_s",
            sync.read_timeout_s,
            whole,
            2 * takes_s,
            f"fragments of all take {takes_s:.3g} s {between}",
        ),
        (
            "transfers",
            "sync.transfer_s",
            sync.transfer_s,
            whole if takes_s > joining_s else joining,
            2 * max(takes_s, joining_s),
            f"fragments of all take {takes_s:.3g} s {between}, a peer's state {joining_s:.3g} s",
        ),
        (
            "joins",
            "sync.join_s",
            sync.join_s,
            joining,
            3 * joining_s,
            f"each donor gets a third of it, and needs {joining_s:.3g} s",
        ),
    ):
        if longest_s(now, size) < 0.5 * needed:
            yield Recommendation(letter, field, now, float(math.ceil(floor_s(needed, size))), reason)


def _transfer_s(case: _Case, load: LinkLoad) -> float:
    assert load.link_bits is not None
    return 8 * load.learners * case.largest_bytes / load.link_bits + 2 * load.latency_s
