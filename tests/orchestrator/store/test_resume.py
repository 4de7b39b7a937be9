"""Going on with a run: what of its recipe may have changed since, and what of its end is taken back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from learners.training.data import corpus
from orchestrator.eventlog.reader import SEAL_FILE
from orchestrator.prepare.preparation import PrepareOptions, prepare
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import dump
from orchestrator.recipe.validation import resolve, validate
from orchestrator.store.checkpoints import REQUEST_FILE
from orchestrator.store.resume import data_changed, reopen, taken, unlike
from orchestrator.store.run_store import RunStore
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder

TABLES: dict[str, Any] = {
    "name": "one",
    "model": {"layers": 2},
    "sync": {"H": 12, "quorum": 1},
    "pools": [{"name": "a", "learners": 2}],
    "budget": {"tokens": 1000},
    "durability": {"store": "s3://bucket/one"},
}


def recipe(**change: Any) -> Recipe:
    return Recipe.model_validate({**TABLES, **change})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Of a run that was begun by `recipe()`, P filled in."""
    made = RunStore(tmp_path / "run")
    made.create()
    made.write_text("config.toml", dump(recipe(sync=TABLES["sync"] | {"P": 6})))
    return made


def test_what_a_run_is_made_of_besides_its_numbers_may_change(store: RunStore) -> None:
    for change in (
        {},
        {"pools": [{"name": "a", "learners": 4, "batch_size": 2}, {"name": "b"}]},
        {"budget": {"syncer_steps": 500}},
        {"eval": {"every": 0}},
        {"chaos": {"mtbf_s": 5.0}},
        {"run": {"hang_s": 60.0}},
        {"sync": TABLES["sync"] | {"quorum": 2, "P": 6}},
        {"durability": TABLES["durability"] | {"every_s": 5.0, "keep": 9}},
    ):
        assert list(unlike(store, recipe(**change))) == [], change


def test_a_budget_that_was_reached_is_refused_unless_it_is_that_of_a_run_that_died(store: RunStore) -> None:
    at = {"tokens_committed": 2000, "syncer_step": 90}
    for state, budget, refused in (
        ("stopped", {"tokens": 900}, True),
        ("running", {"syncer_steps": 90}, True),
        ("finished", {"tokens": 1000}, True),
        ("finished", {"tokens": 2001}, False),
        ("stopped", {"syncer_steps": 91}, False),
        ("ending", {"tokens": 1000}, False),
    ):
        store.write_json("status.json", {"run": {"state": state, **at}})
        found = [problem.field for problem in unlike(store, recipe(budget=budget))]
        assert found == ["budget"] * refused, (state, budget)


def test_what_the_numbers_come_from_may_not_change(store: RunStore) -> None:
    for change, field, value in (
        ({"seed": 1}, "seed", 1),
        ({"name": "two"}, "name", "two"),
        ({"task": "my.task:Other"}, "task", "my.task:Other"),
        ({"model": {"layers": 3}}, "model.layers", 3),
        ({"model": {}}, "model.layers", None),
        ({"model": {"layers": 2, "width": 8}}, "model.width", 8),
        ({"data": {"sequence_length": 7}}, "data.sequence_length", 7),
        ({"inner": {"lr": 0.5}}, "inner.lr", 0.5),
        ({"outer": {"lr": 0.5}}, "outer.lr", 0.5),
        ({"sync": TABLES["sync"] | {"H": 24}}, "sync.H", 24),
        ({"sync": TABLES["sync"] | {"P": 3}}, "sync.P", 3),
        ({"init_from": "model.safetensors"}, "init_from", str(Path("model.safetensors").absolute())),
        ({"durability": {"store": "s3://bucket/two"}}, "durability.store", "s3://bucket/two"),
        ({"durability": {}}, "durability.store", None),
    ):
        [problem] = unlike(store, recipe(**change))
        assert (problem.field, problem.value) == (field, value)
        assert "as it was" in problem.fix and "--fresh" in problem.fix
    found = unlike(store, recipe(seed=1, model={"layers": 3}))
    assert [problem.field for problem in found] == ["model.layers", "seed"], "all at once"


