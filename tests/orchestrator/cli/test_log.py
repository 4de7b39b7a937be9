"""`diloco log`: every event once, as a line of JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest

from orchestrator.cli.errors import CHECK_FAILED, INPUT
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import events
from orchestrator.store.run_store import RunStore
from tests.orchestrator.calling import invoke
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.histories import event_of, history

EVENTS = history()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = RunStore(tmp_path)
    made.write_text("config.toml", "")
    return made


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
    result = invoke("log", str(store.root), "--sql", "SELEC")
    assert result.exit_code == INPUT and "syntax error" in result.stderr
