"""The ways to train a recipe that `diloco compare` sets side by side, each as a change of the recipe.

Model, data order, inner optimizer, token budget and hardware stay the recipe's; `single`, which has one learner's share
of hardware and tokens, is the exception. In the harness all are lock-step runs of our machines. In real runs
`data_parallel` is trained by Ray Train instead (orchestrator/runtime/data_parallel/), with the recipe as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orchestrator.recipe.config import SYNCER, ChaosConfig, FleetConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.validation import problems as problems_of
from orchestrator.runtime.data_parallel.striking import STRIKING

Plain = dict[str, Any]  # a recipe's values under its own keys


@dataclass(frozen=True)
class Mode:
    """One way to train."""

    name: str
    words: str
    change: Callable[[Recipe, Plain, bool], Plain]  # (recipe, its values, whether in the harness) -> tables to replace
    one_learner: bool = False
    whole_budget: bool = True  # whether it trains on all tokens of the recipe's budget

    def timed(self, harness: bool) -> bool:
        """Whether its times mean anything: a real `single` waits for its syncer at every step."""
        return harness or self.name != "single"


# Settings that only learners which do not wait can have are switched off.
_WAITING: Plain = {
    "overlap": "strict",
    "quorum": "all",
    "grace": "infinite",
    "pacing": "quorum",
    "base_window": 0,
    "adaptive": False,
}
# The one learner's values are merged after each step and are adopted as they are: with SGD at rate 1 and no momentum
# that changes no bit of plain training.
_EVERY_STEP: Plain = _WAITING | {
    "P": 1,
    "H": 1,
    "tau": 0,
    "codec": "fp32",
    "downlink": "fp32",
    "error_feedback": None,
    "adopt": "overwrite",
    "weights": "equal",
}
_NO_OUTER: Plain = {
    "optimizer": "sgd",
    "lr": 1.0,
    "momentum": 0.0,
    "options": {},
    "merge": "avg",
    "granularity": "tensor",
}


def _decoupled(recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    if recipe.sync.overlap == "strict":
        raise _unfit("decoupled", 'its learners wait: sync.overlap = "strict"', 'set sync.overlap = "free"')
    return {}


def _diloco(recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    """All fragments at once after H steps: one fragment, adopted where it was read."""
    return {"sync": plain["sync"] | _WAITING | {"P": 1, "tau": 0}, "run": plain["run"] | {"shards": 1}}


def _streaming(recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    return {"sync": plain["sync"] | _WAITING}


def _single(recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    """The first pool's first learner. It has its share of the tokens: as many steps as it has in the recipe's run."""
    pool = recipe.pools[0]
    budget = plain["budget"]
    if recipe.budget.tokens is not None:
        tokens = recipe.budget.tokens * pool.batch_size // sum(each.batch_size for each in recipe.learners.values())
        budget = {"tokens": max(1, tokens)}
    alone = plain["pools"][0] | {"learners": 1, "min": 0, "max": 1}
    return _one(recipe, plain, alone) | _plain_training(plain) | {"budget": budget}


def _one_outer(recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    alone = _one(recipe, plain, _all_hardware("one_outer", recipe, plain, harness))
    return alone | {"sync": plain["sync"] | {"quorum": 1}}


def _data_parallel(recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    """In the harness one learner with the batch of all, which takes as long as the slowest of them."""
    if harness:
        alone = _one(recipe, plain, _all_hardware("data_parallel", recipe, plain, harness))
        return alone | _plain_training(plain)
    _equal_shares(recipe)
    return {}


MODES = {
    mode.name: mode
    for mode in (
        Mode("decoupled", "the recipe as it is: nobody waits", _decoupled),
        Mode("data_parallel", "one model, the batch of all learners in each step", _data_parallel, True),
        Mode("diloco", "all wait for the merge of the whole model every H steps", _diloco),
        Mode("streaming", "all wait for each fragment tau steps after its read", _streaming),
        Mode("one_outer", "one learner with the batch of all, and the outer optimizer", _one_outer, True),
        Mode("single", "one learner alone: its share of hardware and tokens", _single, True, whole_budget=False),
    )
}


def _plain_training(plain: Plain) -> Plain:
    run = plain["run"] | {"shards": 1}
    return {"sync": plain["sync"] | _EVERY_STEP, "outer": _NO_OUTER, "run": run}


def _one(recipe: Recipe, plain: Plain, pool: Plain) -> Plain:
    """One learner, at which every fault of a learner is aimed."""
    name = f"learner-{pool['name']}-0"
    faults = [
        fault if fault["learner"] in ("any", SYNCER) else fault | {"learner": name}
        for fault in plain["chaos"]["faults"]
    ]
    return {"pools": [pool], "chaos": plain["chaos"] | {"faults": faults}, "fleet": FleetConfig()}


def _all_hardware(mode: str, recipe: Recipe, plain: Plain, harness: bool) -> Plain:
    """A pool of one learner with the batch, and in a real run the hardware, of all."""
    total = sum(each.batch_size for each in recipe.learners.values())
    slowdown = max(pool.slowdown for pool in recipe.pools)
    pool: Plain = plain["pools"][0] | {
        "learners": 1,
        "min": 0,
        "max": 1,
        "batch_size": total,
        "slowdown": slowdown,
    }
    if harness or len(recipe.learners) == 1:
        return pool
    if len(recipe.pools) > 1 or recipe.pools[0].processes > 1:
        what = f"{len(recipe.pools)} pools" if len(recipe.pools) > 1 else "learners of several processes"
        fix = "compare it with --harness, or give one pool, of learners of one process"
        raise _unfit(mode, f"one learner cannot have the hardware of {what}", fix)
    first, count = recipe.pools[0], len(recipe.learners)
    resources = {kind: amount * count for kind, amount in first.resources.items()}
    return pool | {"resources": resources, "devices": first.known_devices * count}


def _equal_shares(recipe: Recipe) -> None:
    """Ray Train's workers are alike: equal shares of a step's samples, one device each."""
    for pool in recipe.pools:
        if pool.platform == "tpu":
            raise _unfit("data_parallel", f"pool {pool.name} has TPUs, with which it is untried", "use --harness")
        if pool.platform == "gpu" or pool.resources.get("GPU"):  # Ray Train shows all ranks of a host the first one
            raise _unfit("data_parallel", f"pool {pool.name} has GPUs, which its ranks cannot share", "use --harness")
        if pool.known_devices > 1:
            fix = "compare it with --harness, or use pools of one device"
            raise _unfit("data_parallel", f"pool {pool.name} has {pool.known_devices} devices a learner", fix)
    if len({tuple(sorted(pool.resources.items())) for pool in recipe.pools}) > 1:
        fix = "compare it with --harness, or give all pools the same resources"
        raise _unfit("data_parallel", "its pools have different resources, and Ray Train's workers are alike", fix)
    total, count = sum(each.batch_size for each in recipe.learners.values()), len(recipe.learners)
    if total % (count * recipe.inner.microbatches):
        ways = f"{count} workers" + (" and the microbatches" if recipe.inner.microbatches > 1 else "")
        fix = f"give batch sizes whose sum is a multiple of {count * recipe.inner.microbatches}, or use --harness"
        raise _unfit("data_parallel", f"a step's {total} samples cannot be shared equally by {ways}", fix)


def _unfit(mode: str, reason: str, fix: str) -> InputError:
    return InputError([Problem("--modes", mode, f"this recipe cannot have it: {reason}", fix)])


# ------------------------------------------------------------------ for the command


def chosen(text: str) -> list[Mode]:
    """The modes of a list with commas, each once. Raises InputError that names each unknown one and the nearest."""
    names = dict.fromkeys(part.strip() for part in text.split(","))
    found = []
    for name in names:
        if name not in MODES:
            near = nearest(name, MODES)
            fix = f"did you mean {near}?" if near else "choose among them"
            found.append(Problem("--modes", name, f"is no mode; known are {', '.join(MODES)}", fix))
    if found:
        raise InputError(found)
    return [MODES[name] for name in names]


def transformed(recipe: Recipe, mode: Mode, harness: bool, chaos: ChaosConfig | None = None) -> Recipe:
    """A resolved recipe in a mode, valid; its faults are those of `chaos` alone, which name the recipe's learners.

    Raises InputError, naming the mode and the reason, where the recipe cannot have it.
    """
    faults = chaos or ChaosConfig()
    plain = recipe.canonical() | {"chaos": faults.model_dump(mode="json", exclude_none=True)}
    if mode.name == "single" and faults.active:
        plain["chaos"] = _own_share(recipe, plain["chaos"])
    strikes_syncer = not harness and any(fault.learner == SYNCER for fault in faults.faults)
    without = "take the syncer's faults out of the plan, or the mode out of --modes"
    if strikes_syncer and mode.name == "data_parallel":
        raise _unfit(mode.name, "it has no syncer for the plan to strike", without)
    if mode.name == "data_parallel" and not harness and (odd := _kinds(faults) - set(STRIKING)):
        fix = "take these faults out of the plan, or the mode out of --modes"
        reason = f"faults of the plan cannot strike its ranks ({', '.join(sorted(odd))}), only {' and '.join(STRIKING)}"
        raise _unfit(mode.name, reason, fix)
    changed = plain | {"fleet": recipe.fleet} | mode.change(recipe, plain, harness)
    for pool in changed["pools"]:
        pool["opportunistic"] = False  # all modes have the same hardware
    for table in ("sync", "pools"):
        tables = changed[table] if table == "pools" else [changed[table]]
        for each in tables:
            for key in [key for key, value in each.items() if value is None]:
                del each[key]
    try:
        made = Recipe.model_validate(changed)
    except ValidationError as error:
        raise _unfit(mode.name, "; ".join(one["msg"] for one in error.errors()), "change the recipe") from error
    if strikes_syncer and made.sync.overlap == "strict":
        raise _unfit(mode.name, "a learner that waits does not survive the syncer, which the plan strikes", without)
    if found := problems_of(made):
        reasons = [Problem("--modes", mode.name, f"this recipe cannot have it: {one}", one.fix) for one in found]
        raise InputError(reasons)
    return made


def _kinds(chaos: ChaosConfig) -> set[str]:
    return {fault.kind for fault in chaos.faults} | set(chaos.kinds if chaos.mtbf_s is not None else ())


def _own_share(recipe: Recipe, chaos: Plain) -> Plain:
    """The faults that strike the learner which is left, and its share of random ones."""
    kept = (recipe.pools[0].names(1)[0], SYNCER)
    share = {"mtbf_s": chaos["mtbf_s"] * len(recipe.learners)} if "mtbf_s" in chaos else {}
    return chaos | share | {"faults": [fault for fault in chaos["faults"] if fault["learner"] in kept]}


def reference(modes: Sequence[Mode], name: str | None) -> Mode:
    """The mode that differences are taken against: data_parallel where it is compared, else the first."""
    if name is None:
        return MODES["data_parallel"] if MODES["data_parallel"] in modes else modes[0]
    if name not in MODES or MODES[name] not in modes:
        known = ", ".join(mode.name for mode in modes)
        raise InputError([Problem("--against", name, f"is not compared; compared are {known}", "add it to --modes")])
    return MODES[name]
