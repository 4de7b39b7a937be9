"""Donation: one generation of the state, arrays in memory of their own, and copies that outlive the step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from learners.config import InnerConfig
from learners.training import state_arrays
from learners.training.devices import placement
from learners.training.devices.placement import ALIGNMENT, _aligned, own
from learners.training.step import make_step
from learners.training.trainer import Trainer
from learners.training.tree import deal
from outer.config import SyncConfig
from tests.learners.training.test_trainer import Half, aligned

INNER = InnerConfig(lr=1e-2)
SIDE = 64


class Square(Half):
    """Two leaves of 16 KiB, one of them weakly typed; the inner optimizer has two moments of each."""

    def init(self, rng: jax.Array) -> Any:
        return {"w": jnp.ones((SIDE, SIDE)), "v": jnp.full((SIDE, SIDE), 2.0)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        return jnp.mean(batch) + jnp.sum(params["w"] ** 2) + jnp.sum(params["v"] ** 2), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adam(inner.lr)


STATE_BYTES = 3 * 2 * SIDE * SIDE * 4
SMALL_BYTES = 4096  # losses, keys, counts, batches


def made(task: Any = None, **more: Any) -> Trainer:
    task = task or Square()
    return Trainer(task, deal(task, SyncConfig(P=2)), INNER, 0, **more)


@pytest.fixture
def live_bytes() -> Any:
    """How many bytes of arrays are alive beyond those of now."""
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    kept = jax.live_arrays()  # else an id may be used again

    def count() -> int:
        assert kept is not None
        return sum(array.nbytes for array in jax.live_arrays() if id(array) not in before)

    return count


def test_steps_keep_one_generation_alive(live_bytes: Any) -> None:
    trainer = made()
    trainer.warm_up(2)
    assert STATE_BYTES <= live_bytes() <= STATE_BYTES + SMALL_BYTES
    in_flight = [trainer.dispatch(2 * step, 2, 0.5) for step in range(5)]
    assert STATE_BYTES <= live_bytes() <= STATE_BYTES + SMALL_BYTES
    assert len({each.result()[0] for each in in_flight}) == 5
    before = trainer.params["w"]
    trainer.step(20, 2, 0.5)
    assert before.is_deleted()


def test_adopted_values_are_donated_like_the_others(live_bytes: Any) -> None:
    trainer = made()
    trainer.step(0, 2, 0.5)
    for index in range(2):
        trainer.load(index, trainer.read(index))
    adopted = trainer.params["w"]
    at = adopted.unsafe_buffer_pointer()
    trainer.step(2, 2, 0.5)
    assert adopted.is_deleted()
    assert at in {leaf.unsafe_buffer_pointer() for leaf in trainer.state_leaves()}, "its memory is used again"
    assert live_bytes() <= STATE_BYTES + SMALL_BYTES


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Every compilation from now on."""
    events: list[str] = []
    listener = lambda name, seconds, **about: events.append(name) if "backend_compile" in name else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    yield events
    jax.monitoring.unregister_event_duration_listener(listener)


def test_after_the_warm_up_nothing_compiles(compiled: list[str]) -> None:
    trainer = made()
    trainer.warm_up(2)
    assert compiled, "the warm-up compiles"
    del compiled[:]
    for step in range(3):
        trainer.step(2 * step, 2, step / 3)
        trainer.copy(0)
        trainer.capture()
    assert compiled == []


def test_trainers_that_share_a_step_go_their_own_ways(compiled: list[str]) -> None:
    step = make_step(Square(), INNER)
    one, other, alone = made(train_step=step), made(train_step=step), made()
    one.step(0, 2, 0.5)
    del compiled[:]
    for index in range(3):
        other.step(2 * index, 2, 0.5)
    assert compiled == [], "the second trainer uses the first one's program"
    for index in range(3):
        alone.step(2 * index, 2, 0.5)
    for index in range(2):
        assert other.read(index).tobytes() == alone.read(index).tobytes()


def test_copies_are_as_of_the_step_they_were_taken_after_though_the_next_ones_run() -> None:
    trainer, twin = made(), made()
    trainer.dispatch(0, 2, 0.5)
    twin.step(0, 2, 0.5)
    wanted = [twin.read(0), state_arrays.digest(state_arrays.pack(twin.state_leaves()))]
    copy, captured = trainer.copy(0), trainer.capture()
    for step in range(1, 4):
        trainer.dispatch(2 * step, 2, 0.5)
    assert trainer.host(copy).tobytes() == wanted[0].tobytes()
    assert state_arrays.digest(state_arrays.pack(captured)) == wanted[1]


def test_inherited_leaves_never_share_memory_with_numpy() -> None:
    donor, joiner = made(), made()
    donor.step(0, 2, 0.5)
    packed = [np.array(array) for array in state_arrays.pack(donor.state_leaves())]
    kept = state_arrays.digest(packed)
    joiner.restore(packed)
    held = joiner.params["w"]
    joiner.step(2, 2, 0.5)
    assert state_arrays.digest(packed) == kept and held.is_deleted()


