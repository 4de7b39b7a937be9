"""Sizes and counts of the recipe's task, found without making a single tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.recipe.config import Recipe
from outer.protocol.fragments import Fragment


@dataclass(frozen=True)
class Shapes:
    """All of it in plain numbers; the planner itself needs no JAX."""

    fragments: tuple[Fragment, ...]
    parameter_bytes: int  # one copy, in the dtypes that a learner keeps
    inner_state_bytes: int  # the inner optimizer's, of one learner
    outer_state_bytes: tuple[int, ...]  # the outer optimizer's and, with a chain, exact parameters, by fragment
    step_tokens: Mapping[str, int]  # tokens of one step of a learner, by pool
    compute_bytes: int = 0  # the copy that the loss is computed with, if its dtypes are others
    summed_bytes: int = 0  # gradients summed over microbatches
    unstepped_bytes: int = 0  # of parameter_bytes: leaves that the inner optimizer does not step
    unsent_bytes: int = 0  # of parameter_bytes: leaves that are in no fragment
    shardable: bool = False  # the task says how its parameters may lie on several devices

    @property
    def elements(self) -> int:
        return sum(fragment.size for fragment in self.fragments)


def shapes_of(recipe: Recipe) -> Shapes:
    """The shapes of a validated recipe. Raises what the task's own code raises."""
    from learners.training import task, tree
    from outer.numeric.chain import EXACT
    from outer.numeric.optimizer import OuterOptimizer

    built = task.load(recipe.task, recipe.data, recipe.seed, dict(recipe.model))
    fragments = tree.deal(built, recipe.sync)
    outer = OuterOptimizer(recipe.outer)
    exact = 0 if recipe.sync.downlink == EXACT else 4  # bytes: float32 beside what is published
    return Shapes(
        fragments=fragments,
        parameter_bytes=tree.parameter_bytes(built, recipe.inner),
        inner_state_bytes=tree.inner_state_bytes(built, recipe.inner),
        outer_state_bytes=tuple(outer.state_bytes(fragment.stepped) + exact * fragment.size for fragment in fragments),
        step_tokens={pool.name: built.tokens(pool.batch_size) for pool in recipe.pools},
        compute_bytes=tree.compute_bytes(built, recipe.inner),
        summed_bytes=tree.summed_bytes(built, recipe.inner),
        unstepped_bytes=tree.parameter_bytes(built, recipe.inner, ("mean", "local", "frozen")),
        unsent_bytes=tree.parameter_bytes(built, recipe.inner, ("local", "frozen")),
        shardable=hasattr(built, "sharding"),
    )
