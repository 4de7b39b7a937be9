"""The parts of a checkpoint in a store of objects: who writes one, and how whoever reads one knows that it is whole.

    checkpoints/000007/syncer            what the journal held at the cut: records and every fragment's newest value
    checkpoints/000007/NAME.INCARNATION  a learner: where it stood, parameters, inner state, the values it grew from
    checkpoints/000007/manifest          each part's seal and size; created last, so that without it there is nothing

Knows names and seals; what is in a part is its writer's.
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
    """Returns what the manifest says of it. Raises OSError; FileExistsError where there is one already."""
    content, seal = pack({"snapshot": snapshot, "part": part, **header}, arrays)
    try:
        store.create(object_key(snapshot, part), content)
    except FileExistsError:
        if not _is_there(store, snapshot, part, seal):
            raise
    return {"part": part, "seal": seal, "bytes": sum(map(len, content))}


def read(store: Objects, snapshot: int, part: str, seal: str = "") -> tuple[dict[str, Any], list[NDArray[Any]], str]:
    """(header, arrays, seal). Raises Damaged, in words, for one that is not as it was written, or not there."""
    try:
        header, arrays, found = unpack(store.read(object_key(snapshot, part)))
    except FileNotFoundError as error:
        raise Damaged("it is missing") from error
    if (header.get("snapshot"), header.get("part")) != (snapshot, part):
        raise Damaged(f"it is {header.get('part')} of checkpoint {header.get('snapshot')}")
    if seal and found != seal:
        raise Damaged("it is not the one that the manifest names")
    return header, arrays, found


def _is_there(store: Objects, snapshot: int, part: str, seal: str) -> bool:
    """Whether it is ours that is there, and only its acknowledgement was lost."""
    try:
        return read(store, snapshot, part, seal)[2] == seal
    except Damaged:
        return False
