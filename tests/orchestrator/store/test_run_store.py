"""The run store: atomic writes, and numbers that are granted once."""

from __future__ import annotations

import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import GRANTS_KEPT, RunStore
from tests.waiting import DEADLINE_S


def test_a_store_is_a_path_or_a_file_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / "a run"
    assert RunStore(expected).root == expected
    assert RunStore("a run").root == expected
    assert RunStore(f"file://{tmp_path}/a%20run").root == expected
    assert RunStore(f"file://localhost{tmp_path}/a%20run").root == expected
    assert RunStore.named("demo").root == tmp_path / "runs" / "demo"


@pytest.mark.parametrize("uri", ["s3://bucket/run", "gs://bucket/run", "file://host/run", "memory://"])
def test_any_other_scheme_is_refused_with_what_to_use(uri: str) -> None:
    with pytest.raises(InputError, match="not supported yet") as caught:
        RunStore(uri)
    assert caught.value.problems[0].value == uri
    assert "folder" in caught.value.problems[0].fix


def test_naming_a_store_creates_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run")
    assert (store.exists, store.empty, store.read_json("status.json"), store.read_text("x")) == (
        False,
        True,
        None,
        None,
    )
    assert not store.root.exists()
    store.create()
    store.create()
    assert store.exists
    assert store.empty


def test_json_comes_back_and_no_draft_is_left(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_json("deep/status.json", {"a": [1, 2.5, None]})
    store.write_json("deep/status.json", {"a": "again"})
    assert store.read_json("deep/status.json") == {"a": "again"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["status.json"]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_json("status.json", {"loss": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write_json("status.json", {"loss": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        store.write_text("status.json", "\ud800")
    assert store.read_json("status.json") == {"loss": 1.0}
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_reader_never_sees_part_of_a_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_json("status.json", [0] * 20_000)
    done = threading.Event()

    def write() -> None:
        try:
            for value in range(1, 40):
                store.write_json("status.json", [value] * 20_000)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set() or reads == 0:
        values = store.read_json("status.json")
        assert len(values) == 20_000
        assert len(set(values)) == 1
        reads += 1
    writer.join()


def test_grants_count_from_one_for_each_holder(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert [store.grant("incarnation", "learner-a-0") for _ in range(3)] == [1, 2, 3]
    assert store.grant("incarnation", "learner-a-1") == 1
    assert store.grant("epoch", "syncer") == 1
    assert RunStore(tmp_path).grant("incarnation", "learner-a-0") == 4  # known to every process


def test_no_number_is_granted_twice_to_concurrent_callers(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def ask(_: int) -> list[int]:
        store = RunStore(tmp_path)
        barrier.wait(DEADLINE_S)
        return [store.grant("epoch", "syncer") for _ in range(25)]

    with ThreadPoolExecutor(8) as pool:
        granted = [number for numbers in pool.map(ask, range(8)) for number in numbers]
    assert sorted(granted) == list(range(1, 201))


def test_old_grants_go_and_none_of_their_numbers_is_granted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, slow = RunStore(tmp_path), RunStore(tmp_path)
    looks = iter([4])  # then it is as quick as any other
    monkeypatch.setattr(slow, "granted", lambda kind, who: next(looks, store.granted(kind, who)))
    for number in range(1, 2 * GRANTS_KEPT):
        assert store.grant("epoch", "syncer") == number
    assert len(list((tmp_path / "grants/epoch/syncer").iterdir())) == GRANTS_KEPT
    assert slow.grant("epoch", "syncer") == 2 * GRANTS_KEPT, "it looked long ago, and its number was free again"
    assert store.granted("epoch", "syncer") == 2 * GRANTS_KEPT


def test_stores_and_input_errors_travel_between_processes(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(RunStore(tmp_path))).root == tmp_path
    error = InputError([Problem("sync.H", -1, "must be above 0", "raise it")])
    again = pickle.loads(pickle.dumps(error))
    assert (again.problems, str(again)) == (error.problems, str(error))
    assert json.loads(json.dumps(str(again))).startswith("sync.H = -1: must be above 0")
