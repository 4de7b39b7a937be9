"""Who runs where: learner units and services packed onto nodes, and why some find no place.

What each asks for, and which nodes may have it, is decided in orchestrator/recipe/resources.py, as for a run.
A packing found here exists; Ray decides by its own order, and can miss a packing that only just fits. Amounts are
counted in Ray's own unit, a ten-thousandth, so that nothing is ever over-committed by a rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.nodes import Node
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.resources import ACCELERATOR, POD_TYPE, REGION, Shape, bears, misses, shape

UNIT = 10_000  # Ray counts resources in this fraction
# CPUs that the run's own actors ask for. The tests hold them against the actors' constants.
SERVICE_CPUS = {"orchestrator": 0.1, "syncer": 0.5, "metrics": 0.05, "chaos": 0.1}
CONTROLLED = ("orchestrator", "syncer")  # where run.control says; shards and an evaluator on CPUs, too
SHARD, SHARD_CPUS = "shard-", 0.5  # how the shards' names begin; likewise, of each
AGENT_CPUS = 0.01  # on each node with a learner, when something there has to be ended or frozen

FIELDS = {REGION: "region", ACCELERATOR: "accelerator", POD_TYPE: "topology"}  # of a pool, by the label it asks for

Amounts = dict[str, int]  # in units


@dataclass(frozen=True)
class Service:
    """An actor of the run that is no learner."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]  # only on nodes that have them


@dataclass(frozen=True)
class Shortfall:
    """Who finds no place, and why not."""

    who: str  # a pool or a service
    field: str  # of the recipe
    units: int  # how many of it
    reason: str
    fix: str


@dataclass(frozen=True)
class Placement:
    """Names of nodes by name of learner or service; what is unplaced is in neither."""

    learners: dict[str, str]
    services: dict[str, str]
    shortfalls: tuple[Shortfall, ...]
    free: dict[str, dict[str, float]]  # what each node has left
    others: dict[str, tuple[str, ...]]  # of learners that are spread over several nodes: those after the first


def claim(pool: PoolConfig, anywhere: bool) -> Shape:
    """What one learner unit asks of one node. A single local node has every region, but not every accelerator."""
    asked = shape(pool, anywhere)
    return Shape(asked.resources, {ACCELERATOR: pool.accelerator}) if anywhere and pool.accelerator else asked


def services(recipe: Recipe, anywhere: bool, region: str | None = None) -> list[Service]:
    """The run's services. `region`: where the syncer is wanted; None: wherever it may be."""
    absent = {"chaos": not recipe.chaos.active, "metrics": not recipe.run.metrics}
    control = {} if anywhere else recipe.run.control
    shards = recipe.run.shards if recipe.run.shards > 1 else 0
    return [
        *(
            Service(
                name,
                {"CPU": cpus},
                (control if name in CONTROLLED else {}) | ({REGION: region} if region and name == "syncer" else {}),
            )
            for name, cpus in SERVICE_CPUS.items()
            if not absent.get(name)
        ),
        Service("evaluator", recipe.eval.resources, {} if recipe.eval.accelerated else control),
        *(Service(f"{SHARD}{shard}", {"CPU": SHARD_CPUS}, control) for shard in range(shards)),
    ]


def fit(
    learners: Mapping[str, PoolConfig], wanted: Sequence[Service], nodes: Sequence[Node], anywhere: bool
) -> Placement:
    """Place as many as this finds room for. `anywhere`: on a single local node, where regions do not bind."""
    attempts = [_Packing(learners, wanted, nodes, anywhere, first) for first in (True, False)]
    return max(attempts, key=lambda packing: len(packing.learners) + len(packing.services)).result()


