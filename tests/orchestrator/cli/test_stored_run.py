"""A run by its store alone: what any region reads of it, and how one joins it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.eventlog.log_writer import LOGS
from orchestrator.eventlog.reader import events, seal
from orchestrator.recipe.toml_text import dump, load
from orchestrator.recipe.validation import resolve
from orchestrator.runtime import launch
from orchestrator.store.published import FILES, KEPT, Publisher, StoredRun, newest
from orchestrator.store.run_store import RunStore
from outer.journal.chain import Segmented
from outer.journal.object_store import objects
from outer.protocol.manifest import code_digest
from tests.door import door as door
from tests.orchestrator.calling import invoke
from tests.orchestrator.eventlog.logs import Memory, write_log
from tests.orchestrator.histories import history

EU = {"name": "eu", "region": "eu", "joined": True, "batch_size": 4}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def told(folder: RunStore, state: str, **recipe: Any) -> None:
    """What an orchestrator leaves in the run's folder."""
    path = folder.root / "asked.toml"
    pools = "".join(f"\n[[pools]]\n{table}" for table in ('name = "us"', toml(EU | recipe.pop("eu", {}))))
    path.write_text(f'name = "two"\n{toml(recipe)}[durability]\nstore = "store"\n{pools}[budget]\nsyncer_steps = 99\n')
    folder.write_text("config.toml", dump(resolve(load(path))))
    folder.write_json("versions.json", {"code": code_digest()})
    folder.write_json("status.json", {"run": {"name": "two", "state": state}, "written_at": time.time()})


