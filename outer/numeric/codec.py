"""Payloads of contributions: made from a learner's parameters, read back, and checked with digests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from outer.numeric.formats import named
from outer.protocol.messages import Contribution

DIFFERENCE = "fp32_delta"  # what holds the outer gradient of any other format


def encode(codec: str, theta: NDArray[np.float32], anchor: NDArray[np.float32], seed: int = 0) -> NDArray[Any]:
    """The payload of a learner's parameters theta float32[n], grown from anchor float32[n].

    fp32: theta. Any other format: the outer gradient anchor - theta. `seed`: for formats that round at random.
    """
    form = named(codec)
    if form.absolute:
        return form.encode(theta, seed)
    with np.errstate(over="ignore", invalid="ignore"):  # the receiver refuses non-finite payloads
        return form.encode(anchor - theta, seed)


def decode(
    codec: str, payload: NDArray[Any], anchor: NDArray[np.float32], place: slice = slice(None), values: bool = False
) -> NDArray[np.float64]:
    """Decode a payload that `Codec.inspect` passed to the outer gradient anchor - theta, float64[n] (paper section 3).

    `place`: only these elements. `values`: to theta, exact for fp32. The difference is exact for fp32 while no element
    changed by more than a factor of 2**29: then an outer step of plain SGD with rate 1 restores theta bit for bit.
    """
    form = named(codec)
    numbers = form.decode(payload, len(anchor), place).astype(np.float64)
    return numbers if form.absolute == values else anchor[place].astype(np.float64) - numbers


def difference(codec: str, payload: NDArray[Any], anchor: NDArray[np.float32]) -> NDArray[np.uint32]:
    """A payload that `Codec.inspect` passed, in the format DIFFERENCE: the outer gradient, rounded to float32."""
    form = named(codec)
    numbers = form.decode(payload, len(anchor))
    with np.errstate(over="ignore"):  # what is not finite shows in the merged value
        found = anchor - numbers if form.absolute else numbers
    return np.ascontiguousarray(found, np.float32).view(np.uint32)


def digest(*payloads: NDArray[Any]) -> str:
    """XXH3, 128 bits, of the arrays' concatenated bytes, hexadecimal: bits flip, and nobody here forges them."""
    running = xxhash.xxh3_128()
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
    if defect := named(codec).inspect(payload, size):
        return replace(contribution, payload=None, defect=defect)
    return contribution
