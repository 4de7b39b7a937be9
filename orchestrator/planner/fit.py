"""Who runs where: learner units and services packed onto nodes, and why some find no place.

A packing found here exists; Ray decides by its own order, and can miss a packing that only just fits. Amounts
are counted in Ray's own unit, a ten-thousandth, so that nothing is ever over-committed by a rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config import PoolConfig
from orchestrator.planner.nodes import ACCELERATOR, Node

UNIT = 10_000  # Ray counts resources in this fraction
# CPUs that the run's own actors ask for. The tests hold them against the actors' constants.
SERVICE_CPUS = {"orchestrator": 0.1, "syncer": 0.5, "evaluator": 0.5, "chaos": 0.1}
HAND_CPUS = 0.01  # on each node with a learner, when something there has to be ended or frozen

Amounts = dict[str, int]  # in units


@dataclass(frozen=True)
class Service:
    """An actor of the run that is no learner."""

    name: str
    cpus: float
    region: str | None = None  # only there; None: anywhere


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


def demand(pool: PoolConfig) -> dict[str, float]:
    """What the placement group of one learner unit asks of one node."""
    marker = {f"{ACCELERATOR}{pool.accelerator}": 0.001} if pool.accelerator else {}
    return dict(pool.resources) | marker


def services(chaos: bool, region: str | None = None) -> list[Service]:
    """The run's services. `region`: where the syncer is wanted; None: anywhere."""
    return [
        Service(name, cpus, region if name == "syncer" else None)
        for name, cpus in SERVICE_CPUS.items()
        if chaos or name != "chaos"
    ]


def fit(
    learners: Mapping[str, PoolConfig], wanted: Sequence[Service], nodes: Sequence[Node], anywhere: bool
) -> Placement:
    """Place as many as this finds room for. `anywhere`: regions do not bind, as on a single local node."""
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
        self.services: dict[str, str] = {}
        self._wanted, self._nodes, self._anywhere, self._asked = wanted, nodes, anywhere, learners
        self._free = {node.name: _units(node.resources) for node in nodes}
        if services_first:
            self._place_services()
        for name, pool in sorted(learners.items(), key=lambda item: self._constraint(item[1])):
            self._place_learner(name, pool)
        if not services_first:
            self._place_services()

    def _constraint(self, pool: PoolConfig) -> tuple[int, float]:
        need = _units(demand(pool))
        able = [node for node in self._eligible(pool.region) if _holds(_units(node.resources), need)]
        share = max(
            (amount / max(1, _units(node.resources).get(kind, 0)) for node in able for kind, amount in need.items()),
            default=0.0,
        )
        return len(able), -share

    def _eligible(self, region: str | None) -> list[Node]:
        return [node for node in self._nodes if self._anywhere or region is None or node.region == region]

    def _place_services(self) -> None:
        for service in self._wanted:
            need = _units({"CPU": service.cpus})
            node = next((n for n in self._eligible(service.region) if _holds(self._free[n.name], need)), None)
            if node is not None:
                self._take(node, need)
                self.services[service.name] = node.name

    def _place_learner(self, name: str, pool: PoolConfig) -> None:
        need = _units(demand(pool))
        able = [node for node in self._eligible(pool.region) if _holds(self._free[node.name], need)]
        if not able:
            return

        def waste(node: Node) -> tuple[int, float]:
            free = self._free[node.name]
            unasked = sum(amount > 0 and kind not in need for kind, amount in free.items())
            return unasked, sum((free[kind] - amount) / free[kind] for kind, amount in need.items() if amount)

        chosen = min(able, key=waste)
        self._take(chosen, need)
        self.learners[name] = chosen.name

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
        return Placement(self.learners, self.services, found, free)

    def _service(self, service: Service) -> Shortfall:
        if service.region and not self._eligible(service.region):
            regions = _listed(self._nodes)
            return Shortfall(
                service.name,
                "--syncer-region",
                1,
                f"no node has region = {service.region}; there are: {regions}",
                "name one of them, or leave it out",
            )
        reason = f"{service.cpus:g} CPU are asked for, and no node has so much left"
        return Shortfall(
            service.name,
            "nodes",
            1,
            reason,
            f"add a node with CPU to spare: services need {sum(one.cpus for one in self._wanted):g} in all",
        )

    def _pool(self, index: int, pool: PoolConfig, missing: int) -> Shortfall | None:
        if not missing:
            return None
        field, need = f"pools.{index}", demand(pool)
        where = f" in region {pool.region}" if pool.region and not self._anywhere else ""
        eligible = self._eligible(pool.region)
        if not eligible:
            return Shortfall(
                pool.name,
                f"{field}.region",
                missing,
                f"no node has region = {pool.region}; there are: {_listed(self._nodes)}",
                f"give {field}.region one of them, or start nodes with --labels region={pool.region}",
            )
        if pool.accelerator and not any(pool.accelerator in node.accelerators for node in eligible):
            kinds = sorted({kind for node in eligible for kind in node.accelerators})
            return Shortfall(
                pool.name,
                f"{field}.accelerator",
                missing,
                f"no node{where} has the accelerator {pool.accelerator}; there are: {', '.join(kinds) or 'none'}",
                f"give {field}.accelerator one of them, or leave it out" if kinds else "add such nodes",
            )
        for kind, amount in need.items():
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
        need = _units(demand(pool))
        placed = pool.learners - missing
        lacking = Counter(
            kind for n in eligible for kind, amount in need.items() if self._free[n.name].get(kind, 0) < amount
        )
        alone = any(_holds(_units(node.resources), need) for node in eligible)
        short = ", ".join(f"{kind} on {count} of {len(eligible)} nodes" for kind, count in lacking.most_common())
        asked = ", ".join(f"{kind}={amount:g}" for kind, amount in demand(pool).items() if ":" not in kind)
        if not alone:
            reason = f"no node{where} has {asked} together; lacking: {short}"
            return Shortfall(pool.name, f"{field}.resources", missing, reason, "ask for less, or add such a node")
        reason = f"room for {placed} of {pool.learners}{where}; lacking: {short}"
        add = f"add {asked}{where} for each of {missing} more"
        fewer = f"set {field}.learners={placed}, or " if placed else ""
        return Shortfall(pool.name, f"{field}.learners", missing, reason, fewer + add)


def _units(amounts: Mapping[str, float]) -> Amounts:
    return {kind: round(amount * UNIT) for kind, amount in amounts.items()}


def _holds(free: Amounts, need: Amounts) -> bool:
    return all(free.get(kind, 0) >= amount for kind, amount in need.items())


def _listed(nodes: Sequence[Node]) -> str:
    return ", ".join(sorted({node.region for node in nodes if node.region})) or "none"
