"""Checkpoints: none without a manifest, damage of any part is found and named, and the newest whole one is taken."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.store import checkpoints
from orchestrator.store.checkpoints import CheckpointManifest, CheckpointPart
from outer.journal import checkpoint_parts
from outer.journal.chain import IDENTITY, identity_object
from outer.journal.framing import Damaged
from outer.journal.object_store import Folder
from tests.orchestrator import taking

RUN = "run-one"
PARTS = ("syncer", "a.1", "b.2")


def take(
    store: Folder, snapshot: int, run: str = RUN, final: bool = False, manifest: bool = True, epoch: int = 1
) -> CheckpointManifest:
    """A checkpoint of two learners."""
    value = [np.full(9, snapshot, np.float32), np.arange(snapshot)]
    made = []
    for part in PARTS:
        learner, _, incarnation = part.partition(".")
        about = {"learner": learner, "incarnation": int(incarnation), "exact": True} if incarnation else {}
        made.append(CheckpointPart(**checkpoint_parts.write(store, snapshot, part, {"run": run}, value), **about))
    about = {"epoch": epoch, "syncer_step": 10 * snapshot, "tokens_committed": 100 * snapshot, "omitted": ["c"]}
    whole = taking.manifest(snapshot, run, made, final=final, created_at=1e9 + snapshot, **about)
    if manifest:
        checkpoints.write(store, whole)
    return whole


def file(root: Path, snapshot: int, part: str) -> Path:
    return root / checkpoint_parts.object_key(snapshot, part)


def of_another_checkpoint(path: Path) -> None:
    path.write_bytes((path.parent.parent / "000001" / path.name).read_bytes())


def of_another_run(path: Path) -> None:
    """The part of the same name and number."""
    other = path.parent.parent.parent / "other"
    take(Folder(other), int(path.parent.name), run="run-two")
    path.write_bytes((other / checkpoint_parts.FOLDER / path.parent.name / path.name).read_bytes())


def of_its_neighbour(path: Path) -> None:
    path.write_bytes(path.with_name("syncer" if path.name != "syncer" else "a.1").read_bytes())


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(3).randrange(len(data))] ^= 4
    path.write_bytes(data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


DAMAGES = [flipped, truncated, Path.unlink, of_another_checkpoint, of_another_run, of_its_neighbour]


@pytest.mark.parametrize("part", [*PARTS, "manifest"])
@pytest.mark.parametrize("hurt", DAMAGES)
def test_damage_of_any_part_is_found_and_named_and_the_one_before_is_taken(
    tmp_path: Path, hurt: Callable[[Path], None], part: str
) -> None:
    store = Folder(tmp_path)
    for snapshot in (1, 2, 3):
        take(store, snapshot)
    hurt(file(tmp_path, 3, part))
    found = checkpoints.resumption(store, RUN)
    assert found.manifest is not None and found.manifest.snapshot == 2
    if (part, hurt) == ("manifest", Path.unlink):
        assert found.damage == [], "without a manifest there is no checkpoint"
        return
    [(snapshot, said)] = found.damage
    assert snapshot == 3 and said.startswith(f"{part}: ")
    assert len(checkpoints.damage(store, 3, RUN)) == (4 if (part, hurt) == ("manifest", of_another_run) else 1)
    assert checkpoints.damage(store, 2, RUN) == []
    told = {each["snapshot"]: each["damage"] for each in checkpoints.listed(store, time.time())}
    assert (told[1], told[2]) == ([], []), "a list reads no parts"
    assert bool(told[3]) == ((part == "manifest" and hurt is not of_another_run) or hurt is Path.unlink)


def test_where_none_is_whole_there_is_none_to_go_on_from(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    for snapshot in (1, 2):
        take(store, snapshot)
        flipped(file(tmp_path, snapshot, "a.1"))
    found = checkpoints.resumption(store, RUN)
    assert found.manifest is None and [snapshot for snapshot, _ in found.damage] == [2, 1]
    take(store, 3, manifest=False)
    assert checkpoints.known(store) == [1, 2, 3] and not checkpoints.complete(store, 3)
    assert checkpoints.resumption(store, RUN).damage == found.damage, "without a manifest there is no checkpoint"
    assert [each["snapshot"] for each in checkpoints.listed(store, time.time())] == [1, 2]
    assert checkpoints.resumption(Folder(tmp_path / "empty"), RUN).manifest is None


def test_a_manifest_of_another_form_is_damage_in_words(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    checkpoint_parts.write(store, 1, "manifest", {"manifest": {"snapshot": 1}}, [])
    checkpoint_parts.write(store, 2, "manifest", {"other": 1}, [])
    shifted = take(store, 3, manifest=False).model_dump(mode="json")
    checkpoint_parts.write(store, 4, "manifest", {"manifest": shifted}, [])
    for snapshot in (1, 2, 4):
        with pytest.raises(Damaged, match="manifest"):
            checkpoints.manifest_of(store, snapshot)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    manifest = take(store, 1)
    assert checkpoints.manifest_of(store, 1) == manifest
    assert set(manifest.learners) == {"a", "b"} and manifest.learners["b"].incarnation == 2
    assert manifest.bytes == sum(file(tmp_path, 1, part).stat().st_size for part in PARTS)
    with pytest.raises(FileExistsError):
        checkpoints.write(store, manifest.model_copy(update={"tokens_committed": 1}))
    told = checkpoints.describe(manifest, 1e9 + 11)
    assert (told["age_s"], told["learners"], told["omitted"]) == (10.0, ["a", "b"], ["c"])
    json.dumps(told)


# ------------------------------------------------------------------ keeping few


def test_the_newest_so_many_are_kept_and_what_never_became_one_goes_with_its_elders(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    for snapshot in (1, 3, 4, 6):
        take(store, snapshot)
    for snapshot in (2, 5, 7):
        take(store, snapshot, manifest=False)
    assert checkpoints.retire(store, 2) == [1, 2, 3]
    assert checkpoints.known(store) == [4, 5, 6, 7], "5 and 7 may be about to become ones"
    assert checkpoints.retire(store, 2) == []
    assert checkpoints.damage(store, 4) == checkpoints.damage(store, 6) == []
    assert checkpoints.retire(store, 9) == []


def test_the_last_checkpoint_of_a_session_tells_that_its_newest_epoch_was_suspended(tmp_path: Path) -> None:
    """Seed 42549500 of mixed: no status could say so, and the next session took over what lingered of that one."""
    store = Folder(tmp_path)
    assert not checkpoints.suspended(store, 1)
    take(store, 1, final=True, epoch=2)
    take(store, 2, manifest=False, epoch=2)
    assert checkpoints.suspended(store, 2) and not checkpoints.suspended(store, 3)
    take(store, 3, epoch=2)
    assert not checkpoints.suspended(store, 2)
    truncated(file(tmp_path, 3, "manifest"))
    assert not checkpoints.suspended(store, 2)


def test_the_manifest_goes_first_so_that_half_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    removed: list[str] = []

    class Dying(Folder):
        def remove(self, name: str) -> None:
            if removed:
                raise OSError("power cut")
            removed.append(name)
            super().remove(name)

    for snapshot in (1, 2):
        take(Folder(tmp_path), snapshot)
    with pytest.raises(OSError):
        checkpoints.retire(Dying(tmp_path), 1)
    store = Folder(tmp_path)
    assert not checkpoints.complete(store, 1) and checkpoints.complete(store, 2)
    assert [each["snapshot"] for each in checkpoints.listed(store, time.time(), verify=True)] == [2]
    assert checkpoints.retire(store, 1) == [1] and checkpoints.known(store) == [2]


# ------------------------------------------------------------------ who goes on as before


def exact(manifest: CheckpointManifest, epochs: int = 1, **incarnations: int) -> set[str]:
    return set(checkpoints.exact_learners(manifest, epochs, {"a": 1, "b": 2} | incarnations))


def test_a_learner_goes_on_as_it_was_only_if_nothing_happened_since(tmp_path: Path) -> None:
    manifest = take(Folder(tmp_path), 1, final=True)
    assert exact(manifest) == {"a", "b"}
    assert exact(manifest, epochs=2) == set(), "another epoch has begun"
    assert exact(manifest, a=2) == {"b"}, "another incarnation was started"
    assert exact(manifest, a=0) == {"b"}
    assert exact(manifest.model_copy(update={"final": False})) == set(), "the run trained on"
    after = [part.model_copy(update={"exact": part.learner != "b"}) for part in manifest.parts]
    assert exact(manifest.model_copy(update={"parts": after})) == {"a"}, "something happened after it was saved"
    assert set(checkpoints.exact_learners(manifest, 1, {})) == set()


# ------------------------------------------------------------------ listing and verifying


def test_a_journal_that_is_another_runs_is_damage(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    assert checkpoints.journal_damage(store) == []
    store.create(f"journal/{IDENTITY}", identity_object(RUN))
    assert checkpoints.journal_damage(store) == []
    checkpoint_parts.write(store, 1, "x", {"run": "run-two", "position": 0}, [])
    store.create("journal/000000000000", [store.read(checkpoint_parts.object_key(1, "x"))])
    assert checkpoints.journal_damage(store) == ["group 0: it belongs to another position or another run"]
