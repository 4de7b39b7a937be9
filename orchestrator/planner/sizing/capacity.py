"""Placement: nodes against what each pool's learners and the control actors need, by label and resource.

What each asks for, and which nodes may have it, is decided in orchestrator/recipe/resources.py, as for a run. The
control actors are placed first, then learners, those first that fewest nodes can hold, each on the fullest node with
room; Ray decides by its own order. Amounts are counted in Ray's unit, so that no rounding over-commits a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.nodes import Node
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.resources import ACCELERATOR, REGION, Shape, bears, misses, shape, unschedulable_reason

UNIT = 10_000  # Ray counts resources in this fraction
# CPUs that the run's own actors ask for. The tests hold them against the actors' constants.
SERVICE_CPUS = {"orchestrator": 0.1, "syncer": 0.5, "metrics": 0.05, "chaos": 0.1}
CONTROLLED = ("orchestrator", "syncer")  # where run.control says; shards and an evaluator on CPUs, too
SHARD, SHARD_CPUS = "shard-", 0.5  # how the shards' names begin; likewise, of each
AGENT_CPUS = 0.01  # on each node with a learner, when something there has to be ended or frozen


@dataclass(frozen=True)
class Service:
    """An actor of the run that is no learner."""

    name: str
    asked: Shape


@dataclass(frozen=True)
class Shortfall:
    """Learners of a pool, or a service, that find no place, and why not."""

    who: str  # a pool or a service
    field: str  # of the recipe
    units: int  # how many of it
    reason: str
    fix: str


@dataclass(frozen=True)
class Placement:
    """Names of nodes by name of learner or service; what is unplaced is in neither."""

    learners: dict[str, tuple[str, ...]]  # as many as a learner is spread over
    services: dict[str, str]
    shortfalls: tuple[Shortfall, ...]


def claim(pool: PoolConfig, anywhere: bool) -> Shape:
    """The resources and labels that one learner unit asks of one node. A single local node has every region."""
    asked = shape(pool, anywhere)
    return Shape(asked.resources, {ACCELERATOR: pool.accelerator}) if anywhere and pool.accelerator else asked


def services(recipe: Recipe, anywhere: bool, region: str | None = None) -> list[Service]:
    """The run's services. `region`: where the syncer is wanted; None: wherever it may be."""
    absent = {"chaos": not recipe.chaos.active, "metrics": not recipe.run.metrics}
    control = {} if anywhere else recipe.run.control
    labels = dict.fromkeys(CONTROLLED, control) | ({"syncer": control | {REGION: region}} if region else {})
    shards = recipe.run.shards if recipe.run.shards > 1 else 0
    evaluator = Shape(recipe.eval.resources, {} if recipe.eval.accelerated else control)
    return [
        *(Service(n, Shape({"CPU": cpus}, labels.get(n, {}))) for n, cpus in SERVICE_CPUS.items() if not absent.get(n)),
        Service("evaluator", evaluator),
        *(Service(f"{SHARD}{shard}", Shape({"CPU": SHARD_CPUS}, control)) for shard in range(shards)),
    ]


def place(
    learners: Mapping[str, PoolConfig], wanted: Sequence[Service], nodes: Sequence[Node], anywhere: bool
) -> Placement:
    """Place learners and services. `anywhere`: on a single local node, where regions do not bind."""
    free = {node.name: _units(node.resources) for node in nodes}
    claims = {pool.name: claim(pool, anywhere) for pool in learners.values()}
    placed: dict[str, tuple[str, ...]] = {}
    held: dict[str, str] = {}

    def able(asked: Shape) -> list[Node]:
        """The nodes with room, those first that have the least of anything else and the least left."""
        need = _units(asked.resources)

        def waste(node: Node) -> tuple[int, float]:
            left = free[node.name]
            unasked = sum(amount > 0 and kind not in need for kind, amount in left.items())
            share = sum(1.0 - amount / left[kind] for kind, amount in need.items() if amount)
            return unasked, share if asked.nodes == 1 else -share  # who is spread leaves as many nodes open as can be

        found = [node for node in nodes if bears(node, asked.labels)]
        return sorted((node for node in found if _holds(free[node.name], need)), key=waste)

    def take(node: Node, asked: Shape) -> str:
        for kind, amount in _units(asked.resources).items():
            free[node.name][kind] = free[node.name].get(kind, 0) - amount
        return node.name

    for service in wanted:
        beside = Counter(node for name, node in held.items() if name.startswith(SHARD))
        found = able(service.asked)
        if service.name.startswith(SHARD):  # they are spread
            found.sort(key=lambda node: beside[node.name])
        if found:
            held[service.name] = take(found[0], service.asked)
    could = {name: len(able(asked)) for name, asked in claims.items()}
    for name, pool in sorted(learners.items(), key=lambda item: could[item[1].name]):
        asked = claims[pool.name]
        if len(found := able(asked)) >= asked.nodes:
            placed[name] = tuple(take(node, asked) for node in found[: asked.nodes])
    shortfalls = (
        *_of_pools(learners, claims, placed, nodes),
        *(_of_service(one, nodes) for one in wanted if one.name not in held),
    )
    return Placement({name: placed[name] for name in learners if name in placed}, held, shortfalls)


def _of_pools(
    learners: Mapping[str, PoolConfig],
    claims: Mapping[str, Shape],
    placed: Mapping[str, tuple[str, ...]],
    nodes: Sequence[Node],
) -> Iterator[Shortfall]:
    wanted = Counter(pool.name for pool in learners.values())
    found = Counter(pool.name for name, pool in learners.items() if name in placed)
    for index, (name, count) in enumerate(wanted.items()):
        asked, missing = claims[name], count - found[name]
        if missing:
            what = ", ".join(f"{kind}={amount:g}" for kind, amount in asked.resources.items())
            what += "".join(f", {label}={value}" for label, value in asked.labels.items())
            each = f"{missing} times {what}" + (f" on {asked.nodes} nodes" if asked.nodes > 1 else "")
            fewer = f", or set pools.{index}.learners={found[name]}" if found[name] else ""
            reason = f"room for {found[name]} of {count}: {unschedulable_reason(asked, nodes)}"
            yield Shortfall(name, f"pools.{index}", missing, reason, f"add {each}{fewer}, or ask for less")


def _of_service(service: Service, nodes: Sequence[Node]) -> Shortfall:
    labels, asked = service.asked.labels, service.asked.resources
    if why := misses(labels, nodes):
        others = {key: value for key, value in labels.items() if key != REGION}
        field = "run.control" if misses(others, nodes) else "fleet.syncer_region"
        fix = f"start such a node (ray start --labels; as a --node: labels.NAME=VALUE), or correct {field}"
        return Shortfall(service.name, field, 1, why, fix)
    what = ", ".join(f"{amount:g} {kind}" for kind, amount in asked.items())
    reason = f"{what} are asked for, and no node that it may be on has so much left"
    less = ", or ask for less in eval.resources" if asked.keys() - {"CPU"} else ""
    return Shortfall(service.name, "nodes", 1, reason, f"add a node that has them to spare{less}")


def _units(amounts: Mapping[str, float]) -> dict[str, int]:
    return {kind: round(amount * UNIT) for kind, amount in amounts.items()}


def _holds(free: Mapping[str, int], need: Mapping[str, int]) -> bool:
    return all(free.get(kind, 0) >= amount for kind, amount in need.items())
