"""Number formats of a fragment on the wire, each an object behind one interface.

`named` returns the object of a name. A payload is one contiguous 1-D NumPy array, a pure function of the numbers and
the seed. The coded formats import the compiler when they are first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from outer.protocol.fragments import Fragment
from outer.protocol.link_ladder import Uplinks

if TYPE_CHECKING:
    from outer.config import SyncConfig

Floats = NDArray[np.float32]

FLOAT32 = np.dtype(np.float32)
GROUP = 128  # elements that share a scale; as in grouped.py
SCALE_BYTES = 4
_EXPONENT = np.uint16(0x7F80)  # all ones in bfloat16: infinity or NaN
_EXPONENT32 = np.uint32(0x7F800000)


class Codec:
    """One format. Of the methods, those that raise NotImplementedError are each format's own."""

    name: str
    dtype: np.dtype[Any]  # of a payload's elements
    absolute = False  # whether a payload holds parameters, and not a difference
    bits = 32.0  # of one element on the wire, about

    @property
    def kind(self) -> Any:
        """Tells the merge kernel how to read a payload: a number of the payload's type."""
        return self.dtype.type(0)

    def elements(self, size: int) -> int:
        """Length of the payload of `size` numbers."""
        return size

    def bytes(self, size: int) -> int:
        """Length of the payload of `size` numbers, in bytes."""
        return self.elements(size) * self.dtype.itemsize

    def encode(self, numbers: Floats, seed: int) -> NDArray[Any]:
        """The payload of float32[n]; `seed`: 64 bits, for the rounding. Numbers need not be finite."""
        raise NotImplementedError

    def decode(self, payload: NDArray[Any], size: int, place: slice = slice(None)) -> Floats:
        """The numbers in a payload that `inspect` passed, float32[n], or those at a place, a slice without a step."""
        raise NotImplementedError

    def finite(self, payload: NDArray[Any]) -> bool:
        """Whether every number in it is finite, for a payload of the right length."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Compile what `encode` and `decode` need."""
        if self.dtype == np.uint8:
            from outer.numeric.compiling import one_process

            with one_process(self.name):
                self.decode(self.encode(np.zeros(1, np.float32), 0), 1)

    def inspect(self, payload: Any, size: int) -> str:
        """The defect of a payload of `size` numbers: "wrong_shape", "non_finite", or "" for none.

        "wrong_shape" is anything but a contiguous 1-D array of the dtype and length, or codes that are none.
        """
        if not isinstance(payload, np.ndarray) or payload.dtype != self.dtype or not payload.flags.c_contiguous:
            return "wrong_shape"
        if payload.shape != (self.elements(size),):
            return "wrong_shape"
        return "" if self.finite(payload) else "non_finite"


class _Parameters(Codec):
    """float32 as it is, of parameters."""

    name, dtype, absolute = "fp32", FLOAT32, True

    def encode(self, numbers: Floats, seed: int) -> NDArray[Any]:
        return np.ascontiguousarray(numbers, dtype=np.float32)

    def decode(self, payload: NDArray[Any], size: int, place: slice = slice(None)) -> Floats:
        numbers: Floats = payload[place]
        return numbers

    def finite(self, payload: NDArray[Any]) -> bool:
        return bool(np.isfinite(payload).all())


class _Difference(Codec):
    """float32 as it is, of a difference, as its bits: the kernel tells it from parameters by the type."""

    name, dtype = "fp32_delta", np.dtype(np.uint32)

    def encode(self, numbers: Floats, seed: int) -> NDArray[Any]:
        return np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)

    def decode(self, payload: NDArray[Any], size: int, place: slice = slice(None)) -> Floats:
        return payload[place].view(np.float32)

    def finite(self, payload: NDArray[Any]) -> bool:
        return bool(((payload & _EXPONENT32) != _EXPONENT32).all())


