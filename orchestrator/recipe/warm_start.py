"""Whether the parameters that a recipe starts from fit its task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learners.training import weights
from learners.training.models import huggingface
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem
from outer.protocol.fragments import Tensor


def misfits(recipe: Recipe, task: Any, named: weights.Named, tensors: Sequence[Tensor]) -> Iterator[Problem]:
    """Every difference between the tensors of `init_from` and those of the task.

    A Hugging Face folder also says what no shape shows, such as the base of rotary positions: each [model] key that
    differs is named with the folder's value.
    """
    folder = Path(str(recipe.init_from)).expanduser()
    if huggingface.is_folder(folder):
        if not (settled := getattr(getattr(task, "config", None), "settled", None)):
            message = "cannot start from a Hugging Face folder"
            yield Problem("task", recipe.task, message, f'set task = "{huggingface.TASK}"')
            return
        has, wanted = settled(task.vocabulary), huggingface.model_table(folder)
        if wrong := [key for key, value in wanted.items() if has[key] != value]:
            for key in wrong:
                value = str(wanted[key]).lower()  # a number or a bool, as TOML writes them
                message = f"is {wanted[key]} in init_from's {huggingface.CONFIG}"
                yield Problem(f"model.{key}", has[key], message, f"set model.{key} = {value}")
            return
    if differences := weights.differences(named, tensors):
        fix = "give the parameters of the same model, or make [model] what it was for them"
        message = f"does not fit the task's parameters: {', '.join(differences)}"
        yield Problem("init_from", recipe.init_from, message, fix)