def toml(table: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


@pytest.fixture
def folder(tmp_path: Path) -> RunStore:
    made = RunStore(tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recipes that a cluster was asked to join with."""
    found: list[Any] = []
    monkeypatch.setattr(launch, "join", lambda recipe, region, address, show: found.append(recipe))
    return found


# ------------------------------------------------------------------ what is put there


def test_only_what_has_changed_is_put_and_few_contents_are_kept(folder: RunStore) -> None:
    store, publisher = Memory(), None
    for number in range(1, 20):
        folder.write_text("config.toml", "the recipe")
        folder.write_json("status.json", {"number": number})
        if number % 8 == 1:  # another orchestrator
            publisher = Publisher(folder, store)
        assert publisher is not None
        publisher.put()
        publisher.put()
        assert json.loads(newest(store, "status.json")[1]) == {"number": number}
    assert newest(store, "config.toml") == (1, "the recipe") and newest(store, "status.json")[0] == 19
    assert len(store.names("run/status.json")) <= KEPT and not store.names("run/summary.json")


def test_a_run_that_goes_on_has_another_recipe_and_no_end(folder: RunStore) -> None:
    store = Memory()
    for name in FILES:
        folder.write_text(name, "first")
    Publisher(folder, store).put()
    folder.write_text("config.toml", "second")
    folder.path("seal.json").unlink()
    Publisher(folder, store).put()
    assert [newest(store, name)[1] for name in FILES] == ["first", "second", "", "first", "first"]
    folder.path("config.toml").unlink()
    with pytest.raises(OSError, match="is away"):
        Publisher(folder, store).put()


def test_a_request_whose_answer_was_lost_and_another_orchestrator_put_nothing_twice(folder: RunStore) -> None:
    class Deaf(Memory):
        def create(self, name: str, parts: Any) -> None:
            lost = name not in self.objects
            super().create(name, parts)
            if lost:
                raise TimeoutError("no answer")

    store = Deaf()
    publisher = Publisher(folder, store)
    folder.write_text("config.toml", "first")
    with pytest.raises(TimeoutError):
        publisher.put()
    publisher.put()
    assert newest(store, "config.toml") == (1, "first")
    store.objects["run/config.toml/000000002"] = b"another's"
    folder.write_text("config.toml", "second")
    publisher.put()
    with pytest.raises(TimeoutError):
        publisher.put()
    publisher.put()
    assert newest(store, "config.toml") == (3, "second")


# ------------------------------------------------------------------ what is read there


def test_commands_read_a_run_by_its_store_through_a_door_and_in_a_folder(
    folder: RunStore, door: Any, tmp_path: Path
) -> None:
    told(folder, "finished")
    behind = tmp_path / "behind" / "run"
    ends = dict(zip(LOGS, (Segmented(),) * len(LOGS), strict=True))
    folder.write_json("seal.json", seal(ends))
    folder.write_json("summary.json", {"name": "two", "state": "finished", "ok": True, "checks": []})
    write_log(behind, history())
    Publisher(folder, objects(door())).put()
    for uri in (door(), str(behind), behind.as_uri()):
        shown = json.loads(invoke("status", uri, "--json").stdout)
        assert shown["run"] == {"name": "two", "state": "finished"}
        ended = invoke("status", "--follow", uri)
        assert (ended.exit_code, "two: finished, ok" in ended.stdout) == (0, True)
        assert len(invoke("log", uri).stdout.splitlines()) == len([*events(behind)]) > 100
        checks = {each["name"]: each for each in json.loads(invoke("check", uri, "--json").stdout)["checks"]}
        assert checks["log.readable"]["status"] == "pass" and checks["log.seal"]["status"] == "violated"
        assert "0 were sealed" in checks["log.seal"]["reason"]
        written = invoke("report", uri)
        assert written.exit_code == 0 and "<html" in Path(written.stdout.strip()).read_text()
    folder.write_json("status.json", {"run": {"state": "running"}, "written_at": time.time()})
    Publisher(folder, objects(door())).put()
    for words in (["stop", door()], ["checkpoint", "now", door()]):
        refused = invoke(*words)
        assert refused.exit_code == 2 and "takes no requests" in refused.stderr, refused.stderr
    assert f"0 checkpoints in {door()}" in invoke("checkpoint", "list", door()).stdout


def test_a_store_that_answers_no_more_leaves_what_it_said_last(
    folder: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(folder, "running")
    store = objects(tmp_path / "kept")
    Publisher(folder, store).put()
    run = StoredRun(str(tmp_path / "kept"))
    (tmp_path / "kept").rename(tmp_path / "gone")
    assert run.read_json("status.json")["run"]["state"] == "running"
    (tmp_path / "gone").rename(tmp_path / "kept")
    told(folder, "stopped")
    Publisher(folder, store).put()
    assert run.read_json("status.json")["run"]["state"] == "stopped"


# ------------------------------------------------------------------ joining


def test_a_region_joins_with_the_recipe_that_the_run_has_now(
    folder: RunStore, tmp_path: Path, joined: list[Any]
) -> None:
    store = tmp_path / "kept"
    for seed in (1, 2):
        told(folder, "running", seed=seed)
        Publisher(folder, objects(store)).put()
        done = invoke("join", "kept", "--region", "eu")
        assert done.exit_code == 0 and "the run is over" in done.stderr, done.stderr
        assert (joined[-1].seed, joined[-1].durability.store) == (seed, str(store))


@pytest.mark.parametrize(
    ("state", "given", "region", "says"),
    [
        ("", {}, "eu", "holds no run"),
        ("running", {}, "eur", 'did you mean "eu"?'),
        ("running", {}, "us", "is the region of no pool with joined = true"),
        ("stopped", {}, "eu", "its run has stopped"),
        ("running", {"code": "0" * 16}, "eu", f"sources of the digest {'0' * 16}, these have {code_digest()}"),
    ],
)
def test_what_cannot_join_is_refused_by_name_and_changes_nothing(
    folder: RunStore, tmp_path: Path, joined: list[Any], state: str, given: Any, region: str, says: str
) -> None:
    store = tmp_path / "kept"
    store.mkdir()
    if state:
        told(folder, state)
        folder.write_json("versions.json", {"code": code_digest()} | given)
        Publisher(folder, objects(store)).put()
    before = sorted(store.rglob("*"))
    refused = invoke("join", str(store), "--region", region)
    assert refused.exit_code == 2 and says in refused.stderr, refused.stderr
    assert sorted(store.rglob("*")) == before and not joined


def test_a_store_out_of_reach_is_refused_and_a_run_that_has_not_begun_waited_for(
    folder: RunStore, tmp_path: Path, joined: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for uri in ("https://127.0.0.1:1/run", "no://a/b"):
        refused = invoke("join", uri, "--region", "eu")
        assert refused.exit_code == 2 and f'STORE = "{uri}": cannot be read' in refused.stderr, refused.stderr

    def begin(seconds: float) -> None:
        told(folder, "running")
        Publisher(folder, objects(tmp_path / "kept")).put()

    # The module's alone: a thread may still knock at the first store.
    monkeypatch.setattr("orchestrator.cli.join.time", SimpleNamespace(sleep=begin, monotonic=time.monotonic))
    assert invoke("join", str(tmp_path / "kept"), "--region", "eu", "--wait", "60").exit_code == 0
    assert len(joined) == 1
