"""Checks a plan: limits whose breach stops training, and warnings. Each gives field, value, reason and fix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.planner.plan import Plan
from orchestrator.planner.sizing.rates import floor_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES, SHARE, LinkLoad
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.resources import memory_share
from orchestrator.store.status_text import amount
from outer.protocol.fragments import LARGE
from outer.protocol.leases import longest_s

OVERLAP_SHARE = 1 / 6  # tau / H up to which Streaming DiLoCo (arXiv 2501.18512) saw next to no loss: 5 of 30
BALANCE = 2.0  # largest fragment, in means
MEMORIES = 5.0  # rounds, in the outer momentum's 1 / (1 - momentum), until 99 % of its weight is there


def checked(plan: Plan, busy: Sequence[Problem]) -> Plan:
    """The plan with all limits that it breaks, and all warnings; `busy` are some already."""
    limits = tuple(problem for rule in LIMITS for problem in rule(plan))
    return replace(plan, limits=limits, warnings=(*(problem for rule in WARNINGS for problem in rule(plan)), *busy))


# ------------------------------------------------------------------ limits


def _places(plan: Plan) -> Iterator[Problem]:
    for one in plan.placement.shortfalls:
        if one.who not in plan.waiting:
            pools = plan.pools
            what = f"{one.units} of {pools[one.who]} learners do not fit" if one.who in pools else "has no place"
            yield Problem(one.field, None, f"{one.who}: {what}: {one.reason}", one.fix)


def _memory(plan: Plan) -> Iterator[Problem]:
    alike: dict[tuple[int, int, str], list[str]] = {}  # nodes of one size with the same on them, told together
    pools = plan.recipe.learners
    for node in plan.context.nodes:
        there: Counter[str] = Counter()
        for name in plan.on_node(node):
            if name in pools:
                there[f"learner-{pools[name].name}"] += pools[name].processes // len(plan.placement.learners[name])
            elif (kind := name.partition("-")[0]) in plan.memory:
                there[kind] += 1
        needed = sum((plan.memory[k].host_bytes + plan.memory[k].store_bytes) * count for k, count in there.items())
        if node.memory_bytes is not None and needed > node.memory_bytes:
            who = ", ".join(f"{count} x {kind}" for kind, count in there.items())
            alike.setdefault((node.memory_bytes, needed, who), []).append(node.name)
    for (have, needed, who), names in alike.items():
        yield Problem(
            f"{names[0]} memory",
            amount(have),
            f"on {some(names)}: {who} need {amount(needed)} at least, activations not counted",
            "place fewer there (pools' learners, standby or resources), or take nodes with more memory",
        )


def _device_memory(plan: Plan) -> Iterator[Problem]:
    told: set[tuple[str, int]] = set()
    nodes = {node.name: node for node in plan.context.nodes}
    for name, places in plan.placement.learners.items():
        pool, node = plan.recipe.learners[name], nodes[places[0]]
        needed = plan.memory[f"learner-{pool.name}"].device_bytes
        if node.accelerator_bytes is None or not needed:
            continue
        # XLA leaves a part of a GPU to drivers and NCCL (deploy/README.md).
        # Each of a learner's devices holds the parameters whole, unless the task may cut them.
        needed //= pool.known_devices if plan.shapes.shardable else 1
        have = int(node.accelerator_bytes * memory_share(pool))
        if needed > have and (pool.name, have) not in told:
            told.add((pool.name, have))
            yield Problem(
                f"{node.name} accelerator_memory",
                amount(have),
                f"a learner of {pool.name} needs {amount(needed)} on each device at least, activations not counted",
                "take a smaller model or larger accelerators, or a task that cuts its parameters over several "
                "(docs/models.md)",
            )


def _narrow(plan: Plan) -> Iterator[Problem]:
    """Links that carry no fragment in time, or less than what becomes due."""
    sync, whole = plan.recipe.sync, DOWN_BYTES * max(row.elements for row in plan.fragments)
    for load in plan.loads:
        for field, deadline_s, what, takes_s in (
            ("sync.read_timeout_s", sync.read_timeout_s, "contribution", load.contribution_s),
            ("sync.transfer_s", sync.transfer_s, "version", load.version_s),
        ):
            if takes_s is not None and takes_s > longest_s(deadline_s, whole):
                yield Problem(
                    field,
                    deadline_s,
                    f"one {what} of the largest fragment takes {takes_s:.3g} s over {load.ends}: every one "
                    "would be late",
                    f"set {field} above {floor_s(load.learners * takes_s, whole):.3g}, which is enough for all of "
                    f"{_learners(load)} at once, or more fragments (sync.P)",
                )
        if load.share is not None and load.share > 1.0:
            busier = max(load.up_bits or 0.0, load.down_bits or 0.0)
            yield Problem(
                load.field,
                f"{(load.link_bits or 0.0) / 1e9:g} Gbit/s",
                f"{busier / 1e9:.3g} Gbit/s in the mean are needed by {_learners(load)}: contributions and versions "
                f"would come ever later{_filled(load)}",
                f"set sync.H to at least {_needed_round(load.share, sync.round_steps)}, or have "
                f"{busier / SHARE / 1e9:.3g} Gbit/s",
            )


def _learners(load: LinkLoad) -> str:
    return f"{load.learners} learner{'s' * (load.learners > 1)}"


def _filled(load: LinkLoad) -> str:
    bits, declared = load.link_bits or 0.0, load.declared_bits or 0.0
    return f". TCP fills {bits / 1e9:.3g} of {declared / 1e9:g} Gbit/s" if bits < declared else ""


def _rounds(plan: Plan) -> Iterator[Problem]:
    """A round that takes more inner steps than asked: the fragments of K learners are not back for the next one."""
    asked, found = plan.recipe.sync.round_steps, math.ceil(plan.round_steps or 0.0)
    if found > asked and all((load.share or 0.0) <= 1.0 for load in plan.loads):
        yield Problem(
            "sync.H",
            asked,
            f"an exchange with K = {plan.recipe.quorum} learners takes {found} steps, and rounds as many",
            f"set sync.H to {found} or more, send less (sync.codec, sync.downlink, more sync.P) or lower sync.quorum",
        )


LIMITS = (_places, _memory, _device_memory, _narrow, _rounds)


# ------------------------------------------------------------------ warnings: who must be alive


def _quorum(plan: Plan) -> Iterator[Problem]:
    recipe, count, left = plan.recipe, len(plan.recipe.learners), sum(plan.fewest.values())
    scaled = "with its pools at their min " if left < count else ""
    if count == 1 or recipe.sync.overlap == "strict":
        return  # lock-step studies wait for everyone on purpose
    if recipe.quorum == count:
        why = f"is every one of {count} learners: while any of them is down nothing commits"
        yield Problem("sync.quorum", recipe.sync.quorum, why, f"give {count - 1} or less")
        return
    if recipe.quorum >= left:
        why = (
            f"{scaled}only {left} learners are left: as far down as `diloco scale` goes any failure stops every commit"
        )
        fix = f"give {left - 1}, or raise pools' min" if left > 1 else "raise pools' min"
        yield Problem("sync.quorum", recipe.sync.quorum, why, fix)
        return
    for kind, groups in (("pool", Counter(plan.fewest)), ("region", _by_region(plan))):
        if len(groups) < 2:
            continue
        name, size = groups.most_common(1)[0]
        if recipe.quorum > left - size:
            why = f"{scaled}without {kind} {name} ({size} of {left} learners) only {left - size} are left: "
            most = f"give at most {left - size}, or " if size < left else ""
            why += "losing it stops every commit"
            yield Problem("sync.quorum", recipe.sync.quorum, why, f"{most}spread the learners")


def _by_region(plan: Plan) -> Counter[str]:
    """Learners by region when they are fewest, where every one's region is known."""
    stay = [name for pool in plan.recipe.pools for name in pool.names(plan.fewest[pool.name])]
    regions = [plan.regions[name] for name in stay]
    return Counter() if plan.context.local or None in regions else Counter(map(str, regions))


