"""The two ways to train a recipe that `diloco compare` sets side by side.

Model, data order, inner optimizer, token budget and hardware are the recipe's in both. Ray Train trains `data_parallel`
(orchestrator/runtime/data_parallel/).
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.recipe.problems import Problem

MODES = DECOUPLED, DATA_PARALLEL = ("decoupled", "data_parallel")


def arm(recipe: Recipe) -> Recipe:
    """A resolved recipe as both ways train it: with the same hardware throughout, and without faults."""
    pools = tuple(pool.model_copy(update={"opportunistic": False}) for pool in recipe.pools)
    return recipe.model_copy(update={"pools": pools, "chaos": ChaosConfig()})


def unfit(recipe: Recipe) -> Iterator[Problem]:
    """Why this recipe cannot be compared."""
    if recipe.sync.overlap == "strict":
        yield Problem("sync.overlap", "strict", "has learners that wait for each other", 'set "free"')
    if not recipe.eval.every:
        fix = "give the syncer steps between two held-out losses, some twenty for a run"
        yield Problem("eval.every", 0, "leaves nothing to compare but first and last losses", fix)
    yield from (Problem("data_parallel", None, f"cannot train it: {reason}", fix) for reason, fix in _alike(recipe))


def _alike(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What Ray Train's workers cannot do: they are alike, with equal shares of a step and one CPU device each."""
    for pool in recipe.pools:
        if pool.joined:
            yield (f"pool {pool.name} is in a cluster of its own", "train it with diloco run alone")
        if pool.platform == "tpu" or pool.platform == "gpu" or pool.resources.get("GPU"):
            kind = "TPUs, with which it is untried" if pool.platform == "tpu" else "GPUs, which its ranks cannot share"
            yield (f"pool {pool.name} has {kind}", "train it with diloco run alone")
        if pool.slowdown > 1.0:
            yield (f"pool {pool.name} has a slowdown, and ranks wait for none", "leave it out")
        if pool.known_devices > 1:
            reason = f"pool {pool.name} has {pool.known_devices} devices a learner"
            yield (reason, "use pools of one device")
    if len({tuple(sorted(pool.resources.items())) for pool in recipe.pools}) > 1:
        reason = "its pools have different resources, and Ray Train's workers are alike"
        yield (reason, "give all pools the same resources")
    total, count = sum(each.batch_size for each in recipe.learners.values()), len(recipe.learners)
    if total % (count * recipe.inner.microbatches):
        ways = f"{count} workers" + (" and the microbatches" if recipe.inner.microbatches > 1 else "")
        fix = f"give batch sizes whose sum is a multiple of {count * recipe.inner.microbatches}"
        yield (f"a step's {total} samples cannot be shared equally by {ways}", fix)
