"""The ways to train a recipe that `diloco compare` sets side by side, each as a change of the recipe.

Model, data order, inner optimizer, token budget and hardware stay the recipe's. `data_parallel` is trained by Ray Train
(orchestrator/runtime/data_parallel/), with the recipe as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orchestrator.recipe.config import SYNCER, ChaosConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.validation import problems as problems_of
from orchestrator.runtime.data_parallel.striking import STRIKING

Plain = dict[str, Any]  # a recipe's values under its own keys


@dataclass(frozen=True)
class Mode:
    """One way to train."""

    name: str
    change: Callable[[Recipe, Plain], Plain]  # (recipe, its values) -> tables to replace

    @property
    def by_ray_train(self) -> bool:
        return self.name == "data_parallel"


# Settings that only learners which do not wait can have are switched off.
WAITING: Plain = {
    "overlap": "strict",
    "quorum": "all",
    "grace": "infinite",
    "pacing": "quorum",
    "base_window": 0,
    "adaptive": False,
}


def _decoupled(recipe: Recipe, plain: Plain) -> Plain:
    if recipe.sync.overlap == "strict":
        raise unfit("decoupled", 'its learners wait: sync.overlap = "strict"', 'set sync.overlap = "free"')
    return {}


def _diloco(recipe: Recipe, plain: Plain) -> Plain:
    """All fragments at once after H steps: one fragment, adopted where it was read."""
    return {"sync": plain["sync"] | WAITING | {"P": 1, "tau": 0}, "run": plain["run"] | {"shards": 1}}


def _streaming(recipe: Recipe, plain: Plain) -> Plain:
    return {"sync": plain["sync"] | WAITING}


def _data_parallel(recipe: Recipe, plain: Plain) -> Plain:
    """Ray Train's workers are alike: equal shares of a step's samples, one CPU device each."""
    for pool in recipe.pools:
        if pool.joined:
            raise unfit("data_parallel", f"pool {pool.name} is in a cluster of its own", "compare other modes")
        if pool.platform == "tpu" or pool.platform == "gpu" or pool.resources.get("GPU"):
            kind = "TPUs, with which it is untried" if pool.platform == "tpu" else "GPUs, which its ranks cannot share"
            raise unfit("data_parallel", f"pool {pool.name} has {kind}", "compare other modes")
        if pool.slowdown > 1.0:
            raise unfit("data_parallel", f"pool {pool.name} has a slowdown, and ranks wait for none", "leave it out")
        if pool.known_devices > 1:
            reason = f"pool {pool.name} has {pool.known_devices} devices a learner"
            raise unfit("data_parallel", reason, "use pools of one device")
    if len({tuple(sorted(pool.resources.items())) for pool in recipe.pools}) > 1:
        reason = "its pools have different resources, and Ray Train's workers are alike"
        raise unfit("data_parallel", reason, "give all pools the same resources")
    total, count = sum(each.batch_size for each in recipe.learners.values()), len(recipe.learners)
    if total % (count * recipe.inner.microbatches):
        ways = f"{count} workers" + (" and the microbatches" if recipe.inner.microbatches > 1 else "")
        fix = f"give batch sizes whose sum is a multiple of {count * recipe.inner.microbatches}"
        raise unfit("data_parallel", f"a step's {total} samples cannot be shared equally by {ways}", fix)
    return {}


CHANGES = {"decoupled": _decoupled, "data_parallel": _data_parallel, "diloco": _diloco, "streaming": _streaming}
MODES = {name: Mode(name, change) for name, change in CHANGES.items()}


@dataclass(frozen=True)
class Case:
    """A mode, without faults or under the plan."""

    mode: Mode
    chaos: bool

    @property
    def name(self) -> str:
        return f"{self.mode.name} + faults" if self.chaos else self.mode.name

    @property
    def folder(self) -> str:
        return f"{self.mode.name}-chaos" if self.chaos else self.mode.name


def unfit(mode: str, reason: str, fix: str) -> InputError:
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


def transformed(recipe: Recipe, mode: Mode, chaos: ChaosConfig | None = None) -> Recipe:
    """A resolved recipe in a mode, valid; its faults are those of `chaos` alone, which name the recipe's learners.

    Raises InputError, naming the mode and the reason, where the recipe cannot have it.
    """
    faults = chaos or ChaosConfig()
    strikes_syncer = any(fault.learner == SYNCER for fault in faults.faults)
    without = "take the syncer's faults out of the plan, or the mode out of --modes"
    if strikes_syncer and mode.by_ray_train:
        raise unfit(mode.name, "it has no syncer for the plan to strike", without)
    kinds = {fault.kind for fault in faults.faults} | set(faults.kinds if faults.mtbf_s is not None else ())
    if mode.by_ray_train and (odd := kinds - set(STRIKING)):
        fix = "take these faults out of the plan, or the mode out of --modes"
        reason = f"faults of the plan cannot strike its ranks ({', '.join(sorted(odd))}), only {' and '.join(STRIKING)}"
        raise unfit(mode.name, reason, fix)
    plain = recipe.canonical() | {"chaos": faults.model_dump(mode="json", exclude_none=True), "fleet": recipe.fleet}
    made = valid(mode.name, plain | mode.change(recipe, plain))
    if strikes_syncer and made.sync.overlap == "strict":
        raise unfit(mode.name, "a learner that waits does not survive the syncer, which the plan strikes", without)
    return made


def valid(mode: str, plain: Plain) -> Recipe:
    """The recipe of these values, where None is the default, with the same hardware in all modes. Raises InputError."""
    tables = plain | {
        "sync": {key: value for key, value in plain["sync"].items() if value is not None},
        "pools": [
            {key: value for key, value in pool.items() if value is not None} | {"opportunistic": False}
            for pool in plain["pools"]
        ],
    }
    try:
        made = Recipe.model_validate(tables)
    except ValidationError as error:
        raise unfit(mode, "; ".join(one["msg"] for one in error.errors()), "change the recipe") from error
    if found := problems_of(made):
        reasons = [Problem("--modes", mode, f"this recipe cannot have it: {one}", one.fix) for one in found]
        raise InputError(reasons)
    return made


def reference(modes: Sequence[Mode]) -> Mode:
    """The mode that differences are taken against: data_parallel where it is compared, else the first."""
    return MODES["data_parallel"] if MODES["data_parallel"] in modes else modes[0]
