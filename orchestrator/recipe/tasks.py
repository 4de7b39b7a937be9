"""The task that a recipe names, and the same with the samples of held-out sets."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
from pydantic import ValidationError

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem, explain, from_error, model_of

if TYPE_CHECKING:
    from learners.training.task import Task


@contextmanager
def host_only() -> Iterator[None]:
    """Import JAX inside this block, and it sees CPUs alone: accelerators are the learners'.

    JAX reads JAX_PLATFORMS at its import. The variable is restored, since a local cluster's processes inherit it.
    """
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        del os.environ["JAX_PLATFORMS"]
        os.environ |= {} if before is None else {"JAX_PLATFORMS": before}


@contextmanager
def _free_memory() -> Iterator[None]:
    """Have an allocation beyond what is free, and a GiB more, raise MemoryError, on Linux: the kernel would kill us."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(AttributeError, ValueError):  # not on Linux; a lower limit holds already
        most = psutil.Process().memory_info().data + psutil.virtual_memory().available + 2**30
        resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def build_task(recipe: Recipe) -> Task:
    """The recipe's task. What the task's own code raises becomes an InputError."""
    with host_only():
        from learners.training import task
    try:
        with _free_memory():
            return task.load(recipe.task, recipe.data, recipe.seed, recipe.model)
    except ValueError as error:
        refusal = error if isinstance(error, ValidationError) else error.__cause__
        if isinstance(refusal, ValidationError):
            raise InputError(list(explain(refusal, model_of(refusal), "model."))) from error
        fix = "give `package.module:factory`, importable from here"
        raise InputError([from_error(error, "task", recipe, fix)]) from error
    except (Exception, SystemExit) as error:
        fix = "correct the task's own code, or the [model] keys it is given"
        if isinstance(error, MemoryError):
            fix = "make large arrays in init(), which learners call; run and plan call the factory on this machine"
        message = f"cannot be built: {type(error).__name__}: {error}"
        raise InputError([Problem("task", recipe.task, message, fix)]) from error
