"""Copies, encoding, adoption and the slot of a snapshot, with trainers that are a few arrays and no JAX."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from learners.fragment_io import FragmentIO, SnapshotSlot, StagedCopy
from learners.protocol.events_effects import Apply
from learners.training.devices.placement import Placed
from learners.training.trainer import Trainer
from outer.config import SyncConfig
from outer.numeric import codec as codecs
from outer.numeric.codec import examine
from outer.protocol.messages import Contribution, FragmentCounters
from tests.waiting import DEADLINE_S

Flat = NDArray[np.float32]
SIZE = 4


@dataclass
class TwoArrays:
    """A trainer's side of the fragment_io."""

    thetas: list[Flat] = field(default_factory=lambda: [np.zeros(SIZE, np.float32) for _ in range(2)])
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    transfers: int = 0

    def copy(self, fragment: int) -> Flat:
        return self.thetas[fragment].copy()

    def host(self, copy: Flat) -> Flat:
        self.transfers += 1
        return copy

    def prepare(self, fragment: int, theta: Flat, exact: bool) -> Placed:
        return Placed((cast(Any, theta.copy()),))

    def rounding(self, fragment: int, flat: Flat) -> Flat | None:
        return None

    def adopt(
        self, fragment: int, theta: Flat | Placed, mode: str, anchor: Flat | None = None, adopted: Flat | None = None
    ) -> None:
        self.calls.append((fragment, mode, None if anchor is None else anchor.copy()))
        self.thetas[fragment] = np.array(theta.leaves[0] if isinstance(theta, Placed) else theta)


def flat(value: float) -> Flat:
    return np.full(SIZE, value, np.float32)


def fragment_io(**sync: Any) -> tuple[FragmentIO, TwoArrays]:
    """Both fragments bootstrapped at 1."""
    trainer = TwoArrays()
    made = FragmentIO(cast(Trainer, trainer), SyncConfig.model_validate(sync), 2)
    for fragment in range(2):
        made.apply(Apply(fragment, 0, flat(1.0), "bootstrap"))
    trainer.calls.clear()
    return made, trainer


STEP = 3  # after which the copy was taken


def contribution(copy: StagedCopy, fragment: int = 0) -> Contribution:
    return Contribution("a", 1, 1, 4, fragment, 1, STEP, 24, FragmentCounters(0, 0, 3, 24), copy, "")


def test_a_fragment_without_a_base_cannot_be_copied() -> None:
    made = FragmentIO(cast(Trainer, TwoArrays()), SyncConfig(), 2)
    with pytest.raises(AssertionError):
        made.stage([0])


@pytest.mark.parametrize("codec", ["fp32", "fp32_delta", "bf16", "fp4"])
def test_what_is_encoded_passes_inspection_and_is_the_outer_gradient(codec: str) -> None:
    made, trainer = fragment_io(codec=codec)
    trainer.thetas[0] += 0.5
    sent = made.encode(contribution(made.stage([0])[0]))
    assert examine(sent, codec, SIZE) is sent and sent.defect == ""
    assert np.array_equal(codecs.decode(codec, sent.payload, flat(1.0)), np.full(SIZE, -0.5))
    assert sent.counters == FragmentCounters(0, 0, 3, 24)


@pytest.mark.parametrize("adopt", ["overwrite", "rebase"])
@pytest.mark.parametrize("codec", ["bf16", "int8", "fp4"])
def test_what_was_sent_and_what_is_left_add_up_to_what_was_made(codec: str, adopt: str) -> None:
    """With a decay of 1, over the reads that merged; one that did not merge changes nothing."""
    made, trainer = fragment_io(codec=codec, error_feedback=1.0, adopt=adopt)
    wanted, arrived, base = np.zeros(SIZE), np.zeros(SIZE), flat(1.0)
    for number in range(30):
        step, merges = np.float32([0.3, -0.001, 7e-5, 0.0]) * (number + 1), number % 3 != 1
        trainer.thetas[0] = base - step
        asked = replace(contribution(made.stage([0])[0]), step=number, syncer_step=number)
        sent = made.encode(asked)
        assert made.encode(asked).digest == sent.digest, "asked again, the same answer"
        if merges:
            wanted += (base - trainer.thetas[0]).astype(np.float64)
            arrived += codecs.decode(codec, sent.payload, base)
        base = flat(1.0 + number)
        made.apply(Apply(0, number + 1, base, adopt, read_at=number if merges else None))
    left = made.stage([0])[0].residual
    assert left is not None and left.any()
    np.testing.assert_allclose(arrived + left, wanted, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_against_the_base_of_the_copy_though_a_newer_one_was_adopted_since() -> None:
    made, trainer = fragment_io(codec="bf16")
    trainer.thetas[0] += 0.5
    copy = made.stage([0])[0]
    made.apply(Apply(0, 4, flat(9.0), "overwrite"))
    sent = made.encode(contribution(copy))
    assert np.array_equal(codecs.decode("bf16", sent.payload, flat(1.0)), np.full(SIZE, -0.5))


def test_rebase_subtracts_what_was_read_after_that_step_or_the_base() -> None:
    made, trainer = fragment_io(adopt="rebase")
    trainer.thetas[0] += 0.5
    made.encode(contribution(made.stage([0])[0]))
    trainer.thetas[0] += 0.25
    made.apply(Apply(0, 4, flat(2.0), "rebase", read_at=STEP))
    made.apply(Apply(0, 8, flat(3.0), "rebase"))
    anchors = [anchor for _, _, anchor in trainer.calls]
    assert np.array_equal(anchors[0], flat(1.5)), "as read, not as it is now"
    assert np.array_equal(anchors[1], flat(2.0)), "the base is what the syncer sent last"


def test_a_copy_goes_to_the_host_when_it_is_first_answered_and_only_once() -> None:
    made, trainer = fragment_io()
    copies = made.stage([0, 1])
    assert trainer.transfers == 0
    first, second = (made.encode(contribution(copies[0])) for _ in range(2))
    assert first.digest == second.digest
    assert trainer.transfers == 1


def test_what_was_received_beside_the_loop_is_adopted_and_becomes_the_base() -> None:
    made, trainer = fragment_io()
    came = flat(7.0)
    made.apply(Apply(0, 4, made.receive(0, came), "overwrite"))
    assert np.array_equal(trainer.thetas[0], came) and made.bases()[0] == (4, came)


# ------------------------------------------------------------------ the slot of a snapshot


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
