"""The plan of a run: placement, traffic, memory, failures and cost of a recipe, computed before anything starts.

`as_json` is what `diloco plan --json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.planner.forecast import Forecast
from orchestrator.planner.sizing.capacity import Placement
from orchestrator.planner.sizing.costs import Cost
from orchestrator.planner.sizing.fault_tolerance import Expected, FaultOutcome
from orchestrator.planner.sizing.memory import Memory
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.nodes import Node
from orchestrator.planner.sizing.rates import rates
from orchestrator.planner.sizing.traffic import FragmentRow, LinkLoad, Traffic
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem


@dataclass(frozen=True)
class PlanContext:
    """The nodes and folders that a plan is made for."""

    nodes: Sequence[Node]
    source: Literal["declared", "this machine", "cluster"]
    store: str  # the run's folder
    shared_store: bool  # it is on a network file system
    forecast: bool = True  # or none is made

    @property
    def local(self) -> bool:
        """One node on which `diloco run` starts Ray by itself: regions do not bind."""
        return self.source == "this machine"


@dataclass(frozen=True)
class StepPace:
    """Length of the run in steps, rounds, tokens and seconds."""

    syncer_steps: int  # T; for a token budget, with every learner stepping once in each
    rounds: float  # T / H
    step_tokens: int  # of one step of every learner
    step_s: float | None
    run_s: float | None  # of stepping alone


@dataclass(frozen=True)
class Plan:
    """Recipe, sizes, places and flows, and what is wrong with them (checks.py)."""

    recipe: Recipe
    context: PlanContext
    shapes: Shapes
    fragments: tuple[FragmentRow, ...]
    placement: Placement
    regions: Mapping[str, str | None]  # of each learner and the syncer, as far as it is known
    pace: StepPace
    traffic: Traffic
    memory: dict[str, Memory]
    loads: tuple[LinkLoad, ...]
    round_steps: float | None  # inner steps of a round; None: the length of a step, or a link, is not known
    expected: Expected
    fault_outcomes: tuple[FaultOutcome, ...]
    forecast: Forecast | None  # None: it was not asked for, or is of no use in lock-step
    cost: Cost
    limits: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the run can be placed within all limits."""
        return not self.limits

    @property
    def pools(self) -> dict[str, int]:
        return {pool.name: pool.learners for pool in self.recipe.pools}

    @property
    def opportunistic(self) -> dict[str, int]:
        """Pools that take what is there, and the fewest learners for which they need a place."""
        return {pool.name: pool.min for pool in self.recipe.pools if pool.opportunistic}

    @property
    def fewest(self) -> dict[str, int]:
        """Learners of each pool once it is scaled down to its `min`. Where no pool has one: as they start.

        An opportunistic pool comes down to its min by itself.
        """
        mins = {pool.name: pool.min for pool in self.recipe.pools}
        return mins if any(mins.values()) else self.pools | dict.fromkeys(self.opportunistic, 0)

    @property
    def waiting(self) -> set[str]:
        """Opportunistic pools that find no place for all they begin with, while there is one for their min and K."""
        short = {one.who: one.units for one in self.placement.shortfalls}
        return {
            pool
            for pool, least in self.opportunistic.items()
            if self.pools[pool] - short.get(pool, 0) >= least and len(self.placement.learners) >= self.recipe.quorum
        } & short.keys()

    def on_node(self, node: Node) -> list[str]:
        """The learners and services that are placed there."""
        learners = [name for name, places in self.placement.learners.items() if node.name in places]
        return learners + [name for name, place in self.placement.services.items() if place == node.name]


JSON_FIELDS = "fragments", "pace", "round_steps", "traffic", "expected", "fault_outcomes", "forecast", "cost"


def as_json(plan: Plan, commands: Sequence[str]) -> dict[str, Any]:
    """The whole plan in JSON values. Bytes, seconds, bits per second; what is not known is null."""
    recipe, everything = plan.recipe, asdict(plan)
    return {
        "name": recipe.name,
        "config_hash": recipe.config_hash,
        "ok": plan.ok,
        "recipe": recipe.canonical(),
        "source": plan.context.source,
        "nodes": everything["context"]["nodes"],
        "placement": everything["placement"],
        "model": {"elements": plan.shapes.elements, "parameter_bytes": plan.shapes.parameter_bytes},
        **{name: everything[name] for name in JSON_FIELDS},
        "memory": {
            name: {"host_bytes": one.host_bytes, "store_bytes": one.store_bytes, "device_bytes": one.device_bytes}
            | {"parts": [asdict(part) for part in one.parts]}
            for name, one in plan.memory.items()
        },
        "links": [asdict(load) | {"learners": load.learners, "share": load.share} for load in plan.loads],
        "constants": {name: constant._asdict() for name, constant in rates(recipe).items()},
        "limits": [problem.record for problem in plan.limits],
        "warnings": [problem.record for problem in plan.warnings],
        "commands": list(commands),
    }
