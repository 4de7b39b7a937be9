"""log.*: a run's folder as it was written passes; what is changed, dropped, inserted or cut off is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.analysis.checks import check
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog import compactor, reader, tables
from orchestrator.eventlog.events import Event, Unknown
from outer.journal import journal as journals
from outer.journal.object_store import Folder
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.histories import history


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Segments of few rows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journals, "SNAPSHOT_GROUPS", 2)
        for module in (journals, compactor):
            patched.setattr(module, "SEGMENT_ROWS", 60)
        yield


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments of all logs, and their seal."""
    root = tmp_path_factory.mktemp("sound")
    ends = write_log(root, history(), 20)
    (root / reader.SEAL_FILE).write_text(json.dumps(reader.seal(ends)))
    return root


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    return {each.name: (each.status, each.reason) for each in check_run(folder)}


def test_a_log_in_its_folder_is_checked_like_its_events(sound: Path) -> None:
    told = verdicts(sound)
    assert [told[name][0] for name in ("log.readable", "log.chain", "log.seal")] == ["pass"] * 3
    rest = {each.name: (each.status, each.reason) for each in check(history())}
    assert {name: told[name] for name in rest} == rest
    assert told.keys() - rest.keys() == {"log.readable", "log.chain", "log.seal", "log.recipe"}
    assert {each.status for each in check_run(sound / "nowhere")} == {"unknown"}


def objects(root: Path) -> list[Path]:
    """Manifests and the files that they name."""
    return sorted(path for path in (root / "log").glob("*/*/*") if path.parent.name != "groups")


def manifests(root: Path) -> list[Path]:
    return [path for path in objects(root) if path.parent.name == "segments"]


def changed(root: Path, chance: Random) -> None:
    """One bit of an object."""
    path = chance.choice(objects(root))
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def dropped(root: Path, chance: Random) -> None:
    chance.choice(objects(root)).unlink()


def swapped(root: Path, chance: Random) -> None:
    one, other = chance.sample(objects(root), 2)
    here, there = one.read_bytes(), other.read_bytes()
    one.write_bytes(there)
    other.write_bytes(here)


def doubled(root: Path, chance: Random) -> None:
    """A segment is there once more, behind the last one."""
    each = chance.choice(manifests(root))
    last = max(each.parent.iterdir())
    shutil.copy(each, last.with_name(f"{int(last.name) + 1:09d}"))


def forged(root: Path, chance: Random) -> None:
    """One fact less, in a file and under a seal that are right again; the segment behind it names another one."""
    path = chance.choice(sorted((root / "log/syncer/segments").iterdir())[:-1])
    segment = compactor.segment_in(path.read_bytes())
    *files, file = segment.files
    content = tables.write(file.table, tables.read(file.table, (root / file.name).read_bytes())[1:])
    (root / file.name).write_bytes(content)
    file = replace(file, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    path.write_bytes(compactor.manifest(replace(segment, rows=segment.rows - 1, files=(*files, file)))[0])


def cut(root: Path, chance: Random) -> None:
    """The newest segment of a log, and the groups that it was made of."""
    folder = root / "log" / chance.choice(["syncer", "orchestrator"]) / "segments"
    max(folder.iterdir()).unlink()
    for path in [*(root / "journal").glob("0*"), *(root / "log/orchestrator/groups").glob("0*")]:
        path.unlink()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mutate", [changed, dropped, swapped, doubled, forged, cut])
def test_every_single_mutation_is_found(
    sound: Path, tmp_path: Path, mutate: Callable[[Path, Random], None], seed: int
) -> None:
    root = tmp_path / "run"
    shutil.copytree(sound, root)
    mutate(root, Random(seed))
    told = verdicts(root)
    assert "violated" in {told[name][0] for name in ("log.readable", "log.chain", "log.seal")}
    if told["log.readable"][0] == "violated":  # nothing else is claimed
        assert "segment" in told["log.readable"][1] and told["merges.weights"][0] == "unknown", (
            "nothing else is claimed"
        )


def test_a_log_without_its_end_is_unknown_there(tmp_path: Path) -> None:
    write_log(tmp_path, history(), close=False)
    told = verdicts(tmp_path)
    assert told["log.seal"][0] == "unknown" and told["log.chain"][0] == "pass"


@pytest.mark.parametrize("damaged", ["", "[]", '{"format": 3}', '{"format": 3, "logs": {"syncer": {}}}'])
def test_a_damaged_seal_is_violated(sound: Path, tmp_path: Path, damaged: str) -> None:
    root = tmp_path / "run"
    shutil.copytree(sound, root)
    (root / reader.SEAL_FILE).write_text(damaged)
    status, reason = verdicts(root)["log.seal"]
    assert status == "violated" and "damaged" in reason


def test_a_log_with_facts_of_a_newer_version_is_not_called_sound(tmp_path: Path) -> None:
    newer = tables.part_of([Event("a", 1, 0, 1.0, Unknown("Newer", {}))])
    compactor.create(Folder(tmp_path), compactor.Segment("syncer", "run", 0, "", 0, 0, "g", 0, 1), newer)
    assert verdicts(tmp_path)["log.readable"][0] == "unknown"


def test_a_check_tells_how_far_it_is(sound: Path) -> None:
    told = list[int]()
    check_run(sound, told.append)
    assert told == sorted(told) and len(told) > 5 and told[-1] == len(history())
