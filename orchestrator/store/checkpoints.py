"""Checkpoints as they lie in the store: which there are, whether they are whole, and what a run can go on from.

A checkpoint is its manifest and the parts that this names; without a manifest there is none. Knows nothing of who
writes them, nor of Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from outer.journal import checkpoint_parts as parts
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects

REQUEST_FILE = "checkpoint.json"  # {"at"}: one is wanted now


class Part(BaseModel):
    """One object of a checkpoint."""

    model_config = ConfigDict(frozen=True, strict=True)

    part: str
    seal: str  # SHA-256
    bytes: NonNegativeInt
    learner: str = ""  # "": the syncer's
    incarnation: NonNegativeInt = 0
    exact: bool = False  # nothing happened after it: the same incarnation can go on from it


class Manifest(BaseModel):
    """What is said of a checkpoint as a whole."""

    model_config = ConfigDict(frozen=True, strict=True)

    snapshot: PositiveInt
    run: str  # tells this run's journal from every other
    config_hash: str
    final: bool  # the run was suspended with it
    epoch: PositiveInt
    syncer_step: NonNegativeInt  # of the newest commit in it
    tokens_committed: NonNegativeInt
    created_at: NonNegativeFloat  # Unix seconds
    parts: list[Part]
    omitted: list[str]  # learners that gave no state in time: they are recovered from a peer

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def learners(self) -> dict[str, Part]:
        return {part.learner: part for part in self.parts if part.learner}


@dataclass
class Resumption:
    """What a run goes on from, beside its journal."""

    manifest: Manifest | None = None
    damage: list[tuple[int, str]] = field(default_factory=list)  # (snapshot, what is wrong with it)


def write(store: Objects, manifest: Manifest) -> None:
    """Commit a checkpoint. Raises OSError; FileExistsError where there is one of this number."""
    parts.write(store, manifest.snapshot, parts.MANIFEST, {"manifest": manifest.model_dump(mode="json")}, [])


def manifest_of(store: Objects, snapshot: int) -> Manifest:
    """Raises Damaged, in words."""
    header, _, _ = parts.read(store, snapshot, parts.MANIFEST)
    try:
        manifest = Manifest.model_validate(header["manifest"])
    except (KeyError, ValidationError) as error:
        raise Damaged(f"its manifest is of another form: {error}") from error
    if manifest.snapshot != snapshot:
        raise Damaged(f"its manifest is that of checkpoint {manifest.snapshot}")
    return manifest


def known(store: Objects) -> list[int]:
    """The numbers under which anything lies, in order; what has no manifest is no checkpoint yet, or never was."""
    return sorted(int(name) for name in store.folders(parts.FOLDER) if name.isdecimal())


def complete(store: Objects, snapshot: int) -> bool:
    """Whether it has a manifest; not whether that is whole."""
    return parts.object_key(snapshot, parts.MANIFEST) in store.names(f"{parts.FOLDER}/{snapshot:06d}")


def damage(store: Objects, snapshot: int, run: str | None = None) -> list[str]:
    """What is wrong with a checkpoint, part by part, in words; empty where every byte is as it was written."""
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
    """The newest checkpoint of this run that is whole; and which newer ones are not."""
    found = Resumption()
    for snapshot in reversed(known(store)):
        if not complete(store, snapshot):
            continue  # its writer died: nobody was ever told of it
        if wrong := damage(store, snapshot, run):
            found.damage.append((snapshot, "; ".join(wrong)))
            continue
        found.manifest = manifest_of(store, snapshot)
        break
    return found


def retire(store: Objects, keep: int) -> list[int]:
    """Remove all but the newest so many, and what never became one before them. Returns which."""
    numbers = known(store)
    whole = [number for number in numbers if complete(store, number)]
    oldest = whole[-keep] if len(whole) >= keep else 0
    retired = [number for number in numbers if number < oldest]
    for number in retired:
        names = store.names(f"{parts.FOLDER}/{number:06d}")
        for name in sorted(names, key=lambda name: not name.endswith(parts.MANIFEST)):  # first it is no checkpoint
            store.remove(name)
    return retired


def describe(manifest: Manifest, now: float) -> dict[str, Any]:
    """For lists of checkpoints."""
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


def exact_learners(manifest: Manifest, epochs: int, incarnations: Mapping[str, int]) -> Iterable[str]:
    """Who can go on as the same incarnation: nothing may have happened since the run was suspended."""
    if not manifest.final or manifest.epoch != epochs:
        return
    for name, part in manifest.learners.items():
        if part.exact and incarnations.get(name) == part.incarnation:
            yield name
