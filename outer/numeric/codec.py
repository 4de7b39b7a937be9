"""Number formats of a contribution's payload on the wire, and the checks of a received payload.

A payload is a contiguous 1-D NumPy array. `fp32` carries the learner's parameters, from which the syncer computes the
outer gradient without rounding. `bf16` carries the outer gradient itself, in half the bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import xxhash
from numpy.typing import NDArray

from outer.protocol.messages import Contribution

SHA256_DIGITS = 64
FLOAT32 = np.dtype(np.float32)
BITS16 = np.dtype(np.uint16)
_DTYPES: dict[str, np.dtype[Any]] = {"fp32": FLOAT32, "bf16": BITS16}
_EXPONENT = np.uint16(0x7F80)  # all ones in bfloat16: infinity or NaN


def dtype(codec: str) -> np.dtype[Any]:
    """Of the elements of a payload."""
    return _DTYPES[codec]


def encode(codec: str, theta: NDArray[np.float32], base: NDArray[np.float32]) -> NDArray[Any]:
    """Encode a learner's parameters theta float32[n], grown from the syncer's value base float32[n].

    fp32: theta, float32[n]. bf16: base - theta, rounded to nearest even, as the bits of bfloat16 in uint16[n]: Ray
    copies arrays of NumPy's extension types instead of sharing their memory.
    """
    if codec == "fp32":
        return np.ascontiguousarray(theta, dtype=np.float32)
    assert codec == "bf16", codec
    with np.errstate(over="ignore", invalid="ignore"):  # the receiver refuses non-finite payloads
        return (base - theta).astype(ml_dtypes.bfloat16).view(np.uint16)


def decode(codec: str, payload: NDArray[Any], base: NDArray[np.float32]) -> NDArray[np.float64]:
    """Decode a payload that `inspect` passed to the outer gradient base - theta, float64[n] (paper section 3).

    For fp32 the difference is exact while no element changed by more than a factor of 2**29, so an outer step of
    plain SGD with learning rate 1 restores theta bit for bit.
    """
    if codec == "fp32":
        return base.astype(np.float64) - payload.astype(np.float64)
    assert codec == "bf16", codec
    return (payload.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def values(codec: str, payload: NDArray[Any], base: NDArray[np.float32]) -> NDArray[np.float64]:
    """The learner's parameters in a payload that `inspect` passed, float64[n]; exact for fp32."""
    return payload.astype(np.float64) if codec == "fp32" else base.astype(np.float64) - decode(codec, payload, base)


def inspect(codec: str, payload: Any, size: int) -> str:
    """The defect of a payload for a fragment of `size` elements: "wrong_shape", "non_finite", or "" for none.

    "wrong_shape" is anything but a contiguous 1-D array of the codec's dtype and of that size.
    """
    if not isinstance(payload, np.ndarray) or payload.dtype != _DTYPES[codec] or payload.shape != (size,):
        return "wrong_shape"
    if not payload.flags.c_contiguous:
        return "wrong_shape"
    return "" if finite(payload) else "non_finite"


def finite(payload: NDArray[Any]) -> bool:
    """Whether all numbers are finite, in float32[n] or as the bits of bfloat16 in uint16[n]."""
    finite = np.isfinite(payload) if payload.dtype == FLOAT32 else (payload & _EXPONENT) != _EXPONENT
    return bool(finite.all())


def digest(*payloads: NDArray[Any], like: str = "") -> str:
    """XXH3, 128 bits, of the arrays' concatenated bytes, hexadecimal: bits flip, and nobody here forges them.

    `like`: a recorded digest to compare with; one of an older version may be SHA-256, and then this is too.
    """
    running = hashlib.sha256() if len(like) == SHA256_DIGITS else xxhash.xxh3_128()
    for payload in payloads:
        running.update(np.ascontiguousarray(payload).data)
    return running.hexdigest()


def examine(contribution: Contribution, codec: str, size: int) -> Contribution:
    """Check a received contribution: returns it with `defect` set, and without its payload if there is a defect.

    Defects are wrong_shape, bad_digest and non_finite. `size`: elements of the fragment. Raises nothing: a defect is a
    recorded fact. The syncer's shells call it on every contribution.
    """
    payload = contribution.payload
    if not isinstance(payload, np.ndarray) or payload.ndim != 1:
        return replace(contribution, payload=None, defect="wrong_shape")
    if digest(payload) != contribution.digest:
        return replace(contribution, payload=None, defect="bad_digest")
    if defect := inspect(codec, payload, size):
        return replace(contribution, payload=None, defect=defect)
    return contribution
