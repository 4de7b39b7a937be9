"""Runs are made once a session for each way to adopt and to encode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from benchmarks.harness import lockstep
from learners.training.step import TrainStep, make_step
from orchestrator.replay import learners
from tests.replay.shaken import Points, Shaken, recipe, shaken


@pytest.fixture(scope="session")
def step() -> TrainStep:
    wanted = recipe()
    return make_step(Points(wanted.data, wanted.seed), wanted.inner)


@pytest.fixture(autouse=True)
def one_compilation(step: TrainStep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run and every replay of these tests trains with the same compiled step."""
    monkeypatch.setattr(lockstep, "make_step", lambda task, inner: step)
    monkeypatch.setattr(learners, "make_step", lambda task, inner: step)


@pytest.fixture(scope="session")
def shaken_run() -> Callable[..., Shaken]:
    @cache
    def make(**sync: Any) -> Shaken:
        return shaken(recipe(**sync))

    return make
