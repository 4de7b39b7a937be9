"""A recipe as plain training: one learner with the batch of all, whose values are merged after each step and adopted.

With SGD at rate 1 and no momentum that changes no bit.
"""

from __future__ import annotations

from orchestrator.recipe.config import FleetConfig, Recipe

SYNC = {"P": 1, "H": 1, "tau": 0, "overlap": "strict", "quorum": "all", "grace": "infinite", "pacing": "quorum"}
OUTER = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, "merge": "avg", "granularity": "tensor"}


def plain(recipe: Recipe) -> Recipe:
    """`recipe`: resolved; its learners have one pace."""
    made = recipe.canonical()
    total = sum(each.batch_size for each in recipe.learners.values())
    pool = made["pools"][0] | {"learners": 1, "min": 0, "max": 1, "batch_size": total}
    made |= {"fleet": FleetConfig(), "chaos": {}, "pools": [pool], "run": made["run"] | {"shards": 1}}
    return Recipe.model_validate(made | {"sync": SYNC, "outer": OUTER})
