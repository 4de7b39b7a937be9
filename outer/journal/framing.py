"""The binary format of journal groups and checkpoint parts: a JSON header, arrays, and a checksum.

    magic | length of the header | header, JSON, padded | arrays, each padded | SHA-256 of everything before (the seal)

Reading verifies the seal first and executes nothing.
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
ALIGNMENT = 64  # bytes; arrays that are read back need no copy
_SEAL = hashlib.sha256().digest_size
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_KINDS = "biufV"  # dtype kinds: bool, integers, floats, and raw bytes of formats that NumPy does not have


class Damaged(ValueError):
    """These bytes are not as they were written. The message says what is wrong."""


def pack(header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> tuple[list[bytes | memoryview], str]:
    """Returns the chunks to write one after another, and the seal in hexadecimal. Copies no contiguous array."""
    solid = [np.asarray(array, order="C") for array in arrays]  # keeps scalars 0-dimensional
    described = [[array.dtype.str, list(array.shape)] for array in solid]
    text = _ENCODER.encode({**header, "arrays": described}).encode()
    parts: list[bytes | memoryview] = [MAGIC + len(text).to_bytes(8, "big") + text]
    for array in solid:
        parts += [bytes(-sum(map(len, parts)) % ALIGNMENT), array.reshape(-1).view(np.uint8).data]
    running = hashlib.sha256()
    for part in parts:
        running.update(part)
    return [*parts, running.digest()], running.hexdigest()


def is_sealed(data: bytes, seal: str) -> bool:
    """Whether these are packed bytes with this seal, and intact."""
    body, end = memoryview(data)[:-_SEAL], data[-_SEAL:]
    return end.hex() == seal and hashlib.sha256(body).digest() == end


def unpack(data: bytes) -> tuple[dict[str, Any], list[NDArray[Any]], str]:
    """Returns (header, arrays, seal) of packed bytes; the arrays are read-only views. Raises Damaged."""
    body, seal = memoryview(data)[:-_SEAL], data[-_SEAL:]
    if len(data) < len(MAGIC) + 8 + _SEAL or data[: len(MAGIC)] != MAGIC:
        raise Damaged(f"{len(data)} bytes that do not begin with the format's magic number")
    if hashlib.sha256(body).digest() != seal:
        raise Damaged("its checksum does not match its content")
    begin = len(MAGIC) + 8
    end = begin + int.from_bytes(body[len(MAGIC) : begin], "big")
    try:
        header = json.loads(bytes(body[begin:end]))
        arrays = list(_arrays(body, end, header.pop("arrays")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"its checksum is right, but its header is not valid: {error}") from error
    return header, arrays, seal.hex()


def _arrays(body: memoryview, at: int, described: Iterable[Any]) -> Iterable[NDArray[Any]]:
    for kind, shape in described:
        dtype = np.dtype(kind)
        if dtype.kind not in _KINDS:
            raise ValueError(f"arrays of {dtype} are not part of the format")
        at += -at % ALIGNMENT
        yield np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        at += math.prod(shape) * dtype.itemsize
