"""`diloco log`: every event once, as a line of JSON, while the run goes or after it."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import duckdb
import pytest

from orchestrator.cli import log as command
from orchestrator.cli.errors import CHECK_FAILED, FAILED, INPUT
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import events
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from tests.orchestrator.calling import invoke
from tests.orchestrator.eventlog.logs import chunks, journal, of_syncer, write, write_log
from tests.orchestrator.histories import event_of, history

EVENTS = history()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = RunStore(tmp_path)
    made.write_text("config.toml", "")
    return made


def status(store: RunStore, state: str, at: float | None = None) -> None:
    store.write_json("status.json", {"run": {"state": state}, "written_at": time.time() if at is None else at})


def run(*arguments: str) -> tuple[int, list[Event], str]:
    result = invoke("log", *arguments)
    return result.exit_code, [event_of(line) for line in result.stdout.splitlines()], result.stderr


def test_the_log_is_printed_in_its_order_as_strict_json(store: RunStore) -> None:
    write_log(store.root, EVENTS)
    code, said, _ = run(str(store.root))
    assert (code, said) == (0, [*events(store.root)]) and len(said) == len(EVENTS)
    for line in invoke("log", str(store.root)).stdout.splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert run("none")[0] == INPUT


def test_damage_is_named_and_what_can_be_read_is_printed(store: RunStore) -> None:
    write_log(store.root, EVENTS, 20, close=False)
    victim = sorted((store.root / "journal").glob("0*"))[5]
    victim.write_bytes(victim.read_bytes()[:-1])
    code, said, told = run(str(store.root))
    assert code == CHECK_FAILED and f"group {int(victim.name)}" in told and said


def test_following_ends_with_the_run_and_prints_everything_once(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "POLL_S", 0.01)
    status(store, "running")
    chain, told = journal(Folder(store.root)), of_syncer(EVENTS)
    first, *rest = chunks(told, 40)
    write(chain, first)

    def go_on() -> None:
        for some in rest:
            write(chain, some)
        chain.finish()
        status(store, "finished")

    writer = threading.Thread(target=go_on)
    writer.start()
    code, said, _ = run(str(store.root), "--follow")
    writer.join()
    assert code == 0 and [event.to_json() for event in said] == [event.to_json() for event in told]


def test_following_a_run_whose_orchestrator_is_gone_says_so(store: RunStore) -> None:
    write_log(store.root, EVENTS, close=False)
    status(store, "running", at=1.0)
    code, said, told = run(str(store.root), "--follow")
    assert code == FAILED and "no status for" in told and len(said) == len(EVENTS)


def test_the_query_of_the_documentation_gives_rows_and_a_wrong_one_is_told(store: RunStore) -> None:
    page = (Path(__file__).parents[3] / "docs" / "run-folder.md").read_text()
    queries = re.findall(r'diloco log RUN --sql "([^"]*)"', page)
    assert len(queries) == 1
    write_log(store.root, EVENTS)
    for query in queries:
        result = invoke("log", str(store.root), "--sql", query)
        assert result.exit_code == 0, result.stderr
        assert all(isinstance(json.loads(line), dict) for line in result.stdout.splitlines())
    processed = "SELECT sum(tokens)::BIGINT AS n FROM ledger WHERE fate = 'processed'"
    assert json.loads(invoke("log", str(store.root), "--sql", processed).stdout) == {"n": 888}
    target = store.root / "processed.parquet"
    assert json.loads(invoke("log", str(store.root), "--sql", f"COPY ({processed}) TO '{target}'").stdout)
    assert duckdb.execute("FROM read_parquet(?)", [str(target)]).fetchall() == [(888,)]
    for arguments, told in ((("--sql", "SELEC"), "syntax error"), (("--sql", "FROM steps", "--follow"), "leave out")):
        result = invoke("log", str(store.root), *arguments)
        assert result.exit_code == INPUT and told in result.stderr
