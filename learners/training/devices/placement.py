"""Fragments between flat float32[n] and the leaves on a learner's devices: gather, place, rebase, copy.

Everything is enqueued on the devices. What `placed` and `copied` return may be donated: it never shares memory with
NumPy, nor with another array.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from outer.protocol.fragments import Fragment

Flat = NDArray[np.float32]
Cut = tuple[int, int, int] | None  # Tensor.cut: axis, start and stop of a piece; None for a whole leaf
PINNED = "pinned_host"  # JAX's name for page-locked host memory
ALIGNMENT = 64  # bytes; of addresses that XLA reads in place


@dataclass(frozen=True)
class Placed:
    """A fragment's value on the devices: one array per tensor, in the fragment's order."""

    leaves: tuple[jax.Array, ...]


def gathered(leaves: Sequence[jax.Array], cuts: tuple[Cut, ...], everywhere: Any = None) -> jax.Array:
    """One fragment's tensors as a new float32[n], on the device, in the fragment's order.

    `leaves`, `cuts`: each tensor's leaf, and which part of it the tensor is. `everywhere`: the replicated sharding of a
    learner with several devices.
    """
    return _program(_flattening(cuts), everywhere)(tuple(leaves))  # type: ignore[no-any-return]


def part(leaf: jax.Array, cut: Cut, sharding: Any) -> jax.Array:
    """A copy of a part of a leaf, placed by this sharding; without a cut the leaf itself."""
    return leaf if cut is None else _program(_cutting(cut), sharding)(leaf)


def with_part(leaf: jax.Array, cut: tuple[int, int, int], values: jax.Array, sharding: Any) -> jax.Array:
    """The leaf with other values in this part of it. It is donated: no second one is made."""
    return _writing(cut, sharding)(leaf, values)  # type: ignore[no-any-return]


def of_part(sharding: Any, axis: int) -> Any:
    """The sharding of parts along an axis of a leaf that has this one: each device has all places of that axis."""
    if sharding is None:
        return None
    spec: Any = PartitionSpec
    return NamedSharding(sharding.mesh, spec(*[None if at == axis else each for at, each in enumerate(sharding.spec)]))


def to_host(flat: jax.Array) -> Flat:
    """Bring float32[n] to the host, through page-locked memory where the device has it; waits for the device.

    On CPUs the result is a read-only view of the device's memory.
    """
    one: Any = flat.addressable_shards[0].data  # whole: it is replicated
    if has_pinned_memory(next(iter(one.devices()))):
        one = jax.device_put(one, one.sharding.with_memory_kind(PINNED))
    return np.asarray(one)


def has_pinned_memory(device: Any) -> bool:
    """Whether transfers from this device go through page-locked memory. On CPUs there is nothing to transfer."""
    return device.platform != "cpu" and any(memory.kind == PINNED for memory in device.addressable_memories())


def placed(fragment: Fragment, flat: Flat, dtypes: Sequence[Any], shardings: Sequence[Any]) -> Placed:
    """Put flat float32[n] on the devices, shard by shard, as tensors of these dtypes and shardings.

    `shardings`: one per tensor; None for the default device. Returns when `flat` is not needed any more.
    """
    assert flat.shape == (fragment.size,), f"fragment {fragment.index} has {fragment.size} elements, not {flat.shape}"
    leaves = []
    for (tensor, elements), dtype, sharding in zip(fragment.slices(), dtypes, shardings, strict=True):
        leaves.append(own(flat[elements].reshape(tensor.shape), sharding, dtype))
    for leaf in leaves:
        leaf.block_until_ready()
    return Placed(tuple(leaves))


def own(values: NDArray[Any], sharding: Any, dtype: Any = None) -> jax.Array:
    """A device array of these values, in this dtype or theirs, shard by shard, in memory of its own.

    On a CPU, device_put and make_array_from_callback share the caller's memory, whatever `may_alias` says.
    """
    dtype = values.dtype if dtype is None else np.dtype(dtype)
    if sharding is None:
        return jnp.array(_aligned(values, dtype))
    values = values.astype(dtype, copy=False)
    if next(iter(sharding.device_set)).platform != "cpu":
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
    # Each shard by itself: a program of all ranks, begun in any thread, could wait for ever for that of another thread.
    places = sharding.addressable_devices_indices_map(values.shape)
    shards = [jnp.array(_aligned(np.asarray(values[index]), dtype), device=device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(values.shape, sharding, shards)


def _aligned(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The values in this dtype, at an address that XLA can read in place.

    Others it copies in its one thread on a CPU, where a copy of more than 100 kB may wait behind steps for ever.
    """
    if values.dtype == dtype and values.ctypes.data % ALIGNMENT == 0:
        return values
    size = values.size * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    aligned: NDArray[Any] = room[start : start + size].view(dtype).reshape(values.shape)
    aligned[...] = values
    return aligned


def copied(leaves: Sequence[Any]) -> list[Any]:
    """Copies on the same devices, enqueued now: as of now, whatever is donated later. Threads may share them.

    JAX lists an array's shards when they are first asked for; a thread that asks meanwhile gets some of them only.
    """
    copies = [jnp.copy(leaf) if isinstance(leaf, jax.Array) else np.array(leaf) for leaf in leaves]
    for copy in copies:
        if isinstance(copy, jax.Array):
            len(copy.addressable_shards)
    return copies


