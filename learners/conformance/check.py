"""Defines a conformance check, and the helpers that the checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

from learners.config import InnerConfig
from learners.training.task import Batch, Task
from outer.config import SyncConfig

Status = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `fix` is empty if nothing has to be done."""

    name: str
    status: Status
    message: str
    fix: str = ""


class CheckFailed(Exception):
    """The task fails a check: (what is wrong, the fix)."""

    def __init__(self, message: str, fix: str, status: Status = "fail") -> None:
        super().__init__(message)
        self.finding: tuple[Status, str, str] = (status, message, fix)


@dataclass(frozen=True)
class Subject:
    """The task to check: how to build it, how it would be trained, and its fingerprint from a new process."""

    build: Callable[[], Task]
    inner: InnerConfig
    sync: SyncConfig
    batch_size: int
    seed: int
    elsewhere: Callable[[], Mapping[str, Any]]  # fingerprint.elsewhere


@dataclass(frozen=True)
class Check:
    """A check: its name, the fix if the task's own code raises, the checks it needs, and its code."""

    name: str
    fix: str
    needs: tuple[str, ...]
    run: Callable[[Subject, Task], str]


def check(name: str, fix: str, needs: tuple[str, ...] = ()) -> Callable[[Callable[[Subject, Task], str]], Check]:
    """Make a function that returns what it found, or raises CheckFailed, into a Check."""
    return lambda run: Check(name, fix, needs, run)


def finding_of(ask: Callable[[], Any]) -> Any:
    """Call `ask`. A ValueError of our own code, "what is wrong; the fix", becomes a CheckFailed."""
    try:
        return ask()
    except ValueError as error:
        message, separator, fix = str(error).rpartition("; ")
        if not separator:
            raise
        raise CheckFailed(message, fix) from error


def fresh(task: Task, seed: int) -> Any:
    """A task's initial parameters, compiled anew."""
    return jax.jit(lambda key: task.init(key))(jax.random.key(seed))  # a new function, so it is traced again each time


def leading(name: str, batch: Batch, count: int) -> None:
    leaves = jax.tree.leaves(batch)
    if not leaves or not all(hasattr(leaf, "dtype") and hasattr(leaf, "shape") for leaf in leaves):
        raise CheckFailed(
            f"{name} returns {type(batch).__name__} with leaves that are no arrays", "return NumPy arrays"
        )
    if bad := [str(list(leaf.shape)) for leaf in leaves if leaf.shape[:1] != (count,)]:
        raise CheckFailed(
            f"of {count} samples, {name} gives shapes {some(bad)}", "make the sample the leading axis of every array"
        )


def some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