class _Bfloat16(Codec):
    """Rounded to nearest even, as the bits of bfloat16: Ray copies arrays of NumPy's extension types."""

    name, dtype, bits = "bf16", np.dtype(np.uint16), 16.0

    def encode(self, numbers: Floats, seed: int) -> NDArray[Any]:
        with np.errstate(over="ignore", invalid="ignore"):  # the receiver refuses non-finite payloads
            return numbers.astype(ml_dtypes.bfloat16).view(np.uint16)

    def decode(self, payload: NDArray[Any], size: int, place: slice = slice(None)) -> Floats:
        wide = payload[place].astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)

    def finite(self, payload: NDArray[Any]) -> bool:
        return bool(((payload & _EXPONENT) != _EXPONENT).all())


class _Grouped(Codec):
    """Codes of 8 or 4 bits, rounded up or down at random, with one scale for each group. grouped.py has the layout."""

    dtype = np.dtype(np.uint8)

    def __init__(self, name: str, form: int, code_bits: int, levels: int) -> None:
        """`levels`: the largest code, which stands for the largest magnitude of the group."""
        self.name, self._form, self._code_bits, self._levels = name, form, code_bits, levels
        self.bits = code_bits + 8 * SCALE_BYTES / GROUP

    @property
    def kind(self) -> Any:
        return np.uint8(self._form)

    def elements(self, size: int) -> int:
        groups = -(-size // GROUP)
        return groups * SCALE_BYTES + (size if self._code_bits == 8 else groups * GROUP // 2)

    def encode(self, numbers: Floats, seed: int) -> NDArray[Any]:
        from outer.numeric import grouped
        from outer.numeric.compiling import read_only

        payload, end = np.empty(self.elements(len(numbers)), np.uint8), SCALE_BYTES * -(-len(numbers) // GROUP)
        given = read_only(np.ascontiguousarray(numbers, dtype=np.float32))
        low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32 & 0xFFFFFFFF)
        grouped.encode(given, self._form, low, high, payload[:end].view(np.float32), payload[end:])
        return payload

    def decode(self, payload: NDArray[Any], size: int, place: slice = slice(None)) -> Floats:
        from outer.numeric import grouped

        start, stop, _ = place.indices(size)
        out = np.empty(stop - start + 2 * GROUP, np.uint32)
        address = np.uint64(payload.ctypes.data)  # typed as the merge kernel types it
        first = grouped.decode(address, self.kind, size, start, stop - start, out)
        return out.view(np.float32)[first : first + stop - start]

    def finite(self, payload: NDArray[Any]) -> bool:
        share = SCALE_BYTES + GROUP * self._code_bits // 8
        scales = payload[: SCALE_BYTES * -(-len(payload) // share)].view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(scales * np.float32(self._levels + 1)).all())


_ALL: dict[str, Codec] = {
    each.name: each
    for each in (
        _Parameters(),
        _Difference(),
        _Bfloat16(),
        _Grouped("int8", 0, 8, 127),
        _Grouped("fp4", 1, 4, 1),
    )
}

NAMES = tuple(_ALL)


def named(name: str) -> Codec:
    """The format of this name, one of those that `sync.codec` allows."""
    return _ALL[name]


def below(name: str) -> tuple[str, ...]:
    """Formats with fewer bits, one after the other, to which a contribution may change over a slow link."""
    return tuple(each for each in ("bf16", "int8", "fp4") if named(each).bits < named(name).bits)


def known(name: object) -> Codec | None:
    """The same, or None for what is no name: a recipe of another version may hold anything."""
    return _ALL.get(name) if isinstance(name, str) else None


def uplinks(sync: SyncConfig, fragments: Sequence[Fragment]) -> Uplinks:
    """Return the bytes of contributions in the run's format, and in those below it if links may adapt.

    A model with a mean keeps its format: a difference that is rounded could make a variance negative.
    """
    mean = any(tensor.kind == "mean" for fragment in fragments for tensor in fragment.tensors)
    lower = below(sync.codec) if sync.adaptive and not mean else ()
    sizes = tuple(tuple(named(name).bytes(each.size) for each in fragments) for name in (sync.codec, *lower))
    return Uplinks(("", *lower), sizes)