def test_a_state_is_restored_leaf_by_leaf(live_bytes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, most, own = made(), 0, state_arrays.own
    trainer.step(0, 2, 0.5)
    packed = [np.array(array) for array in state_arrays.pack(trainer.capture())]
    trainer.step(2, 2, 0.5)

    def counted(values: Any, sharding: Any) -> jax.Array:
        nonlocal most
        array = own(values, sharding)
        most = max(most, live_bytes())
        return array

    monkeypatch.setattr(state_arrays, "own", counted)
    trainer.restore(packed)
    assert most <= STATE_BYTES + SIDE * SIDE * 4 + SMALL_BYTES
    assert state_arrays.digest(state_arrays.pack(trainer.capture())) == state_arrays.digest(packed)


class Averaged(Square):
    """Its inner optimizer's state holds the parameters themselves, at first."""

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        plain = optax.sgd(inner.lr)

        def init(params: Any) -> Any:
            return plain.init(params), params

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            updates, inner_state = plain.update(updates, state[0], params)
            return updates, (inner_state, jax.tree.map(lambda a, b: 0.5 * a + 0.5 * b, state[1], params))

        return optax.GradientTransformation(init, update)


def test_an_optimizer_may_keep_the_parameters_themselves() -> None:
    trainer = made(Averaged())
    losses = [trainer.step(2 * step, 2, 0.5) for step in range(3)]
    trainer.restore(state_arrays.pack(trainer.capture()))
    assert trainer.step(6, 2, 0.5) < losses[-1] < losses[0]


class Reusing(Square):
    """Writes every batch into the same memory."""

    def __init__(self) -> None:
        self.memory = aligned(2)[:, None]

    def batch(self, start: int, count: int) -> Any:
        self.memory[:] = start
        return self.memory


def test_a_task_may_use_its_batchs_memory_again_while_the_step_runs() -> None:
    trainer, plain = made(Reusing()), made()
    trainer.expect([2, 4], 2)
    in_flight = [trainer.dispatch(2 * step, 2, 0.5) for step in range(3)]
    steps = [plain.step(2 * step, 2, 0.5) for step in range(3)]
    assert [each.result()[0] - 2.0 * step for step, each in enumerate(in_flight)] == pytest.approx(steps)


# ------------------------------------------------------------------ page-locked memory, and room


class Memory:
    def __init__(self, kind: str) -> None:
        self.kind = kind


class Device:
    def __init__(self, platform: str, *kinds: str) -> None:
        self.platform, self._kinds = platform, kinds

    def addressable_memories(self) -> list[Memory]:
        return [Memory(kind) for kind in self._kinds]


def test_page_locked_memory_is_used_only_where_transfers_need_it_and_have_it() -> None:
    assert placement.has_pinned_memory(Device("gpu", "device", "pinned_host"))
    assert not placement.has_pinned_memory(Device("gpu", "device"))
    assert not placement.has_pinned_memory(Device("cpu", "device", "pinned_host"))
    assert not placement.has_pinned_memory(jax.devices("cpu")[0])


def test_without_room_the_state_is_captured_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "has_room", lambda leaves: False)
    trainer = made()
    trainer.step(0, 2, 0.5)
    wanted = state_arrays.digest(state_arrays.pack(trainer.state_leaves()))
    captured = trainer.capture()
    trainer.step(2, 2, 0.5)
    assert all(isinstance(leaf, np.ndarray) for leaf in captured)
    assert state_arrays.digest(state_arrays.pack(captured)) == wanted


# ------------------------------------------------------------------ from anywhere in memory


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("offset", range(0, ALIGNMENT, 4))
def test_values_are_read_in_place_from_an_aligned_address_and_become_their_own(dtype: Any, offset: int) -> None:
    room = np.arange(3 * ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT + offset
    values = room[start : start + 24].view(dtype).reshape(2, -1)
    aligned = _aligned(values, values.dtype)
    assert aligned.ctypes.data % ALIGNMENT == 0 and aligned.tobytes() == values.tobytes()
    before, placed = values.copy(), own(values, None)
    room[:] = 0
    assert np.asarray(placed).tobytes() == before.tobytes()


@pytest.mark.parametrize("offset", [0, 4])
def test_values_of_another_dtype_are_rounded_as_numpy_does(offset: int) -> None:
    room = np.random.default_rng(0).normal(size=ALIGNMENT).astype(np.float32)
    values = room[offset : offset + 24].reshape(2, -1)
    placed = np.asarray(own(values, None, ml_dtypes.bfloat16))
    assert placed.dtype == ml_dtypes.bfloat16
    assert placed.tobytes() == values.astype(ml_dtypes.bfloat16).tobytes()
