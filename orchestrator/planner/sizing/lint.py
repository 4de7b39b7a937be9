"""What is doubtful about a plan that would train, though probably not as meant: field, value, why, the fix.

Each rule names its ground; docs/planning.md lists them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from orchestrator.planner.sizing import link_load, links
from orchestrator.planner.sizing.draft import Draft, gib, some
from orchestrator.planner.sizing.fit import AGENT_CPUS
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.resources import local_store_bytes
from outer.protocol.fragments import LARGE

LOADED_SHARE = 0.1  # of a learner's run, out on loan
OVERLAP_SHARE = 1 / 6  # tau / H up to which Streaming DiLoCo (arXiv 2501.18512) saw next to no loss: 5 of 30
BALANCE = 2.0  # largest fragment, in means
MEMORIES = 5.0  # rounds, in the outer momentum's 1 / (1 - momentum), until 99 % of its weight is there


def warnings(draft: Draft) -> list[Problem]:
    """What to think about before starting."""
    return [problem for rule in WARNINGS for problem in rule(draft)]


# ------------------------------------------------------------------ warnings: who must be alive


def _quorum(draft: Draft) -> Iterator[Problem]:
    recipe, learners = draft.recipe, sum(draft.fewest.values())
    scaled = "with its pools at their min " if learners < len(recipe.learners) else ""
    if len(recipe.learners) == 1 or recipe.sync.overlap == "strict":
        return  # lock-step studies wait for everyone on purpose
    if recipe.quorum == len(recipe.learners):
        yield Problem(
            "sync.quorum",
            recipe.sync.quorum,
            f"is every one of {len(recipe.learners)} learners: while any of them is down nothing commits",
            f"give {len(recipe.learners) - 1} or less",
        )
        return
    if recipe.quorum >= learners:
        yield Problem(
            "sync.quorum",
            recipe.sync.quorum,
            f"{scaled}only {learners} learners are left: as far down as `diloco scale` goes any failure stops every "
            "commit",
            f"give {learners - 1}, or raise pools' min" if learners > 1 else "raise pools' min",
        )
        return
    for kind, groups in (("pool", _by_pool(draft)), ("region", _by_region(draft))):
        if len(groups) < 2:
            continue
        name, size = groups.most_common(1)[0]
        if recipe.quorum > learners - size:
            yield Problem(
                "sync.quorum",
                recipe.sync.quorum,
                f"{scaled}without {kind} {name} ({size} of {learners} learners) only {learners - size} are left: "
                "losing it stops every commit",
                f"give at most {learners - size}, or spread the learners" if size < learners else "spread the learners",
            )


def _grace(draft: Draft) -> Iterator[Problem]:
    sync, learners = draft.recipe.sync, len(draft.recipe.learners)
    if sync.overlap == "strict" or learners == 1:
        return
    if sync.grace == "infinite" and draft.recipe.quorum < learners:
        yield Problem(
            "sync.grace",
            sync.grace,
            "every commit waits for the slowest live learner, and for one that dies until its lease of "
            f"{sync.lease_s:g} s or {sync.lease_steps:g} steps is over: the quorum of {draft.recipe.quorum} is idle",
            'give "adaptive", or seconds',
        )
    without = sync.grace == 0 or (sync.grace == "adaptive" and sync.gamma == 0.0)
    if without and sync.participants == "reported" and draft.recipe.quorum < learners:
        yield Problem(
            "sync.grace",
            sync.grace,
            f"with participants = reported and no grace, a merge takes the first {draft.recipe.quorum} of {learners}: "
            "the paper's K = 1 without grace lost clearly (section 8: 51.4 against 55.3 with it)",
            'give sync.grace = "adaptive" with sync.gamma above 0, or sync.participants = "eligible"',
        )


# ------------------------------------------------------------------ warnings: how long, how often


def _momentum(draft: Draft) -> Iterator[Problem]:
    outer, rounds = draft.recipe.outer, draft.syncer_steps / draft.recipe.sync.round_steps
    needed = MEMORIES / (1.0 - outer.momentum)
    if outer.optimizer == "sgd" and outer.momentum and rounds < needed:
        lower = 1.0 - MEMORIES / rounds
        fix = f"a budget of {needed:.0f} rounds, a smaller sync.H, or outer.momentum"
        yield Problem(
            "outer.momentum",
            outer.momentum,
            f"remembers {1 / (1 - outer.momentum):.3g} rounds and needs about {needed:.0f} to come to its full "
            f"strength; the budget gives {rounds:.3g} of sync.H = {draft.recipe.sync.round_steps}",
            f"{fix} = {max(0.0, int(lower * 100) / 100):g} or less" if lower > 0 else f"{fix} = 0",
        )


def _budget(draft: Draft) -> Iterator[Problem]:
    recipe = draft.recipe
    if recipe.budget.tokens is not None and draft.syncer_steps < recipe.sync.round_steps:
        step = sum(draft.shapes.step_tokens[pool.name] for pool in recipe.learners.values())
        yield Problem(
            "budget.tokens",
            recipe.budget.tokens,
            f"is reached after {draft.syncer_steps} syncer steps, before one round of sync.H = "
            f"{recipe.sync.round_steps}: some fragments would never commit",
            f"give at least {step * recipe.sync.round_steps}",
        )


def _evaluations(draft: Draft) -> Iterator[Problem]:
    every, round_steps = draft.recipe.eval.every, draft.recipe.sync.round_steps
    if 0 < every < round_steps and len(draft.rows) > 1:
        yield Problem(
            "eval.every",
            every,
            f"is less than a round of {round_steps} steps: between two evaluations some fragments have not changed, "
            f"and each moves {gib(draft.traffic.evaluation_bytes)} to the evaluator",
            f"give {round_steps} or more, or 0 for only the first and the last",
        )


def _chaos(draft: Draft) -> Iterator[Problem]:
    for index, fault in enumerate(draft.recipe.chaos.faults):
        field = f"chaos.faults.{index}"
        if fault.at_step is not None and fault.at_step > draft.syncer_steps:
            yield Problem(
                f"{field}.at_step",
                fault.at_step,
                f"lies behind the run's end, at about syncer step {draft.syncer_steps}: it would never strike",
                f"give at most {draft.syncer_steps}",
            )
        ends = None if draft.step_s is None else draft.syncer_steps * draft.step_s
        if fault.at_s is not None and ends is not None and fault.at_s > ends:
            yield Problem(
                f"{field}.at_s",
                fault.at_s,
                f"lies behind the run's end, after about {ends:.0f} s: it would never strike",
                f"give at most {ends:.0f}",
            )


def _spans(draft: Draft) -> Iterator[Problem]:
    span, steps = draft.recipe.data.span_steps, draft.syncer_steps
    held = 1.5 * span  # a learner asks for the next span when it holds half a one
    if held > LOADED_SHARE * steps and span > 1:
        yield Problem(
            "data.span_steps",
            span,
            f"up to {held:.0f} steps' samples are lent to each learner, of about {steps} that it takes: one that is "
            "killed or frozen holds back or returns that much of the run's data",
            f"give {max(1, int(LOADED_SHARE * steps / 1.5))} or less",
        )


# ------------------------------------------------------------------ warnings: fragments and wire


def _overlap(draft: Draft) -> Iterator[Problem]:
    sync = draft.recipe.sync
    if sync.overlap_steps > OVERLAP_SHARE * sync.round_steps and sync.adopt == "overwrite":
        yield Problem(
            "sync.tau",
            sync.overlap_steps,
            f"up to tau / H = {sync.overlap_steps / sync.round_steps:.0%} of each learner's steps may be overwritten "
            "before they are read; Streaming DiLoCo saw next to no loss up to 5 of 30",
            f'give {max(1, int(OVERLAP_SHARE * sync.round_steps))} or less, a larger sync.H, or sync.adopt = "rebase"',
        )


def _spacing(draft: Draft) -> Iterator[Problem]:
    count, steps = len(draft.rows), draft.recipe.sync.round_steps
    if steps % count:
        yield Problem(
            "sync.H",
            steps,
            f"is no multiple of P = {count}: fragments are due {steps // count} or {steps // count + 1} steps apart, "
            "so traffic is less even than it could be",
            f"give {steps - steps % count} or {steps - steps % count + count}",
        )


def _balance(draft: Draft) -> Iterator[Problem]:
    largest = max(draft.rows, key=lambda row: row.elements)
    mean = draft.shapes.elements / len(draft.rows)
    biggest = max((tensor for f in draft.shapes.fragments for tensor in f.tensors), key=lambda tensor: tensor.size)
    if not draft.recipe.sync.split and biggest.size > LARGE * mean:
        yield Problem(
            "sync.split",
            False,
            f"{biggest.name} alone has {biggest.size:,} elements, {biggest.size / mean:.1f} times the mean fragment: "
            "the links must bear bursts of it",
            f"give true, which cuts it by rows, or P = {max(1, int(LARGE * draft.shapes.elements / biggest.size))}",
        )
    elif mean and largest.elements > BALANCE * mean and (dealt := draft.recipe.sync.fragmentation) != "balanced":
        yield Problem(
            "sync.fragmentation",
            dealt,
            f"fragment {largest.fragment} is {largest.elements / mean:.1f} times the mean: the links must bear bursts",
            "give balanced",
        )
    elif mean and largest.elements > BALANCE * mean:
        even = max(1, draft.shapes.elements // max(1, biggest.size))
        yield Problem(
            "sync.P",
            len(draft.rows),
            f"fragment {largest.fragment} is {largest.elements / mean:.1f} times the mean, {biggest.name} alone has "
            f"{biggest.size:,} elements: the links must bear bursts of it",
            f"give {even}, with which the mean is no smaller than that tensor, or make smaller tensors in the model",
        )


def _codec(draft: Draft) -> Iterator[Problem]:
    hub = draft.node_of("syncer")
    far = {pool.region for pool in draft.recipe.pools if pool.region}
    far |= {flow.region for flow in draft.traffic.regions if flow.region}
    apart = len(far) > 1 or (hub is not None and hub.region is not None and bool(far - {hub.region}))
    if draft.recipe.sync.codec.startswith("fp32") and apart and not draft.local:
        yield Problem(
            "sync.codec",
            draft.recipe.sync.codec,
            f"contributions cross regions in 32 bits: {gib(draft.traffic.learner_up.per_round_bytes)} from each "
            "learner in a round; the paper saw no loss from 16 on (section 8)",
            'give "bf16", half the bytes up',
        )


def _regions(draft: Draft) -> Iterator[Problem]:
    yield from link_load.warnings(draft.loads, draft.recipe.sync)


# ------------------------------------------------------------------ warnings: this place


def _waiting(draft: Draft) -> Iterator[Problem]:
    for one in draft.placement.shortfalls:
        if one.who in draft.waiting:
            message = f"{one.who} begins without {one.units} of {draft.pools[one.who]} learners: {one.reason}"
            yield Problem(one.field, None, message, one.fix)


def _growth(draft: Draft) -> Iterator[Problem]:
    for one in draft.at_max.shortfalls if draft.at_max else ():
        if one.who in {short.who for short in draft.placement.shortfalls} | draft.opportunistic.keys():
            continue  # a limit already, or a pool that takes what is there
        whom = f"{one.units} of {one.who}'s learners" if one.who in draft.pools else f"the {one.who}"
        yield Problem(
            "pools.max",
            {pool.name: pool.max for pool in draft.recipe.pools if pool.max is not None},
            f"with every pool at its max there is no place for {whom}: {one.reason}",
            "add nodes before `diloco scale` asks for so many, or lower it",
        )


def _store(draft: Draft) -> Iterator[Problem]:
    several = len(draft.nodes) > 1 or len({pool.region for pool in draft.recipe.pools}) > 1
    if several and not draft.local and not draft.shared_store:
        yield Problem(
            "run-dir",
            draft.store,
            "is on a file system of this host alone, and grants are files there: actors on other nodes would each see "
            "a folder of their own",
            "give --run-dir on a file system that every node mounts at this path",
        )


def _cores(draft: Draft) -> Iterator[Problem]:
    asked = sum(pool.unit_resources.get("CPU", 0.0) for pool in draft.recipe.learners.values())
    if draft.cores is not None and asked > draft.cores:
        yield Problem(
            "pools",
            None,
            f"learners ask for {asked:g} CPU and this machine has {draft.cores} cores: they take turns, and each step "
            f"lasts about {asked / draft.cores:.3g} times as long as alone",
            "nothing, for a demonstration; fewer learners to measure speed",
        )


def _object_store(draft: Draft) -> Iterator[Problem]:
    """Versions that learners hold are objects of Ray's store, which cannot move them out while they are held."""
    held = len(draft.recipe.learners) * draft.traffic.joining_bytes
    if draft.local and held > (room := local_store_bytes()):
        yield Problem(
            "model",
            draft.recipe.model,
            f"versions held by {len(draft.recipe.learners)} learners take {gib(held)} of this machine's object store "
            f"of {gib(room)}: Ray puts the rest on disk, slowly",
            "fewer learners or a smaller model here; a cluster's store is 30 % of a node's memory",
        )


