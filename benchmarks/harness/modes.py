"""A recipe in a mode for a study: every mode is a lock-step run of our machines.

`decoupled` is the recipe itself. In two modes learners wait for each other: in diloco for the merge of the whole model
every H steps, in streaming for each fragment tau steps after its read. Three have one learner: data_parallel, plain
training on the batch of all; one_outer, the same with the outer optimizer; single, the
recipe's first learner alone, with its share of the tokens.
"""

from __future__ import annotations

from typing import Any

from orchestrator.recipe.config import FleetConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.validation import validate

Plain = dict[str, Any]  # a recipe's values under its own keys
# Settings that only learners which do not wait can have are switched off.
WAITING: Plain = {
    "overlap": "strict",
    "quorum": "all",
    "grace": "infinite",
    "pacing": "quorum",
    "base_window": 0,
    "adaptive": False,
}

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
MODES = ("decoupled", "diloco", "streaming", "data_parallel", "one_outer", "single")


def transformed(recipe: Recipe, mode: str) -> Recipe:
    """A resolved recipe without faults, in a mode. Raises InputError."""
    if mode not in MODES:
        near = nearest(mode, MODES)
        fix = f"did you mean {near}?" if near else "choose among them"
        raise InputError([Problem("--mode", mode, f"is no mode; known are {', '.join(MODES)}", fix)])
    pools = [pool | {"opportunistic": False} for pool in recipe.canonical()["pools"]]
    plain = recipe.canonical() | {"fleet": FleetConfig(), "chaos": {}, "pools": pools}
    if mode in ("diloco", "streaming"):
        whole = {"P": 1, "tau": 0} if mode == "diloco" else {}
        plain |= {"sync": plain["sync"] | WAITING | whole, "run": plain["run"] | {"shards": 1}}
    elif mode != "decoupled":
        plain |= _alone(recipe, plain, mode)
    made = Recipe.model_validate(plain)
    validate(made)
    return made


def _alone(recipe: Recipe, plain: Plain, mode: str) -> Plain:
    """Tables for one learner."""
    pool = plain["pools"][0] | {"learners": 1, "min": 0, "max": 1}
    total = sum(each.batch_size for each in recipe.learners.values())
    changed: Plain = {}
    if mode == "single":
        if recipe.budget.tokens is not None:
            share = recipe.budget.tokens * recipe.pools[0].batch_size // total
            changed["budget"] = {"tokens": max(1, share)}
    else:  # one that takes as long as the slowest
        pool |= {"batch_size": total, "slowdown": max(each.slowdown for each in recipe.pools)}
    changed["pools"] = [pool]
    if mode == "one_outer":
        return changed | {"sync": plain["sync"] | {"quorum": 1}}
    return changed | {"sync": plain["sync"] | EVERY_STEP, "outer": NO_OUTER, "run": plain["run"] | {"shards": 1}}
