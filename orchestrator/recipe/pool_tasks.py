"""The tasks of learners whose pools have samples of their own."""

from __future__ import annotations

from collections.abc import Iterable

from learners.training.task import Task
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.validation import build_task


def tasks_of(recipe: Recipe, learners: Iterable[str] | None = None) -> dict[str, Task]:
    """By learner, where its [data] is not the recipe's; learners of one pool share a task.

    `learners`: names, by default all configured ones. Raises InputError as `build_task`.
    """
    tasks: dict[str, Task] = {}
    found: dict[str, Task] = {}
    for name in recipe.learners if learners is None else learners:
        pool = recipe.pool_of(name)
        if (data := recipe.data_of(pool)) != recipe.data:
            if pool.name not in tasks:
                tasks[pool.name] = build_task(recipe.model_copy(update={"data": data}))
            found[name] = tasks[pool.name]
    return found
