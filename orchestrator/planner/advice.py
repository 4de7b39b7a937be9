"""What is doubtful about a plan, and what cannot work: field, value, why, the fix.

A limit is a plan that would not train; a warning is one that trains, and probably not as meant. Each rule names
its ground; docs/planning.md lists them all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config import Recipe
from orchestrator.planner.fit import HAND_CPUS, Placement
from orchestrator.planner.memory import Memory
from orchestrator.planner.nodes import GIB, Node
from orchestrator.planner.shapes import Shapes
from orchestrator.planner.traffic import FragmentRow, Traffic
from orchestrator.problems import Problem

LOCAL_STORE_BYTES = 512 * 2**20  # the object store of the Ray that `diloco run` starts on this machine
LOADED_SHARE = 0.1  # of a learner's run, out on loan
OVERLAP_SHARE = 1 / 6  # tau / H up to which Streaming DiLoCo (arXiv 2501.18512) saw next to no loss: 5 of 30
BALANCE = 2.0  # largest fragment, in means
MEMORIES = 5.0  # rounds, in the outer momentum's 1 / (1 - momentum), until 99 % of its weight is there


@dataclass(frozen=True)
class Facts:
    """All that the rules look at."""

    recipe: Recipe
    shapes: Shapes
    rows: tuple[FragmentRow, ...]
    traffic: Traffic
    memory: Mapping[str, Memory]
    nodes: Sequence[Node]
    placement: Placement
    local: bool  # the plan is for `diloco run` without a cluster
    cores: int | None  # of this machine; None: not where it runs
    step_s: float | None
    syncer_steps: int
    shared_store: bool  # every node can reach the run's folder
    store: str

    @property
    def pools(self) -> dict[str, int]:
        return {pool.name: pool.learners for pool in self.recipe.pools}

    def node_of(self, name: str) -> Node | None:
        place = self.placement.learners.get(name) or self.placement.services.get(name)
        return next((node for node in self.nodes if node.name == place), None)


Rule = Callable[[Facts], Iterator[Problem]]


def limits(facts: Facts) -> list[Problem]:
    """Why this would not train."""
    return [problem for rule in LIMITS for problem in rule(facts)]


def warnings(facts: Facts) -> list[Problem]:
    """What to think about before starting."""
    return [problem for rule in WARNINGS for problem in rule(facts)]


# ------------------------------------------------------------------ limits


def _places(facts: Facts) -> Iterator[Problem]:
    for one in facts.placement.shortfalls:
        what = (
            f"{one.units} of {facts.pools[one.who]} learners do not fit" if one.who in facts.pools else "has no place"
        )
        yield Problem(one.field, None, f"{one.who}: {what}: {one.reason}", one.fix)


def _memory(facts: Facts) -> Iterator[Problem]:
    for node in facts.nodes:
        there = _processes(facts, node)
        if node.memory_bytes is None or not there:
            continue
        needed = sum((facts.memory[k].host_bytes + facts.memory[k].store_bytes) * count for k, count in there.items())
        if needed > node.memory_bytes:
            who = ", ".join(f"{count} x {kind}" for kind, count in there.items())
            yield Problem(
                f"{node.name} memory",
                _gib(node.memory_bytes),
                f"{who} need {_gib(needed)} at least, activations not counted",
                "place fewer there (pools' learners or resources), or take nodes with more memory",
            )


def _device_memory(facts: Facts) -> Iterator[Problem]:
    told: set[tuple[str, int]] = set()
    for name, pool in facts.recipe.learners.items():
        node = facts.node_of(name)
        units = sum(pool.resources.get(kind, 0.0) for kind in ("GPU", "TPU"))
        needed = facts.memory[f"learner-{pool.name}"].device_bytes
        if node is None or node.accelerator_bytes is None or not needed:
            continue
        # A learner is one process on one JAX device today: further ones do not share the load.
        have = int(node.accelerator_bytes * min(units, 1.0))
        if needed > have and (pool.name, have) not in told:
            told.add((pool.name, have))
            yield Problem(
                f"{node.name} accelerator_memory",
                _gib(have),
                f"a learner of {pool.name} needs {_gib(needed)} on its device at least, activations not counted",
                "take a smaller model or larger accelerators: a learner uses one device, more of them do not help yet",
            )


def _deadlines(facts: Facts) -> Iterator[Problem]:
    """A contribution has to cross within read_timeout_s, a version within transfer_s: else none ever arrives."""
    sync, hub = facts.recipe.sync, facts.node_of("syncer")
    if hub is None:
        return
    up, down = facts.traffic.learner_up.peak_bytes, facts.traffic.learner_down.peak_bytes
    away = Counter(place for place in facts.placement.learners.values() if place != hub.name)
    for node, count in [*((n, away[n.name]) for n in facts.nodes if away[n.name]), (hub, away.total())]:
        if node.bandwidth_bits is None or not count:
            continue
        for field, deadline, size, what in (
            ("sync.read_timeout_s", sync.read_timeout_s, up, "contributions"),
            ("sync.transfer_s", sync.transfer_s, down, "versions"),
        ):
            takes = 8 * size * count / node.bandwidth_bits
            if takes > deadline:
                yield Problem(
                    field,
                    deadline,
                    f"{count} {what} of the largest fragment take {takes:.3g} s over {node.name}'s "
                    f"{node.bandwidth_bits / 1e9:g} Gbit/s: they would always be late",
                    f"set {field} above {takes:.3g}"
                    + (f", sync.P above {len(facts.rows)}" if sync.round_steps > len(facts.rows) else "")
                    + ', or sync.codec = "bf16"' * (sync.codec == "fp32" and what == "contributions"),
                )


def _rate(facts: Facts) -> Iterator[Problem]:
    """What is due in a step has to cross within a step, in the mean."""
    hub = facts.node_of("syncer")
    if hub is None or facts.step_s is None:
        return
    away = Counter(place for place in facts.placement.learners.values() if place != hub.name)
    flow = max(facts.traffic.learner_up.per_second_bits or 0.0, facts.traffic.learner_down.per_second_bits or 0.0)
    for node, count in [*((n, away[n.name]) for n in facts.nodes if away[n.name]), (hub, away.total())]:
        if node.bandwidth_bits is not None and flow * count > node.bandwidth_bits:
            factor = flow * count / node.bandwidth_bits
            yield Problem(
                "sync.H",
                facts.recipe.sync.round_steps,
                f"the fragments of {count} learners need {flow * count / 1e9:.3g} Gbit/s over {node.name}'s "
                f"{node.bandwidth_bits / 1e9:g} Gbit/s in the mean",
                f"set sync.H to at least {math.ceil(facts.recipe.sync.round_steps * factor)}",
            )


LIMITS: tuple[Rule, ...] = (_places, _memory, _device_memory, _deadlines, _rate)


# ------------------------------------------------------------------ warnings: who must be alive


def _quorum(facts: Facts) -> Iterator[Problem]:
    recipe, learners = facts.recipe, len(facts.recipe.learners)
    if learners == 1 or recipe.sync.overlap == "strict":
        return  # lock-step studies wait for everyone on purpose
    if recipe.quorum == learners:
        yield Problem(
            "sync.quorum",
            recipe.sync.quorum,
            f"is every one of {learners} learners: while any of them is down nothing commits",
            f"give {learners - 1} or less",
        )
        return
    for kind, groups in (("pool", _by_pool(facts)), ("region", _by_region(facts))):
        if len(groups) < 2:
            continue
        name, size = groups.most_common(1)[0]
        if recipe.quorum > learners - size:
            yield Problem(
                "sync.quorum",
                recipe.sync.quorum,
                f"without {kind} {name} ({size} of {learners} learners) only {learners - size} are left: losing it "
                "stops every commit",
                f"give at most {learners - size}, or spread the learners",
            )


def _grace(facts: Facts) -> Iterator[Problem]:
    sync, learners = facts.recipe.sync, len(facts.recipe.learners)
    if sync.overlap == "strict" or learners == 1:
        return
    if sync.grace == "infinite" and facts.recipe.quorum < learners:
        yield Problem(
            "sync.grace",
            sync.grace,
            "every commit waits for the slowest live learner, and for one that dies until its lease of "
            f"{sync.lease_s:g} s or {sync.lease_steps:g} steps is over: the quorum of {facts.recipe.quorum} is idle",
            'give "adaptive", or seconds',
        )
    without = sync.grace == 0 or (sync.grace == "adaptive" and sync.gamma == 0.0)
    if without and sync.participants == "reported" and facts.recipe.quorum < learners:
        yield Problem(
            "sync.grace",
            sync.grace,
            f"with participants = reported and no grace, a merge takes the first {facts.recipe.quorum} of {learners}: "
            "the paper's K = 1 without grace lost clearly (section 8: 51.4 against 55.3 with it)",
            'give sync.grace = "adaptive" with sync.gamma above 0, or sync.participants = "eligible"',
        )


# ------------------------------------------------------------------ warnings: how long, how often


def _momentum(facts: Facts) -> Iterator[Problem]:
    outer, rounds = facts.recipe.outer, facts.syncer_steps / facts.recipe.sync.round_steps
    needed = MEMORIES / (1.0 - outer.momentum)
    if outer.optimizer == "sgd" and outer.momentum and rounds < needed:
        lower = 1.0 - MEMORIES / rounds
        fix = f"a budget of {needed:.0f} rounds, a smaller sync.H, or outer.momentum"
        yield Problem(
            "outer.momentum",
            outer.momentum,
            f"remembers {1 / (1 - outer.momentum):.3g} rounds and needs about {needed:.0f} to come to its full "
            f"strength; the budget gives {rounds:.3g} of sync.H = {facts.recipe.sync.round_steps}",
            f"{fix} = {max(0.0, int(lower * 100) / 100):g} or less" if lower > 0 else f"{fix} = 0",
        )


def _budget(facts: Facts) -> Iterator[Problem]:
    recipe = facts.recipe
    if recipe.budget.tokens is not None and facts.syncer_steps < recipe.sync.round_steps:
        step = sum(facts.shapes.step_tokens[pool.name] for pool in recipe.learners.values())
        yield Problem(
            "budget.tokens",
            recipe.budget.tokens,
            f"is reached after {facts.syncer_steps} syncer steps, before one round of sync.H = "
            f"{recipe.sync.round_steps}: some fragments would never commit",
            f"give at least {step * recipe.sync.round_steps}",
        )


def _evaluations(facts: Facts) -> Iterator[Problem]:
    every, round_steps = facts.recipe.eval.every, facts.recipe.sync.round_steps
    if 0 < every < round_steps and len(facts.rows) > 1:
        yield Problem(
            "eval.every",
            every,
            f"is less than a round of {round_steps} steps: between two evaluations some fragments have not changed, "
            f"and each moves {_gib(facts.traffic.evaluation_bytes)} to the evaluator",
            f"give {round_steps} or more, or 0 for only the first and the last",
        )


def _chaos(facts: Facts) -> Iterator[Problem]:
    for index, fault in enumerate(facts.recipe.chaos.faults):
        field = f"chaos.faults.{index}"
        if fault.at_step is not None and fault.at_step > facts.syncer_steps:
            yield Problem(
                f"{field}.at_step",
                fault.at_step,
                f"lies behind the run's end, at about syncer step {facts.syncer_steps}: it would never strike",
                f"give at most {facts.syncer_steps}",
            )
        ends = None if facts.step_s is None else facts.syncer_steps * facts.step_s
        if fault.at_s is not None and ends is not None and fault.at_s > ends:
            yield Problem(
                f"{field}.at_s",
                fault.at_s,
                f"lies behind the run's end, after about {ends:.0f} s: it would never strike",
                f"give at most {ends:.0f}",
            )


def _spans(facts: Facts) -> Iterator[Problem]:
    span, steps = facts.recipe.data.span_steps, facts.syncer_steps
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


def _overlap(facts: Facts) -> Iterator[Problem]:
    sync = facts.recipe.sync
    if sync.overlap_steps > OVERLAP_SHARE * sync.round_steps and sync.adopt == "overwrite":
        yield Problem(
            "sync.tau",
            sync.overlap_steps,
            f"up to tau / H = {sync.overlap_steps / sync.round_steps:.0%} of each learner's steps may be overwritten "
            "before they are read; Streaming DiLoCo saw next to no loss up to 5 of 30",
            f'give {max(1, int(OVERLAP_SHARE * sync.round_steps))} or less, a larger sync.H, or sync.adopt = "rebase"',
        )


def _spacing(facts: Facts) -> Iterator[Problem]:
    count, steps = len(facts.rows), facts.recipe.sync.round_steps
    if steps % count:
        yield Problem(
            "sync.H",
            steps,
            f"is no multiple of P = {count}: fragments are due {steps // count} or {steps // count + 1} steps apart, "
            "so traffic is less even than it could be",
            f"give {steps - steps % count} or {steps - steps % count + count}",
        )


def _balance(facts: Facts) -> Iterator[Problem]:
    largest = max(facts.rows, key=lambda row: row.elements)
    mean = facts.shapes.elements / len(facts.rows)
    if mean and largest.elements > BALANCE * mean:
        biggest = max((tensor for f in facts.shapes.fragments for tensor in f.tensors), key=lambda tensor: tensor.size)
        even = max(1, facts.shapes.elements // max(1, biggest.size))
        yield Problem(
            "sync.P",
            len(facts.rows),
            f"fragment {largest.fragment} is {largest.elements / mean:.1f} times the mean, {biggest.name} alone has "
            f"{biggest.size:,} elements: the links must bear bursts of it",
            f"give {even}, with which the mean is no smaller than that tensor, or split the tensor in the model",
        )


def _codec(facts: Facts) -> Iterator[Problem]:
    hub = facts.node_of("syncer")
    far = {pool.region for pool in facts.recipe.pools if pool.region}
    far |= {flow.region for flow in facts.traffic.regions if flow.region}
    apart = len(far) > 1 or (hub is not None and hub.region is not None and bool(far - {hub.region}))
    if facts.recipe.sync.codec == "fp32" and apart and not facts.local:
        yield Problem(
            "sync.codec",
            "fp32",
            f"contributions cross regions in 32 bits: {_gib(facts.traffic.learner_up.per_round_bytes)} from each "
            "learner in a round; the paper saw no loss from 16 on (section 8)",
            'give "bf16", half the bytes up',
        )


# ------------------------------------------------------------------ warnings: this place


def _store(facts: Facts) -> Iterator[Problem]:
    several = len(facts.nodes) > 1 or len({pool.region for pool in facts.recipe.pools}) > 1
    if several and not facts.local and not facts.shared_store:
        yield Problem(
            "run-dir",
            facts.store,
            "is on a file system of this host alone, and grants are files there: actors on other nodes would each see "
            "a folder of their own",
            "give --run-dir on a file system that every node mounts at this path",
        )


def _cores(facts: Facts) -> Iterator[Problem]:
    asked = sum(pool.resources.get("CPU", 0.0) for pool in facts.recipe.learners.values())
    if facts.cores is not None and asked > facts.cores:
        yield Problem(
            "pools",
            None,
            f"learners ask for {asked:g} CPU and this machine has {facts.cores} cores: they take turns, and each step "
            f"lasts about {asked / facts.cores:.3g} times as long as alone",
            "nothing, for a demonstration; fewer learners to measure speed",
        )


def _object_store(facts: Facts) -> Iterator[Problem]:
    """Versions that learners hold are objects of Ray's store, which cannot move them out while they are held."""
    held = len(facts.recipe.learners) * facts.traffic.joining_bytes
    if facts.local and held > LOCAL_STORE_BYTES:
        yield Problem(
            "model",
            facts.recipe.model,
            f"versions held by {len(facts.recipe.learners)} learners take {_gib(held)} of this machine's object store "
            f"of {_gib(LOCAL_STORE_BYTES)}: Ray puts the rest on disk, slowly",
            "fewer learners or a smaller model here; a cluster's store is 30 % of a node's memory",
        )


