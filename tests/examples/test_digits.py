"""The vision transformer: its samples follow from their position, and it learns digits."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from examples.digits.task import SIDE, Digits
from learners.config import DataConfig, InnerConfig
from learners.training import trainer, tree
from outer.config import SyncConfig


def digits(**model: int) -> Digits:
    return Digits(DataConfig(sequence_length=1), 0, **({"layers": 1, "width": 32, "hidden": 64} | model))


def rows(batch: dict[str, np.ndarray]) -> list[bytes]:
    return sorted(image.tobytes() for image in batch["image"])


def test_an_epoch_takes_every_image_once_in_its_own_order_and_no_held_out_one() -> None:
    still = digits(shift=0)
    training, held_out = still.images
    size = len(training["digit"])
    assert (size, len(held_out["digit"])) == (1438, 359)
    first, second = still.batch(0, size), still.batch(size, size)
    assert rows(first) == rows(second) == rows(training)
    assert first["digit"].tolist() != second["digit"].tolist()
    assert not set(rows(training)) & set(rows(held_out))
    assert np.array_equal(still.held_out(359, 7)["image"], held_out["image"][:7])


def test_a_training_image_is_moved_by_a_pixel_at_most_and_by_its_position_alone() -> None:
    moved, still = digits().batch(90, 40)["image"], digits(shift=0).batch(90, 40)["image"]
    edged = np.pad(still, ((0, 0), (1, 1), (1, 1)))
    moves = [(down, right) for down in range(3) for right in range(3)]
    used = set()
    for index, image in enumerate(moved):
        fitting = [
            (down, right)
            for down, right in moves
            if np.array_equal(image, edged[index, down : down + SIDE, right : right + SIDE])
        ]
        assert fitting
        used |= set(fitting[:1])
    assert len(used) == len(moves)
    assert np.array_equal(digits().batch(100, 1)["image"][0], moved[10])


@pytest.mark.full
def test_it_learns_digits_that_it_has_not_seen() -> None:
    task = digits()
    learner = trainer.Trainer(task, tree.deal(task, SyncConfig(P=1)), InnerConfig(lr=3e-3), 0)
    for step in range(200):
        learner.step(step * 32, 32, progress=0.1)
    loss, aux = jax.jit(task.loss)(learner.params, task.held_out(0, 359), jax.random.key(0))
    assert float(aux["accuracy"]) > 0.8 and float(loss) < 0.7, "guessing: 0.1 and 2.3"


def test_sizes_that_do_not_fit_are_refused() -> None:
    for name, value in (("width", 30), ("patch", 3)):
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            digits(**{name: value})
