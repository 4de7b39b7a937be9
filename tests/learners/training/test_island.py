"""A learner of several processes computes what one process with as many devices does; rank 0 leads, the others follow.

on_ranks.py trains, contributes, adopts in every way, saves and takes over a state: on two processes with two CPU
devices each and on one with four.
"""

from __future__ import annotations

import json
from typing import Any, cast

import jax
import numpy as np
import pytest

from learners.training.devices.mesh import layout
from learners.training.island import Follower
from learners.training.rank_call import RankCall
from learners.training.state_arrays import LeafPieces
from learners.training.task import Task
from learners.training.trainer import Trainer
from tests.learners.training.children import program

CASES = ("whole", "parts", "narrow")


@pytest.fixture(scope="module")
def found(foxes: str) -> Any:
    """By the number of processes."""
    run = {ranks: program("on_ranks.py", foxes, str(ranks), str(4 // ranks), devices=4 // ranks) for ranks in (1, 2)}
    return {ranks: json.loads(line) for ranks, line in run.items()}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_the_bits_of_one_with_as_many_devices(found: Any, case: str) -> None:
    one, two = found[1][case], found[2][case]
    for what in ("losses", "fragments", "moved", "state"):
        assert two[what] == one[what], what
    assert one["back"] and two["back"], "what was captured can be restored"
    assert len({round(loss, 4) for loss in one["losses"][:4]}) == 4, "it trains"


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_no_leaf_lies_in_one_process_and_the_other_is_told_of_every_call(found: Any, case: str) -> None:
    assert found[2][case]["local"] == 0 < found[1][case]["local"]
    calls = {"adopt", "capture", "copy", "dispatch", "expect", "release", "reset_optimizer", "restore", "swap"}
    assert set(found[2][case]["told"]) == calls


class Recorded:
    """A trainer that notes what it is asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, *arguments))


def test_a_value_that_was_never_adopted_is_dropped_when_a_newer_one_is() -> None:
    trainer = Recorded()
    follower = Follower(cast(Trainer, trainer))
    for key in range(3):
        follower.place(key, 0, np.zeros(1, np.float32), False)
    follower.place(3, 1, np.zeros(1, np.float32), False)
    assert follower.perform([RankCall(0, "swap", (0, 1)), RankCall(1, "end", ())]), "that was the last"
    assert set(follower._placed) == {(0, 2), (1, 3)}, "a newer one, and another fragment's"


def test_shards_that_are_asked_for_before_the_state_is_captured_are_refused_in_time() -> None:
    with pytest.raises(TimeoutError, match="not captured within 0"):
        Follower(cast(Trainer, Recorded())).pieces(7, 0.0)


def test_a_leaf_is_joined_of_every_ranks_shards() -> None:
    whole = np.arange(12.0).reshape(4, 3)
    top, bottom = (slice(0, 2), slice(None)), (slice(2, 4), slice(None))
    mine, theirs = LeafPieces((4, 3), [(top, whole[top])]), LeafPieces((4, 3), [(bottom, whole[bottom])])
    assert np.array_equal(mine.joined([theirs]), whole)
    with pytest.raises(ValueError, match="only 6 of the 12 numbers"):
        mine.joined([None])


def test_processes_with_different_numbers_of_devices_are_no_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process: ["device"] * (1 + process))
    with pytest.raises(ValueError, match="the same number of devices each: rank 0 has 1, rank 1 has 2"):
        layout(cast(Task, None), (), None, 1)