def _hands(draft: Draft) -> Iterator[Problem]:
    left = {
        name: draft.placement.free[name].get("CPU", 0.0) for name in dict.fromkeys(draft.placement.learners.values())
    }
    full = [name for name, free in left.items() if free < AGENT_CPUS]
    if full and not draft.local:
        yield Problem(
            f"{full[0]} CPU",
            left[full[0]],
            f"{some(full)} have no CPU left for the actor that ends hung learners there: none could be restarted",
            f"leave {AGENT_CPUS:g} CPU free on every node with learners",
        )


WARNINGS: tuple[Callable[[Draft], Iterator[Problem]], ...] = (
    *(_quorum, _grace),
    *(_momentum, _budget, _evaluations, _chaos, _spans),
    *(_overlap, _spacing, _balance, _codec, links.crowding, links.donations, _regions),
    *(_waiting, _growth, _store, _cores, _object_store, _hands),
)


# ------------------------------------------------------------------ helpers


def _by_pool(draft: Draft) -> Counter[str]:
    return Counter(draft.fewest)


def _by_region(draft: Draft) -> Counter[str]:
    """Learners by region when they are fewest, where every one's region is known."""
    stay = [name for pool in draft.recipe.pools for name in pool.names(draft.fewest[pool.name])]
    regions = [draft.regions[name] for name in stay]
    return Counter() if draft.local or None in regions else Counter(map(str, regions))