def has_room(leaves: Sequence[Any]) -> bool:
    """Whether each device has room for a copy of these leaves beside what it needed at most so far.

    Devices that do not count their memory, such as CPUs, are taken to have it.
    """
    needed: Counter[Any] = Counter()
    for leaf in leaves:
        for shard in leaf.addressable_shards if isinstance(leaf, jax.Array) else ():
            needed[shard.device] += shard.data.nbytes
    return all(
        (stats := device.memory_stats()) is None or stats["peak_bytes_in_use"] + size <= stats["bytes_limit"]
        for device, size in needed.items()
    )


def distinct(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, each in memory of its own, and with the types that a step gives them.

    Donating two leaves that share memory is an error, and an inner optimizer may keep the parameters themselves, such
    as an average that begins with them. A leaf made of a Python number is weakly typed until the first step, which
    would compile the step twice.
    """
    seen: set[tuple[int, ...]] = set()
    result = []
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and leaf.size and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.lax.convert_element_type(leaf, leaf.dtype) if leaf.weak_type else leaf
            at = tuple(shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards)
            leaf = jnp.copy(leaf) if at in seen else leaf
            seen.add(at)
        result.append(leaf)
    return result


def rebased(
    local: Sequence[jax.Array], theta: Placed, anchor: jax.Array, adopted: jax.Array, everywhere: Any, shardings: Any
) -> tuple[Placed, jax.Array]:
    """theta + (local - anchor) in float32: in the dtypes of `local`, and before it is rounded to them, float32[n].

    `adopted` float32[n]: what `local` grew from, before it was rounded; that rounding is no progress and is taken from
    `local`. Without progress the result is theta, to the bit.
    """
    results = None if everywhere is None else (tuple(shardings), everywhere)
    leaves, moved = _program(_rebase, results)(tuple(local), theta.leaves, anchor, adopted)
    return Placed(leaves), moved


@cache
def _program(function: Any, shardings: Any) -> Any:
    """Compiled once per shapes, for all trainers of a process."""
    return jax.jit(function) if shardings is None else jax.jit(function, out_shardings=shardings)


@cache
def _flattening(cuts: tuple[Cut, ...]) -> Any:
    if not any(cuts):
        return _flatten
    return lambda leaves: _flatten(tuple(_part(leaf, cut) for leaf, cut in zip(leaves, cuts, strict=True)))


@cache
def _cutting(cut: tuple[int, int, int]) -> Any:
    return lambda leaf: _part(leaf, cut)


def _part(leaf: jax.Array, cut: Cut) -> jax.Array:
    if cut is None:
        return leaf
    axis, start, stop = cut
    return jax.lax.slice_in_dim(leaf, start, stop, axis=axis)


@cache
def _writing(cut: tuple[int, int, int], sharding: Any) -> Any:
    axis, start, stop = cut

    def write(leaf: jax.Array, values: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(leaf, values.astype(leaf.dtype), start, axis)

    def write_shard(leaf: jax.Array, values: jax.Array) -> jax.Array:
        held = leaf.shape[axis]
        places = jax.lax.axis_index(sharding.spec[axis]) * held + jnp.arange(held) - start
        taken = jnp.take(values.astype(leaf.dtype), jnp.clip(places, 0, stop - start - 1), axis=axis)
        there = ((places >= 0) & (places < stop - start)).reshape([-1 if at == axis else 1 for at in range(leaf.ndim)])
        return jnp.where(there, taken, leaf)

    if sharding is None:
        return jax.jit(write, donate_argnums=0)
    if axis < len(sharding.spec) and sharding.spec[axis] is not None:  # left to XLA, each device would gather the leaf
        specs = sharding.spec, of_part(sharding, axis).spec
        write = jax.shard_map(write_shard, mesh=sharding.mesh, in_specs=specs, out_specs=sharding.spec)
    return jax.jit(write, donate_argnums=0, out_shardings=sharding)


def _flatten(leaves: tuple[jax.Array, ...]) -> jax.Array:
    # The copy: without an operation, jit would return the argument itself, which the next step donates.
    return jnp.copy(jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in leaves]))


def _rebase(local: Any, theta: Any, anchor: jax.Array, adopted: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
    by = [held - a for held, a in zip(_held(local, adopted), _cut(anchor, local), strict=True)]
    # Where nothing moves it is theta itself: -0.0 + 0.0 would be +0.0.
    moved = tuple(jnp.where(b == 0.0, t, t + b) for t, b in zip(theta, by, strict=True))
    return tuple(new.astype(leaf.dtype) for new, leaf in zip(moved, local, strict=True)), _flatten(moved)


def _held(local: Any, adopted: jax.Array) -> list[jax.Array]:
    """The local values in float32, without what rounding added when they were adopted."""
    return [
        leaf
        if leaf.dtype == jnp.float32
        else leaf.astype(jnp.float32) - (before.astype(leaf.dtype).astype(jnp.float32) - before)
        for leaf, before in zip(local, _cut(adopted, local), strict=True)
    ]


def _cut(flat: jax.Array, like: Any) -> list[jax.Array]:
    """float32[n] as arrays of the shapes of `like`."""
    ends = np.cumsum([leaf.size for leaf in like])
    pieces = jnp.split(flat, ends[:-1])
    return [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, like, strict=True)]
