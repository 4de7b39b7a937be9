"""Reads what a run has kept, journal and checkpoints, and says what of it is not as it was written.

Reads only, and may be asked while the run goes on: what is let go of meanwhile is no damage. Knows nothing of who asks.
"""

from __future__ import annotations

from typing import Any

from orchestrator.store import checkpoints
from outer.journal import checkpoint_parts, journal
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects

JOURNAL = "journal"  # its folder


def listed(store: Objects, now: float) -> list[dict[str, Any]]:
    """Every checkpoint in order, as its manifest describes it; `damage` is what shows without reading the parts."""
    found = []
    for snapshot in checkpoints.known(store):
        names = store.names(f"{checkpoint_parts.FOLDER}/{snapshot:06d}")
        if checkpoint_parts.object_key(snapshot, checkpoint_parts.MANIFEST) not in names:
            continue  # being written, or its writer died: nobody was ever told of it
        try:
            manifest = checkpoints.manifest_of(store, snapshot)
        except Damaged as error:
            if checkpoints.complete(store, snapshot):
                found.append({"snapshot": snapshot, "damage": [f"{checkpoint_parts.MANIFEST}: {error}"]})
            continue
        absent = [part.part for part in manifest.parts if checkpoint_parts.object_key(snapshot, part.part) not in names]
        damage = [f"{part}: it is missing" for part in absent]
        found.append(checkpoints.describe(manifest, now) | {"damage": damage})
    return found


def checkpoint_damage(store: Objects, snapshot: int, run: str | None) -> list[str]:
    """Part by part, in words; every byte is read."""
    wrong = checkpoints.damage(store, snapshot, run)
    return wrong if checkpoints.complete(store, snapshot) else []  # a manifest is the first to be removed


def journal_damage(store: Objects) -> list[str]:
    """Group by group, in words; every byte is read."""
    if not (wrong := journal.inspect(store, JOURNAL)):
        return []
    again = journal.inspect(store, JOURNAL)  # what was only let go of is not there twice
    return [each for each in again if each in wrong]
