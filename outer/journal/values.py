"""Fragments' values in objects of their own, where the records that name them are written by another process.

    values/0007/000000000123.000002   of fragment 7: version 123, merged by epoch 2

The value is written first and the record second: the record is the only commit point, and a value that no record names
is none. Where one process does both, the value is in the record's group instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from outer.journal.framing import Damaged, pack, unpack
from outer.journal.object_store import Objects

FOLDER = "values"


class Stored(NamedTuple):
    """A value that is an object of its own."""

    key: str
    seal: str  # SHA-256
    bytes: int


def write(store: Objects, epoch: int, fragment: int, version: int, arrays: Sequence[NDArray[Any]]) -> Stored:
    """Write a value. Raises OSError: then call it again, with the same value."""
    content, seal = pack({"epoch": epoch, "fragment": fragment, "version": version}, arrays)
    stored = Stored(f"{FOLDER}/{fragment:04d}/{version:012d}.{epoch:06d}", seal, sum(map(len, content)))
    try:
        store.create(stored.key, content)
    except FileExistsError:
        read(store, stored)  # only the acknowledgement of an earlier attempt was lost
    return stored


def read(store: Objects, stored: Stored) -> list[NDArray[Any]]:
    """A value's arrays, read-only. Raises Damaged if it is missing or not as it was written; OSError."""
    try:
        _, arrays, seal = unpack(store.read(stored.key))
    except FileNotFoundError as error:
        raise Damaged(f"{stored.key} is missing") from error
    except Damaged as error:
        raise Damaged(f"{stored.key}: {error}") from error
    if seal != stored.seal:
        raise Damaged(f"{stored.key}: its seal is not the one in its record")
    return arrays


def sweep(store: Objects, epoch: int, needed: Collection[str]) -> None:
    """Remove what epochs before this one have left and no record needs any more. Raises OSError."""
    for fragment in store.folders(FOLDER):
        for name in store.names(f"{FOLDER}/{fragment}"):
            if name not in needed and name.rpartition(".")[2] < f"{epoch:06d}":
                store.remove(name)


def remove(store: Objects, stored: Stored) -> None:
    """Remove a value that newer ones have replaced. One that is left does no harm: an epoch that starts sweeps."""
    with contextlib.suppress(OSError):
        store.remove(stored.key)
