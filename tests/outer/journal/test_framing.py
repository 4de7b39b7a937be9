"""Frames: what was packed comes back, and no change of it goes unnoticed."""

from __future__ import annotations

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

from outer.journal.framing import ALIGNMENT, MAGIC, Damaged, pack, unpack

HEADER = {"kind": "records", "position": 3, "nested": {"a": [1, 2.5, None, "é"]}}


def packed(header: dict, *arrays: np.ndarray) -> bytes:  # type: ignore[type-arg]
    return b"".join(pack(header, arrays)[0])


def sealed(body: bytes) -> bytes:
    """By somebody who knows how."""
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(7, dtype=np.float32),
        np.zeros((0, 3), np.float64),
        np.array(5, np.int64),
        np.arange(24, dtype=np.uint16).reshape(2, 3, 4)[:, ::2].transpose(2, 0, 1),
        np.array([True, False]),
        np.array([1, 2], ">i4"),
        np.array([np.nan, -0.0, np.inf], np.float16),
    ],
    ids=str,
)
def test_header_and_arrays_come_back_to_the_bit(array: np.ndarray) -> None:  # type: ignore[type-arg]
    data, seal = pack(HEADER, [np.arange(3), array])
    header, [before, back], found = unpack(b"".join(data))
    assert header == HEADER and found == seal
    assert before.tolist() == [0, 1, 2]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not back.flags.writeable


def test_a_format_that_numpy_has_not_comes_back_as_its_bytes() -> None:
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    [back] = unpack(packed({}, array))[1]
    assert back.tobytes() == array.tobytes() and back.itemsize == 2


def test_arrays_lie_at_their_alignment_and_are_not_copied() -> None:
    parts, _ = pack({"a": 1}, [np.arange(5, dtype=np.int8), np.arange(3, dtype=np.float32)])
    at = 0
    for part in parts[:-1]:
        if isinstance(part, memoryview):
            assert at % ALIGNMENT == 0
        at += len(part)
    large = np.ones(10, np.float32)
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), large) for part in pack({}, [large])[0] if len(part))


def test_every_flip_of_one_bit_is_found() -> None:
    whole = packed({"k": "v"}, np.arange(3, dtype=np.float32), np.arange(2))
    assert len(whole) < 400, "small enough to try all"
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            unpack(bytes(data))


def test_every_truncation_is_found_and_so_is_more_than_there_was() -> None:
    whole = packed({"k": "v"}, np.arange(3, dtype=np.float32))
    for length in range(len(whole)):
        with pytest.raises(Damaged):
            unpack(whole[:length])
    for more in (b"\0", whole, bytes(ALIGNMENT)):
        with pytest.raises(Damaged):
            unpack(whole + more)


def frame(header: bytes, rest: bytes = b"") -> bytes:
    return sealed(MAGIC + len(header).to_bytes(8, "big") + header + rest)


@pytest.mark.parametrize(
    "data",
    [
        frame(b"{"),
        frame(b"\xff"),
        frame(b"[]"),
        frame(b"{}"),
        frame(b"1"),
        frame(b"[" * 100_000),
        frame(json.dumps({"arrays": 3}).encode()),
        frame(json.dumps({"arrays": [["<f4", [10]]]}).encode(), bytes(20)),
        frame(json.dumps({"arrays": [["<f4", [-1]]]}).encode(), bytes(100)),
        frame(json.dumps({"arrays": [["|O", [1]]]}).encode(), bytes(100)),
        frame(json.dumps({"arrays": [["<U2", [1]]]}).encode(), bytes(100)),
        frame(json.dumps({"arrays": [["nonsense", [1]]]}).encode(), bytes(100)),
        sealed(MAGIC + (2**63).to_bytes(8, "big") + b"{}"),
        sealed(b"not ours, and long enough to hold all"),
    ],
    ids=lambda data: str(data[16:40]),
)
def test_what_is_sealed_and_no_frame_of_ours_is_damage_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Damaged):
        unpack(data)


def test_a_number_that_json_has_not_is_not_packed() -> None:
    with pytest.raises(ValueError):
        pack({"a": float("nan")}, [])
