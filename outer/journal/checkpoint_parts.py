"""Reads and writes the parts of a checkpoint in an object store.

    checkpoints/000007/syncer            the journal at the cut: its records and every fragment's newest value
    checkpoints/000007/shard-1           the values of the fragments of shard 1, where a run has shards
    checkpoints/000007/NAME.INCARNATION  a learner: machine state, parameters, inner state, and its fragments' bases
    checkpoints/000007/manifest          each part's seal and size; created last: without it there is no checkpoint

The writer of a part decides what it contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from outer.journal.framing import Damaged, pack, unpack
from outer.journal.object_store import Objects

FOLDER = "checkpoints"
SYNCER, MANIFEST = "syncer", "manifest"


def object_key(snapshot: int, part: str) -> str:
    return f"{FOLDER}/{snapshot:06d}/{part}"


def write(
    store: Objects, snapshot: int, part: str, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]
) -> dict[str, Any]:
    """Write a part; returns its entry for the manifest. Raises FileExistsError if another one is there; OSError."""
    content, seal = pack({"snapshot": snapshot, "part": part, **header}, arrays)
    try:
        store.create(object_key(snapshot, part), content)
    except FileExistsError:
        if not _is_there(store, snapshot, part, seal):
            raise
    return {"part": part, "seal": seal, "bytes": sum(map(len, content))}


def read(store: Objects, snapshot: int, part: str, seal: str = "") -> tuple[dict[str, Any], list[NDArray[Any]], str]:
    """Read a part: (header, arrays, seal). Raises Damaged if it is missing or not as it was written."""
    try:
        header, arrays, found = unpack(store.read(object_key(snapshot, part)))
    except FileNotFoundError as error:
        raise Damaged("it is missing") from error
    if (header.get("snapshot"), header.get("part")) != (snapshot, part):
        raise Damaged(f"it is {header.get('part')} of checkpoint {header.get('snapshot')}")
    if seal and found != seal:
        raise Damaged("its seal is not the one in the manifest")
    return header, arrays, found


def read_values(
    store: Objects, snapshot: int, seal: str = ""
) -> tuple[dict[str, Any], dict[int, tuple[int, list[NDArray[Any]]]], dict[int, NDArray[Any]]]:
    """(header, (version, arrays) by fragment, initial values by fragment) of the syncer's part and those of its shards.

    `seal`: of the syncer's part. Raises Damaged.
    """
    header, arrays, _ = read(store, snapshot, SYNCER, seal)
    values: dict[int, tuple[int, list[NDArray[Any]]]] = {}
    initial: dict[int, NDArray[Any]] = {}
    described = [(header, arrays)]
    described += [read(store, snapshot, part, expected)[:2] for part, expected in header.get("apart", ())]
    for each, given in described:
        left = iter(given)
        values |= {f: (version, [next(left) for _ in range(count)]) for f, version, count in each["values"]}
        initial |= {fragment: next(left) for fragment in each.get("initial", ())}
    return header, values, initial


def _is_there(store: Objects, snapshot: int, part: str, seal: str) -> bool:
    """Return whether this very part is there: only the acknowledgement of its creation was lost then."""
    try:
        return read(store, snapshot, part, seal)[2] == seal
    except Damaged:
        return False
