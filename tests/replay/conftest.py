"""Runs are made once a session for each way to adopt and to encode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from learners import lockstep
from learners.trainer import make_step
from orchestrator.replay import player
from tests.replay.shaken import Points, Shaken, recipe, shaken


@pytest.fixture(autouse=True, scope="package")
def one_compilation() -> Iterator[None]:
    """Every run and every replay of this package trains with the same compiled step."""
    wanted = recipe()
    step = make_step(Points(wanted.data, wanted.seed), wanted.inner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep, "make_step", lambda task, inner: step)
        patch.setattr(player, "make_step", lambda task, inner: step)
        yield


@pytest.fixture(scope="session")
def shaken_run() -> Callable[..., Shaken]:
    @cache
    def make(**sync: Any) -> Shaken:
        return shaken(recipe(**sync))

    return make
