"""The snapshot slot: one copy on the devices at a time, shared at one boundary, freed when packed or forgotten."""

from __future__ import annotations

import threading
from typing import Any, cast

from learners.fragment_io import SnapshotSlot
from learners.training.trainer import Trainer
from tests.waiting import DEADLINE_S


class Counting:
    """A trainer's side of the slot."""

    def __init__(self) -> None:
        self.generation = 0
        self.where: list[str] = []

    def capture(self) -> list[Any]:
        self.where.append("device")
        return [self.generation]

    def captured_on_host(self) -> list[Any]:
        self.where.append("host")
        return [self.generation]

    def packed(self, leaves: list[Any]) -> list[Any]:
        return leaves


def slot(wait_s: float) -> tuple[SnapshotSlot, Counting]:
    trainer = Counting()
    return SnapshotSlot(cast(Trainer, trainer), wait_s), trainer


def test_a_checkpoint_and_a_joiner_at_one_boundary_share_one_copy() -> None:
    taking, trainer = slot(0.0)
    one, two = taking.take(), taking.take()
    assert trainer.where == ["device"] and one.pack() == [0]
    trainer.generation = 1
    assert taking.take().pack() == [1] and trainer.where == ["device", "host"], "the other has not packed it yet"
    assert two.pack() == [0]


def test_who_comes_while_the_slot_is_taken_waits_until_it_is_packed() -> None:
    taking, trainer = slot(DEADLINE_S)
    held, trainer.generation = taking.take(), 1
    packer = threading.Timer(0.0, held.pack)
    packer.start()
    assert taking.take().pack() == [1]
    packer.join()
    assert trainer.where == ["device", "device"]


def test_a_copy_that_nobody_fetches_frees_the_slot_when_it_is_forgotten() -> None:
    taking, trainer = slot(0.0)
    held, trainer.generation = taking.take(), 1
    del held
    again = taking.take()
    assert trainer.where == ["device", "device"] and again.pack() == [1]


def test_packing_twice_frees_the_slot_once() -> None:
    taking, trainer = slot(0.0)
    one, two = taking.take(), taking.take()
    one.pack()
    one.pack()
    trainer.generation = 1
    taking.take()
    assert trainer.where == ["device", "host"] and two.pack() == [0]
