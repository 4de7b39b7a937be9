"""The orchestrator's accounts: however a run is followed and taken over, its summary is that of the whole log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import check
from orchestrator.eventlog.reader import LogReader, read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import load, template
from orchestrator.runtime import run_accounts
from orchestrator.runtime.run_accounts import RunAccounts
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from tests.orchestrator.eventlog.logs import journal, of_syncer, write, write_log
from tests.orchestrator.eventlog.test_reader import EVENTS
from tests.waiting import until

# The next fact is the syncer's own, as when a run is resumed: then nothing goes before what was read.
CUT = next(n for n in range(len(EVENTS) // 2, len(EVENTS)) if EVENTS[n].writer == "syncer")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_accounts, "LOOK_S", 0.01)
    monkeypatch.setattr(run_accounts, "attempt", lambda store, contents: True)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(template("demo"))
    return load(path, [])


def accounts(root: Path, recipe: Recipe) -> RunAccounts:
    return RunAccounts(recipe, RunStore(root), Folder(root))


def expected(root: Path, recipe: Recipe) -> dict[str, Any]:
    log = read_run(root)
    return summarise(log, recipe, check(log))


def test_a_log_that_is_followed_as_it_grows_gives_the_summary_of_the_whole(tmp_path: Path, recipe: Recipe) -> None:
    write_log(tmp_path, EVENTS[:CUT], close=False)
    followed = accounts(tmp_path, recipe)
    until(lambda: followed.tokens and followed.tokens[0], "the first half is counted")
    write(journal(Folder(tmp_path), 2), of_syncer(EVENTS[CUT:]))
    summary = followed.finish()
    assert summary == expected(tmp_path, recipe)
    assert RunStore(tmp_path).read_json("summary.json") == summary
    assert accounts(tmp_path, recipe).finish() == summary, "another orchestrator reads the whole log"


def test_a_summary_that_the_store_does_not_take_is_made_again(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, EVENTS)
    followed, write_json, failing = accounts(tmp_path, recipe), RunStore.write_json, [True]

    def write(store: RunStore, name: str, value: Any) -> None:
        if failing.pop() if failing else False:
            raise OSError("no space left")
        write_json(store, name, value)

    monkeypatch.setattr(RunStore, "write_json", write)
    with pytest.raises(OSError, match="no space"):
        followed.finish()
    assert followed.finish() == expected(tmp_path, recipe)


def test_a_fold_that_fails_on_the_way_costs_the_run_nothing(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, EVENTS)
    poll, failing = LogReader.poll, [True]

    def failing_poll(reader: LogReader) -> Any:
        if failing.pop() if failing else False:
            raise RuntimeError("a fault of ours")
        return poll(reader)

    monkeypatch.setattr(LogReader, "poll", failing_poll)
    followed = accounts(tmp_path, recipe)
    until(lambda: not followed._thread.is_alive(), "the thread has ended")
    assert followed.finish() == expected(tmp_path, recipe)
