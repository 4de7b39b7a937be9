"""Plain values and arrays as one sealed run of bytes, and back: journal groups and the parts of checkpoints.

    magic | length of the header | header, JSON, padded | arrays, padded each | SHA-256 of all before

Nothing of it is executable, and nothing is believed before its checksum is right. Knows nothing of what it carries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"diloco1\n"
ALIGNMENT = 64  # bytes; arrays read back need no copy
_SEAL = hashlib.sha256().digest_size
_KINDS = "biufV"  # of arrays: bool, integers, floats; bytes of formats that NumPy has not


class Damaged(ValueError):
    """These bytes are not as they were written; the message says how that shows."""


def pack(header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> tuple[list[bytes | memoryview], str]:
    """The parts, to be written one behind the other, and the seal in hexadecimal. Arrays are not copied."""
    solid = [np.asarray(array, order="C") for array in arrays]  # which leaves scalars without axes
    described = [[array.dtype.str, list(array.shape)] for array in solid]
    text = json.dumps({**header, "arrays": described}, allow_nan=False, separators=(",", ":")).encode()
    parts: list[bytes | memoryview] = [MAGIC + len(text).to_bytes(8, "big") + text]
    for array in solid:
        parts += [bytes(-sum(map(len, parts)) % ALIGNMENT), array.reshape(-1).view(np.uint8).data]
    running = hashlib.sha256()
    for part in parts:
        running.update(part)
    return [*parts, running.digest()], running.hexdigest()


def unpack(data: bytes) -> tuple[dict[str, Any], list[NDArray[Any]], str]:
    """(header, arrays, seal) of what `pack` gave; the arrays are read-only views. Raises Damaged."""
    body, seal = memoryview(data)[:-_SEAL], data[-_SEAL:]
    if len(data) < len(MAGIC) + 8 + _SEAL or data[: len(MAGIC)] != MAGIC:
        raise Damaged(f"{len(data)} bytes that do not begin as ours do")
    if hashlib.sha256(body).digest() != seal:
        raise Damaged("its checksum is not that of its content")
    begin = len(MAGIC) + 8
    end = begin + int.from_bytes(body[len(MAGIC) : begin], "big")
    try:
        header = json.loads(bytes(body[begin:end]))
        arrays = list(_arrays(body, end, header.pop("arrays")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"it is sealed, but not by us: {error}") from error
    return header, arrays, seal.hex()


def _arrays(body: memoryview, at: int, described: Iterable[Any]) -> Iterable[NDArray[Any]]:
    for kind, shape in described:
        dtype = np.dtype(kind)
        if dtype.kind not in _KINDS:
            raise ValueError(f"arrays of {dtype} are not ours")
        at += -at % ALIGNMENT
        yield np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        at += math.prod(shape) * dtype.itemsize
