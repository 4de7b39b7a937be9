"""Checkpoints in the store: which exist, whether they are undamaged, and which one a run can resume from.

A checkpoint is a manifest and the parts that it names; without a manifest there is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from outer.journal import checkpoint_parts as parts
from outer.journal import journal
from outer.journal.chain import identity
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects

JOURNAL = "journal"  # its folder in the store
REQUEST_FILE = "checkpoint.json"  # {"at"}: one is wanted now


class CheckpointPart(BaseModel):
    """One object of a checkpoint."""

    model_config = ConfigDict(frozen=True, strict=True)

    part: str
    seal: str  # SHA-256
    bytes: NonNegativeInt
    learner: str = ""  # "": the syncer's
    incarnation: NonNegativeInt = 0
    exact: bool = False  # nothing happened after it: the same incarnation can continue


class CheckpointManifest(BaseModel):
    """The description of a whole checkpoint."""

    model_config = ConfigDict(frozen=True, strict=True)

    snapshot: PositiveInt
    run: str  # identifies this run's journal
    config_hash: str
    final: bool  # the run was suspended with it
    epoch: PositiveInt
    syncer_step: NonNegativeInt  # of the newest commit in it
    tokens_committed: NonNegativeInt
    created_at: NonNegativeFloat  # Unix seconds
    parts: list[CheckpointPart]
    omitted: list[str]  # learners whose state did not come in time: they recover from a peer

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def learners(self) -> dict[str, CheckpointPart]:
        return {part.learner: part for part in self.parts if part.learner}


@dataclass
class Resumption:
    """The checkpoint that a run resumes from, beside its journal, and damaged newer ones."""

    manifest: CheckpointManifest | None = None
    damage: list[tuple[int, str]] = field(default_factory=list)  # (snapshot, what is wrong with it)


def write(store: Objects, manifest: CheckpointManifest) -> None:
    """Write the manifest, which completes a checkpoint. Raises OSError; FileExistsError if the number is taken."""
    parts.write(store, manifest.snapshot, parts.MANIFEST, {"manifest": manifest.model_dump(mode="json")}, [])


def manifest_of(store: Objects, snapshot: int) -> CheckpointManifest:
    """The manifest of a checkpoint. Raises Damaged."""
    header, _, _ = parts.read(store, snapshot, parts.MANIFEST)
    try:
        manifest = CheckpointManifest.model_validate(header["manifest"])
    except (KeyError, ValidationError) as error:
        raise Damaged(f"its manifest is of another form: {error}") from error
    if manifest.snapshot != snapshot:
        raise Damaged(f"its manifest is that of checkpoint {manifest.snapshot}")
    return manifest


def known(store: Objects) -> list[int]:
    """All snapshot numbers in the store, in order, with or without a manifest."""
    return sorted(int(name) for name in store.folders(parts.FOLDER) if name.isdecimal())


def complete(store: Objects, snapshot: int) -> bool:
    """Whether it has a manifest, damaged or not."""
    return parts.object_key(snapshot, parts.MANIFEST) in store.names(f"{parts.FOLDER}/{snapshot:06d}")


def damage(store: Objects, snapshot: int, run: str | None = None) -> list[str]:
    """List the damage of a checkpoint, part by part, in words; every byte is read."""
    try:
        manifest = manifest_of(store, snapshot)
    except Damaged as error:
        return [f"{parts.MANIFEST}: {error}"]
    found = []
    if run is not None and manifest.run != run:
        found.append(f"{parts.MANIFEST}: it is of another run")
    for part in manifest.parts:
        try:
            parts.read(store, snapshot, part.part, part.seal)
        except Damaged as error:
            found.append(f"{part.part}: {error}")
    return found


def resumption(store: Objects, run: str | None) -> Resumption:
    """The newest undamaged checkpoint of this run, and the damage of newer ones."""
    found = Resumption()
    for snapshot in reversed(known(store)):
        if not complete(store, snapshot):
            continue  # its writer died before it was complete
        if wrong := damage(store, snapshot, run):
            found.damage.append((snapshot, "; ".join(wrong)))
            continue
        found.manifest = manifest_of(store, snapshot)
        break
    return found


def suspended(store: Objects, epoch: int) -> bool:
    """Whether the newest checkpoint ended a session in this epoch."""
    newest = next((each for each in reversed(known(store)) if complete(store, each)), None)
    if newest is None:
        return False
    try:
        manifest = manifest_of(store, newest)
    except Damaged:
        return False
    return manifest.final and manifest.epoch == epoch


def retire(store: Objects, keep: int) -> list[int]:
    """Remove all but the newest `keep` checkpoints, and older incomplete ones. Returns their numbers."""
    numbers = known(store)
    whole = [number for number in numbers if complete(store, number)]
    oldest = whole[-keep] if len(whole) >= keep else 0
    retired = [number for number in numbers if number < oldest]
    for number in retired:
        names = store.names(f"{parts.FOLDER}/{number:06d}")
        for name in sorted(names, key=lambda name: not name.endswith(parts.MANIFEST)):  # without that it is none
            store.remove(name)
    return retired


def describe(manifest: CheckpointManifest, now: float) -> dict[str, Any]:
    """A checkpoint's entry in lists."""
    return {
        "snapshot": manifest.snapshot,
        "syncer_step": manifest.syncer_step,
        "tokens_committed": manifest.tokens_committed,
        "age_s": max(0.0, now - manifest.created_at),
        "bytes": manifest.bytes,
        "learners": sorted(manifest.learners),
        "omitted": manifest.omitted,
        "final": manifest.final,
    }


def exact_learners(manifest: CheckpointManifest, epochs: int, incarnations: Mapping[str, int]) -> Iterable[str]:
    """Learners that can continue as the same incarnation: nothing may have happened since the suspension."""
    if not manifest.final or manifest.epoch != epochs:
        return
    for name, part in manifest.learners.items():
        if part.exact and incarnations.get(name) == part.incarnation:
            yield name


# ------------------------------------------------------------------ listing and verifying


def listed(store: Objects, now: float, verify: bool = False) -> list[dict[str, Any]]:
    """Every checkpoint in order, as its manifest describes it.

    `damage`: with `verify` all that is found by reading every byte, else what shows without reading the parts.
    """
    found, run = [], identity(store, JOURNAL) if verify else None
    for snapshot in known(store):
        names = store.names(f"{parts.FOLDER}/{snapshot:06d}")
        if parts.object_key(snapshot, parts.MANIFEST) not in names:
            continue  # being written, or its writer died
        try:
            manifest = manifest_of(store, snapshot)
        except Damaged as error:
            if complete(store, snapshot):
                found.append({"snapshot": snapshot, "damage": [f"{parts.MANIFEST}: {error}"]})
            continue
        absent = [part.part for part in manifest.parts if parts.object_key(snapshot, part.part) not in names]
        wrong = damage(store, snapshot, run) if verify else [f"{part}: it is missing" for part in absent]
        if complete(store, snapshot):  # a manifest is the first to be removed
            found.append(describe(manifest, now) | {"damage": wrong})
    return found


def journal_damage(store: Objects) -> list[str]:
    """List the damage of the journal, group by group, in words; every byte is read.

    May be asked while the run goes on: groups that are removed meanwhile are not damage.
    """
    if not (wrong := journal.inspect(store, JOURNAL)):
        return []
    again = journal.inspect(store, JOURNAL)  # a group that was only removed does not show twice
    return [each for each in again if each in wrong]