def _hands(facts: Facts) -> Iterator[Problem]:
    for name in sorted(set(facts.placement.learners.values())):
        left = facts.placement.free[name].get("CPU", 0.0)
        if left < HAND_CPUS and not facts.local:
            yield Problem(
                f"{name} CPU",
                left,
                "none is left for the actor that ends a hung learner there: it could not be restarted",
                f"leave {HAND_CPUS:g} CPU free on every node with learners",
            )


WARNINGS: tuple[Rule, ...] = (
    *(_quorum, _grace),
    *(_momentum, _budget, _evaluations, _chaos, _spans),
    *(_overlap, _spacing, _balance, _codec),
    *(_store, _cores, _object_store, _hands),
)


# ------------------------------------------------------------------ helpers


def _processes(facts: Facts, node: Node) -> Counter[str]:
    """How many of each kind of process are placed on a node."""
    pools = facts.recipe.learners
    there = [f"learner-{pools[name].name}" for name, place in facts.placement.learners.items() if place == node.name]
    there += [name for name, place in facts.placement.services.items() if place == node.name and name in facts.memory]
    return Counter(there)


def _by_pool(facts: Facts) -> Counter[str]:
    return Counter(facts.pools)


def _by_region(facts: Facts) -> Counter[str]:
    """Learners by region, where every learner's is known."""
    if facts.local or any(flow.region is None for flow in facts.traffic.regions):
        return Counter()
    return Counter({str(flow.region): flow.learners for flow in facts.traffic.regions})


def _gib(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:g} bytes"