def test_places_given_by_a_relative_path_are_the_same_from_their_folder(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = {"init_from": str(tmp_path / "model.safetensors"), "init_digest": "d1"}
    begun |= {"durability": {"store": str(tmp_path / "kept")}}
    store.write_text("config.toml", dump(recipe(**begun)))
    kept = {"durability": {"store": "kept"}}
    assert list(unlike(store, recipe(init_from="model.safetensors", **kept))) == []
    for other in ({"init_from": "other.safetensors"}, {}):
        assert [problem.field for problem in unlike(store, recipe(**other, **kept))] == ["init_from"]
    assert resolve(recipe(**kept)).durability.store == str(tmp_path / "kept")


def test_a_run_on_shards_goes_on_with_the_same_shards_alone(store: RunStore, tmp_path: Path) -> None:
    source, out = tmp_path / "text.txt", tmp_path / "tokens"
    again = recipe(data={"kind": "tokens", "path": str(out), "sequence_length": 16})
    for text in ("some text\n", "other text\n"):
        source.write_text(text * 200)
        shutil.rmtree(out, ignore_errors=True)
        prepare(PrepareOptions((str(source),), out, held_out=0.25), lambda *news: None)
        if text.startswith("some"):
            begun = resolve(again)
            store.write_text("config.toml", dump(begun))
            assert list(unlike(store, again)) == []
    [problem] = unlike(store, again)
    assert problem.field == "data.digest" and str(begun.data.digest) in problem.fix
    assert resolve(again).config_hash != begun.config_hash
    with pytest.raises(ValueError, match=r"data\.digest.*give the folder that the run began with"):
        corpus.corpus(begun.data, 0)  # as on a node that has other shards
    with pytest.raises(InputError, match=r"data\.digest"):
        validate(begun)
    assert resolve(recipe()).data.digest is None
    shutil.rmtree(out)
    assert list(unlike(store, again)) == [], "validation names what is missing"
    with pytest.raises(InputError, match=r"manifest\.json cannot be read"):
        validate(again)


def test_nothing_begins_in_a_store_with_a_journal_nor_goes_on_in_one_without(tmp_path: Path, store: RunStore) -> None:
    durability = {"store": str(tmp_path / "kept")}
    assert list(taken(recipe(durability={}))) == list(taken(recipe(durability=durability))) == []
    StoredJournal(Folder(tmp_path / "kept"), "journal", 1, 2).open()
    [problem] = taken(recipe(durability=durability))
    assert problem.field == "durability.store" and "holds the journal" in problem.message
    (tmp_path / "file").write_text("")
    Folder(tmp_path / "log-only").create("log/syncer/segments/000000000", [b""])
    [problem] = taken(recipe(durability={"store": str(tmp_path / "log-only")}))
    assert "another run" in problem.message
    [problem] = taken(recipe(durability={"store": str(tmp_path / "file")}))
    assert "cannot be read" in problem.message
    for name, says in (("kept", []), ("unmounted", ["holds nothing, but"])):
        store.write_text("config.toml", dump(here := recipe(durability={"store": str(tmp_path / name)})))
        assert store.grant("epoch", "syncer") and [each.message[:18] for each in unlike(store, here)] == says
    with pytest.raises(InputError, match=r"(?s)durability\.store.*nosuch.*s3://"):
        validate(recipe(durability={"store": "nosuch://a"}))


def test_what_was_said_at_an_end_is_taken_back_and_the_rest_stays(store: RunStore) -> None:
    said = (SEAL_FILE, "summary.json", "stop", REQUEST_FILE)
    stays = ("events/syncer.jsonl", "events/orchestrator.jsonl", "journal/000000000000", "checkpoints/000001/syncer")
    for name in (*said, *stays):
        store.write_text(name, "x")
    store.grant("epoch", "syncer")
    reopen(store)
    reopen(store)
    assert not [name for name in said if store.path(name).exists()]
    assert all(store.path(name).exists() for name in (*stays, "config.toml"))
    assert store.granted("epoch", "syncer") == 1


def test_a_resumed_run_knows_that_its_text_has_changed(store: RunStore, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("some words " * 99)
    with_text = recipe(data={"mixture": [{"name": "a", "path": str(text)}]})
    assert not data_changed(store, with_text), "it begins"
    assert not data_changed(store, with_text)
    (text / "b.txt").write_text("more")
    assert data_changed(store, with_text)
    assert not data_changed(store, with_text), "it is told once"
