"""The parameters that a run starts from, described so that each process can compute them itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from learners.config import DataConfig, WarmStart
from outer.config import SyncConfig
from outer.first_values import FirstValues


@dataclass(frozen=True)
class InitialState:
    """Calling it builds the task; needs JAX only then. `wanted`: of which fragments it gives the values.

    Returns (fragments, float32[n] for each of them, else None, the task's merge rules by path pattern, what status
    pages need to know of the task: `tokens_per_sample`, `loss_unit`, and `left_out`, the leaves in no fragment).
    """

    task: str
    model: Mapping[str, Any]
    data: DataConfig
    seed: int
    sync: SyncConfig
    warm_start: WarmStart | None = None

    def __call__(self, wanted: Callable[[int], bool]) -> FirstValues:
        from learners.training.task import load, loss_unit
        from learners.training.tree import deal, initial_parameters, left_out

        task = load(self.task, self.data, self.seed, dict(self.model))
        fragments = deal(task, self.sync)
        patterns: Mapping[str, str] = getattr(task, "merge_rules", {})
        described = {"tokens_per_sample": task.tokens(1), "loss_unit": loss_unit(task), "left_out": left_out(task)}
        here = [fragment for fragment in fragments if wanted(fragment.index)]
        thetas = iter(initial_parameters(task, here, self.seed, self.warm_start))
        return fragments, [next(thetas) if wanted(each.index) else None for each in fragments], patterns, described