class _Packing:
    """One attempt: services before or after the learners, the most constrained learners first, best fit."""

    def __init__(
        self,
        learners: Mapping[str, PoolConfig],
        wanted: Sequence[Service],
        nodes: Sequence[Node],
        anywhere: bool,
        services_first: bool,
    ) -> None:
        self.learners: dict[str, str] = {}
        self.others: dict[str, tuple[str, ...]] = {}
        self.services: dict[str, str] = {}
        self._wanted, self._nodes, self._anywhere, self._asked = wanted, nodes, anywhere, learners
        self._free = {node.name: _units(node.resources) for node in nodes}
        self._shards = Counter[str]()  # by node: they are spread
        self._claims = {pool.name: claim(pool, anywhere) for pool in learners.values()}
        if services_first:
            self._place_services()
        for name, pool in sorted(learners.items(), key=lambda item: self._constraint(item[1])):
            self._place_learner(name, pool)
        if not services_first:
            self._place_services()

    def _constraint(self, pool: PoolConfig) -> tuple[int, float]:
        asked = self._claims[pool.name]
        need = _units(asked.resources)
        able = [node for node in self._bearing(asked.labels) if _holds(_units(node.resources), need)]
        share = max(
            (amount / max(1, _units(node.resources).get(kind, 0)) for node in able for kind, amount in need.items()),
            default=0.0,
        )
        return len(able), -share

    def _bearing(self, labels: Mapping[str, str]) -> list[Node]:
        return [node for node in self._nodes if bears(node, labels)]

    def _place_services(self) -> None:
        for service in self._wanted:
            need = _units(service.resources)
            able = [n for n in self._bearing(service.labels) if _holds(self._free[n.name], need)]
            if able:
                node = (
                    min(able, key=lambda each: self._shards[each.name]) if service.name.startswith(SHARD) else able[0]
                )
                self._shards[node.name] += service.name.startswith(SHARD)
                self._take(node, need)
                self.services[service.name] = node.name

    def _place_learner(self, name: str, pool: PoolConfig) -> None:
        asked = self._claims[pool.name]
        need = _units(asked.resources)
        able = [node for node in self._bearing(asked.labels) if _holds(self._free[node.name], need)]
        if len(able) < asked.nodes:
            return

        def waste(node: Node) -> tuple[int, float]:
            free = self._free[node.name]
            unasked = sum(amount > 0 and kind not in need for kind, amount in free.items())
            left = sum((free[kind] - amount) / free[kind] for kind, amount in need.items() if amount)
            return unasked, left if asked.nodes == 1 else -left  # who is spread leaves as many nodes open as can be

        chosen = sorted(able, key=waste)[: asked.nodes]
        for node in chosen:
            self._take(node, need)
        self.learners[name] = chosen[0].name
        self.others[name] = tuple(node.name for node in chosen[1:])

    def _take(self, node: Node, need: Amounts) -> None:
        free = self._free[node.name]
        for kind, amount in need.items():
            if amount:
                free[kind] -= amount

    # -------------------------------------------------------------- why not

    def result(self) -> Placement:
        missing = Counter(pool.name for name, pool in self._asked.items() if name not in self.learners)
        pools = {pool.name: pool for pool in self._asked.values()}
        shortfalls = [self._pool(index, pool, missing[pool.name]) for index, pool in enumerate(pools.values())]
        shortfalls += [self._service(service) for service in self._wanted if service.name not in self.services]
        free = {name: {kind: amount / UNIT for kind, amount in left.items()} for name, left in self._free.items()}
        found = tuple(shortfall for shortfall in shortfalls if shortfall is not None)
        return Placement(self.learners, self.services, found, free, self.others)

    def _service(self, service: Service) -> Shortfall:
        if why := misses(service.labels, self._nodes):
            of_region = not misses({key: value for key, value in service.labels.items() if key != REGION}, self._nodes)
            field = "--syncer-region" if of_region else "run.control"
            fix = f"start such a node (ray start --labels; as a --node: labels.NAME=VALUE), or correct {field}"
            return Shortfall(service.name, field, 1, why, fix)
        asked = ", ".join(f"{amount:g} {kind}" for kind, amount in service.resources.items())
        reason = f"{asked} are asked for, and no node that it may be on has so much left"
        total = sum(one.resources.get("CPU", 0.0) for one in self._wanted)
        fix = f"add a node with CPU to spare: services need {total:g} in all"
        if service.resources.keys() - {"CPU"}:
            fix = "add a node that has them to spare, or ask for less in eval.resources"
        return Shortfall(service.name, "nodes", 1, reason, fix)

    def _pool(self, index: int, pool: PoolConfig, missing: int) -> Shortfall | None:
        if not missing:
            return None
        field, asked = f"pools.{index}", self._claims[pool.name]
        eligible, where = list(self._nodes), ""
        for label, value in asked.labels.items():
            found = sorted({node.labels[label] for node in eligible if label in node.labels})
            if value not in found:
                reason = f"no node{where} has {label} = {value}; there are: {', '.join(found) or 'none'}"
                fix = _relabelled(f"{field}.{FIELDS[label]}", pool, label, bool(found))
                return Shortfall(pool.name, f"{field}.{FIELDS[label]}", missing, reason, fix)
            eligible = [node for node in eligible if bears(node, {label: value})]
            where += f"{' with' if not where else ','} {label} = {value}"
        for kind, amount in asked.resources.items():
            largest = max(eligible, key=lambda node: node.resources.get(kind, 0.0))
            offered = largest.resources.get(kind, 0.0)
            if round(offered * UNIT) < round(amount * UNIT):
                return Shortfall(
                    pool.name,
                    f"{field}.resources.{kind}",
                    missing,
                    f"one learner asks for {amount:g} {kind} on one node; the most{where} is {offered:g}"
                    + (f", on {largest.name}" if offered else ""),
                    f"ask for at most {offered:g}, or add larger nodes" if offered else f"add nodes with {kind}",
                )
        return self._crowded(field, pool, missing, eligible, where)

    def _crowded(self, field: str, pool: PoolConfig, missing: int, eligible: list[Node], where: str) -> Shortfall:
        """Each resource is there somewhere: not all of them on one node, or others have taken it."""
        need = _units(self._claims[pool.name].resources)
        placed = pool.learners - missing
        lacking = Counter(
            kind for n in eligible for kind, amount in need.items() if self._free[n.name].get(kind, 0) < amount
        )
        alone = any(_holds(_units(node.resources), need) for node in eligible)
        short = ", ".join(f"{kind} on {count} of {len(eligible)} nodes" for kind, count in lacking.most_common())
        asked = ", ".join(f"{kind}={amount:g}" for kind, amount in pool.resources.items())
        if not alone:
            reason = f"no node{where} has {asked} together; lacking: {short}"
            return Shortfall(pool.name, f"{field}.resources", missing, reason, "ask for less, or add such a node")
        if (nodes := self._claims[pool.name].nodes) > 1:
            where += f", each spread over {nodes} nodes"
        reason = f"room for {placed} of {pool.learners}{where}; lacking: {short}"
        add = f"add {asked}{where} for each of {missing} more"
        fewer = f"set {field}.learners={placed}, or " if placed else ""
        return Shortfall(pool.name, f"{field}.learners", missing, reason, fewer + add)


def _units(amounts: Mapping[str, float]) -> Amounts:
    return {kind: round(amount * UNIT) for kind, amount in amounts.items()}


def _holds(free: Amounts, need: Amounts) -> bool:
    return all(free.get(kind, 0) >= amount for kind, amount in need.items())


def _relabelled(field: str, pool: PoolConfig, label: str, others: bool) -> str:
    """What to do where no node has what a pool asks for by a label; `others`: there are other values of it."""
    if label == REGION:
        return f"give {field} one of them, or start nodes with --labels region={pool.region}"
    if label == POD_TYPE:
        return f"add nodes of a slice {pool.topology}; as a --node: topology={pool.topology}"
    return f"give {field} one of them, or add such nodes" if others else f"add such nodes, or leave {field} out"
