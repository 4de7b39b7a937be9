"""A recipe in a mode of `diloco compare` for a study: every mode is a lock-step run of our machines.

Three modes have one learner: data_parallel, plain training on the batch of all; one_outer, the same with the outer
optimizer; single, one learner of the recipe alone, with its share of the tokens.
"""

from __future__ import annotations

from orchestrator.compare.modes import WAITING, Plain, chosen, valid
from orchestrator.compare.modes import transformed as in_mode
from orchestrator.recipe.config import FleetConfig, Recipe

# The one learner's values are merged after each step and are adopted as they are: with SGD at rate 1 and no momentum
# that changes no bit of plain training.
EVERY_STEP: Plain = WAITING | {
    "P": 1,
    "H": 1,
    "tau": 0,
    "codec": "fp32",
    "downlink": "fp32",
    "error_feedback": None,
    "adopt": "overwrite",
    "weights": "equal",
}
NO_OUTER: Plain = {
    "optimizer": "sgd",
    "lr": 1.0,
    "momentum": 0.0,
    "options": {},
    "merge": "avg",
    "granularity": "tensor",
}
ONE_LEARNER = ("data_parallel", "one_outer", "single")


def transformed(recipe: Recipe, mode: str) -> Recipe:
    """A resolved recipe without faults, in a mode. Raises InputError."""
    if mode not in ONE_LEARNER:
        return in_mode(recipe, chosen(mode)[0])
    plain = recipe.canonical() | {"fleet": FleetConfig()}
    pool = plain["pools"][0] | {"learners": 1, "min": 0, "max": 1}
    total = sum(each.batch_size for each in recipe.learners.values())
    if mode == "single":
        if recipe.budget.tokens is not None:
            share = recipe.budget.tokens * recipe.pools[0].batch_size // total
            plain["budget"] = {"tokens": max(1, share)}
    else:  # one that takes as long as the slowest
        pool |= {"batch_size": total, "slowdown": max(each.slowdown for each in recipe.pools)}
    plain["pools"] = [pool]
    if mode == "one_outer":
        plain["sync"] |= {"quorum": 1}
    else:
        plain |= {"sync": plain["sync"] | EVERY_STEP, "outer": NO_OUTER, "run": plain["run"] | {"shards": 1}}
    return valid(mode, plain)