def _grace(plan: Plan) -> Iterator[Problem]:
    sync, learners, quorum = plan.recipe.sync, len(plan.recipe.learners), plan.recipe.quorum
    if sync.overlap == "strict" or learners == 1 or quorum == learners:
        return
    if sync.grace == "infinite":
        yield Problem(
            "sync.grace",
            sync.grace,
            "every commit waits for the slowest live learner, and for one that dies until its lease of "
            f"{sync.lease_s:g} s or {sync.lease_steps:g} steps is over: the quorum of {quorum} is idle",
            'give "adaptive", or seconds',
        )


# ------------------------------------------------------------------ warnings: how long, how often


def _momentum(plan: Plan) -> Iterator[Problem]:
    outer, rounds = plan.recipe.outer, plan.pace.rounds
    needed = MEMORIES / (1.0 - outer.momentum)
    if outer.optimizer == "sgd" and outer.momentum and rounds < needed:
        lower = max(0.0, int(100 * (1.0 - MEMORIES / rounds)) / 100)
        yield Problem(
            "outer.momentum",
            outer.momentum,
            f"remembers {1 / (1 - outer.momentum):.3g} rounds and needs about {needed:.0f} to come to its full "
            f"strength; the budget gives {rounds:.3g} of sync.H = {plan.recipe.sync.round_steps}",
            f"a budget of {needed:.0f} rounds, a smaller sync.H, or outer.momentum = {lower:g}"
            + (" or less" if lower else ""),
        )


