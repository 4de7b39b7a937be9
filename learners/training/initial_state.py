"""The parameters that a run starts from, described so that each process can compute them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learners.config import DataConfig, WarmStart
from outer.config import SyncConfig
from outer.protocol.fragments import Fragment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class InitialState:
    """Calling it builds the task; needs JAX only then.

    Returns (fragments, float32[n] for each, the task's merge rules by path pattern, what status pages need to know of
    the task: `tokens_per_sample`, `loss_unit`, and `left_out`, the leaves that are in no fragment).
    """

    task: str
    model: Mapping[str, Any]
    data: DataConfig
    seed: int
    sync: SyncConfig
    warm_start: WarmStart | None = None

    def __call__(self) -> tuple[tuple[Fragment, ...], list[NDArray[np.float32]], Mapping[str, str], dict[str, Any]]:
        from learners.training.task import load, loss_unit
        from learners.training.tree import deal, initial_parameters, left_out

        task = load(self.task, self.data, self.seed, dict(self.model))
        fragments = deal(task, self.sync)
        patterns: Mapping[str, str] = getattr(task, "merge_rules", {})
        described = {"tokens_per_sample": task.tokens(1), "loss_unit": loss_unit(task), "left_out": left_out(task)}
        return fragments, initial_parameters(task, fragments, self.seed, self.warm_start), patterns, described
