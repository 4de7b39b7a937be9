"""A plan before it is judged: all that the rules of limits.py, links.py and advice.py look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.fit import Placement
from orchestrator.planner.sizing.link_load import LinkLoad
from orchestrator.planner.sizing.memory import Memory
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.nodes import GIB, Node
from orchestrator.planner.sizing.traffic import FragmentRow, Traffic
from orchestrator.recipe.config import Recipe


@dataclass(frozen=True)
class Draft:
    """Recipe, sizes, places and flows; no judgement."""

    recipe: Recipe
    shapes: Shapes
    rows: tuple[FragmentRow, ...]
    traffic: Traffic
    memory: Mapping[str, Memory]
    nodes: Sequence[Node]
    placement: Placement
    at_max: Placement | None  # with every pool as large as it may grow; None: none may
    regions: Mapping[str, str | None]  # of each learner, as far as it is known
    local: bool  # the plan is for `diloco run` without a cluster
    cores: int | None  # of this machine; None: not where it runs
    step_s: float | None
    syncer_steps: int
    loads: Sequence[LinkLoad]  # between the recipe's regions
    shared_store: bool  # every node can reach the run's folder
    store: str

    @property
    def pools(self) -> dict[str, int]:
        return {pool.name: pool.learners for pool in self.recipe.pools}

    @property
    def fewest(self) -> dict[str, int]:
        """Learners of each pool once it is scaled down to its `min`. Where no pool has one: as they start.

        An opportunistic pool comes down to its min by itself.
        """
        mins = {pool.name: pool.min for pool in self.recipe.pools}
        return mins if any(mins.values()) else self.pools | dict.fromkeys(self.opportunistic, 0)

    @property
    def opportunistic(self) -> dict[str, int]:
        """Pools that take what is there, and the fewest learners for which they need a place."""
        return {pool.name: pool.min for pool in self.recipe.pools if pool.opportunistic}

    @property
    def waiting(self) -> set[str]:
        """Opportunistic pools that find no place for all they begin with, while there is one for their min and K."""
        short = {one.who: one.units for one in self.placement.shortfalls}
        return {
            pool
            for pool, least in self.opportunistic.items()
            if self.pools[pool] - short.get(pool, 0) >= least and len(self.placement.learners) >= self.recipe.quorum
        } & short.keys()

    def node_of(self, name: str) -> Node | None:
        place = self.placement.learners.get(name) or self.placement.services.get(name)
        return next((node for node in self.nodes if node.name == place), None)


def gib(size: float) -> str:
    """Bytes in words, to three digits."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:g} bytes"


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