def _budget(plan: Plan) -> Iterator[Problem]:
    recipe, pace = plan.recipe, plan.pace
    if recipe.budget.tokens is not None and pace.syncer_steps < recipe.sync.round_steps:
        yield Problem(
            "budget.tokens",
            recipe.budget.tokens,
            f"is reached after {pace.syncer_steps} syncer steps, before one round of sync.H = "
            f"{recipe.sync.round_steps}: some fragments would never commit",
            f"give at least {pace.step_tokens * recipe.sync.round_steps}",
        )


# ------------------------------------------------------------------ warnings: fragments and wire


def _overlap(plan: Plan) -> Iterator[Problem]:
    sync = plan.recipe.sync
    if sync.overlap_steps > OVERLAP_SHARE * sync.round_steps and sync.adopt == "overwrite":
        yield Problem(
            "sync.tau",
            sync.overlap_steps,
            f"up to tau / H = {sync.overlap_steps / sync.round_steps:.0%} of each learner's steps may be overwritten "
            "before they are read; Streaming DiLoCo saw next to no loss up to 5 of 30",
            f'give {max(1, int(OVERLAP_SHARE * sync.round_steps))} or less, a larger sync.H, or sync.adopt = "rebase"',
        )


def _balance(plan: Plan) -> Iterator[Problem]:
    """Fragments of uneven size: the links must bear bursts of the largest."""
    sync, elements = plan.recipe.sync, plan.shapes.elements
    largest, mean = max(plan.fragments, key=lambda row: row.elements), elements / len(plan.fragments)
    biggest = max((tensor for f in plan.shapes.fragments for tensor in f.tensors), key=lambda tensor: tensor.size)
    if not sync.split and biggest.size > LARGE * mean:
        why = f"{biggest.name} alone has {biggest.size:,} elements, {biggest.size / mean:.1f} times the mean fragment"
        fix = f"give true, which cuts it by rows, or P = {max(1, int(LARGE * elements / biggest.size))}"
        yield Problem("sync.split", False, f"{why}: the links must bear bursts of it", fix)
    elif mean and largest.elements > BALANCE * mean:
        why = f"fragment {largest.fragment} is {largest.elements / mean:.1f} times the mean: the links must bear bursts"
        even = sync.fragmentation == "balanced"
        fix = f"give {max(1, elements // max(1, biggest.size))} or less" if even else "give balanced"
        yield Problem("sync.P" if even else "sync.fragmentation", None, why, fix)


def _codec(plan: Plan) -> Iterator[Problem]:
    hub = plan.regions.get("syncer")
    regions = {pool.region for pool in plan.recipe.pools if pool.region}
    regions |= {region for name in plan.recipe.learners if (region := plan.regions[name])}
    apart = len(regions) > 1 or (hub is not None and bool(regions - {hub}))
    if plan.recipe.sync.codec.startswith("fp32") and apart and not plan.context.local:
        yield Problem(
            "sync.codec",
            plan.recipe.sync.codec,
            f"contributions cross regions in 32 bits: {amount(plan.traffic.learner_up.per_round_bytes)} from each "
            "learner in a round; the paper saw no loss from 16 on (section 8)",
            'give "bf16", half the bytes up',
        )


def _links(plan: Plan) -> Iterator[Problem]:
    """Links that are nearly full, fragments and states that come late, links of which nothing is said."""
    sync, declared = plan.recipe.sync, bool(plan.recipe.fleet.links)
    size = max(plan.traffic.joining_bytes, plan.traffic.donation_bytes or 0)
    for load in plan.loads:
        if load.link_bits is None:
            if declared:
                fix = "add [[fleet.links]] between these regions"
                yield Problem(load.field, None, f"is not declared, and {_learners(load)} use it", fix)
            continue
        if load.share is not None and SHARE < load.share <= 1.0:
            fix = f"set sync.H to at least {_needed_round(load.share, sync.round_steps)}, or have a wider link"
            yield Problem(
                load.field, None, f"is {load.share:.0%} full in the mean: bursts come late{_filled(load)}", fix
            )
        exchange, age = math.ceil(load.exchange_steps or 0.0), math.ceil(load.update_steps or 0.0)
        if exchange > sync.round_steps == math.ceil(plan.round_steps or 0.0):
            yield Problem(
                "sync.H",
                sync.round_steps,
                f"an exchange over {load.ends} takes {exchange} steps: {_learners(load)} there miss rounds",
                f"set sync.H to {exchange} or more, or send less (sync.codec, sync.downlink, more sync.P)",
            )
        elif age > sync.overlap_steps > 0 and (load.share or 0.0) <= 1.0:
            yield Problem(
                "sync.tau",
                sync.overlap_steps,
                f"updates of {_learners(load)} over {load.ends} are {age} steps old when they are adopted",
                f"set sync.tau to {age} or more: the exchange takes {exchange} steps; or send less",
            )
        given = plan.traffic.donation_bytes is not None
        if given and load.joining_s is not None and load.joining_s > longest_s(sync.transfer_s, size):
            yield Problem(
                "sync.transfer_s",
                sync.transfer_s,
                f"a peer's state of {amount(size)} takes {load.joining_s:.3g} s over {load.ends}: learners that join "
                "there start from the syncer, with a fresh inner optimizer",
                f'set sync.transfer_s above {floor_s(load.joining_s, size):.3g}, or sync.recover = "syncer"',
            )


def _needed_round(share: float, round_steps: int) -> int:
    """The H at which a link is `SHARE` full on average."""
    return math.ceil(round_steps * share / SHARE)


# ------------------------------------------------------------------ warnings: this place


def _waiting(plan: Plan) -> Iterator[Problem]:
    for one in plan.placement.shortfalls:
        if one.who in plan.waiting:
            message = f"{one.who} begins without {one.units} of {plan.pools[one.who]} learners: {one.reason}"
            yield Problem(one.field, None, message, one.fix)


def _store(plan: Plan) -> Iterator[Problem]:
    several = len(plan.context.nodes) > 1 or len({pool.region for pool in plan.recipe.pools}) > 1
    if several and not plan.context.local and not plan.context.shared_store:
        yield Problem(
            "run.folder",
            plan.context.store,
            "is on a file system of this host alone, and grants are files there: actors on other nodes would each see "
            "a folder of their own",
            "give one on a file system that every node mounts at this path",
        )


WARNINGS = (
    *(_quorum, _grace, _momentum, _budget, _overlap, _balance, _codec, _links),
    *(_waiting, _store),
)


# ------------------------------------------------------------------ words


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
