"""A run's log without our code: what the documentation says of its files, in DuckDB, Polars and pandas."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import pytest

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import LearnerRequested
from orchestrator.eventlog.reader import read_run
from orchestrator.eventlog.tables import SCHEMAS
from outer.protocol.facts import Committed, LearnerFenced, ReadFailed

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
RUN = ROOT / "tests" / "frozen" / "folders" / "real" / "late"
TABLES = (StepFinished, Adopted, Committed)


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return read_run(RUN)


@pytest.fixture
def answers(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Any, ...]]]:
    """What the documentation's queries give, by the comment above each."""
    monkeypatch.chdir(RUN)
    (text,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    text = text.replace("'14:05'", f"'{minute_of(events)}'")
    queries = [each.strip().split("\n", 1) for each in text.split(";") if each.strip()]
    return {comment: duckdb.connect().execute(query).fetchall() for comment, query in queries}


def minute_of(events: list[Event]) -> str:
    """In which the run began."""
    return f"{events[0].at // 3600 % 24:02.0f}:{events[0].at // 60 % 60:02.0f}"


def test_the_documented_queries_say_what_the_log_says(
    events: list[Event], answers: dict[str, list[tuple[Any, ...]]]
) -> None:
    assert len(answers) == 5
    steps = {(e.writer, e.incarnation, e.fact.step): e.fact for e in events if isinstance(e.fact, StepFinished)}
    requested = {(e.fact.learner, e.fact.incarnation): e.fact.region for e in of(events, LearnerRequested)}
    losses = [step.loss for key, step in steps.items() if key[:2] in requested]
    assert answers["-- loss by region"] == [(None, pytest.approx(sum(losses) / len(losses)))]
    fenced = {(e.fact.learner, e.fact.incarnation): e.fact.reason for e in of(events, LearnerFenced)}
    for commit in of(events, Committed):
        for one in commit.fact.participants:
            for step in range(one.base_step + 1, one.step + 1):
                steps.pop((one.learner, one.incarnation, step), None)
    lost = Counter[str]()
    for key, step in steps.items():
        lost[fenced[key[:2]]] += step.tokens
    assert dict(answers["-- tokens that no commit has, by why their incarnation ended"]) == dict(lost) != {}
    late = Counter((e.fact.learner, e.fact.reason) for e in of(events, ReadFailed))
    assert {row[:2]: row[2] for row in answers["-- who was late"]} == late != {}
    down = Counter[str]()
    for event in of(events, Adopted):
        down[event.writer] += event.fact.bytes
    assert dict(answers["-- bytes that came over each learner's link"]) == down
    others = [(e.writer, type(e.fact).__name__) for e in events if not isinstance(e.fact, TABLES)]
    happened = answers["-- what happened at 14:05"]
    assert len(happened) > 5 and not Counter(row[1:3] for row in happened) - Counter(others)


def of(events: list[Event], kind: type[Any]) -> list[Event]:
    return [event for event in events if isinstance(event.fact, kind)]


def test_the_documentation_lists_every_table_and_column() -> None:
    section = PAGE.partition("## Files of the log")[2].partition("```sql")[0]
    listed = {
        name: re.findall(r"`(\w+)`", columns) for name, columns in re.findall(r"^\|`(\w+)`\|(.*)\|$", section, re.M)
    }
    assert listed == {name: schema.names for name, schema in SCHEMAS.items()}


@pytest.mark.parametrize("tool", ["pandas", "polars"])
@pytest.mark.parametrize("table", SCHEMAS)
def test_other_tools_read_the_files(table: str, tool: str) -> None:
    (path,) = (RUN / "log" / "syncer" / table).glob("*.parquet")
    here, frame = duckdb.read_parquet(str(path)), import_module(tool).read_parquet(path)
    assert here.columns == [*frame.columns] == SCHEMAS[table].names and len(frame) > 20
    for name, values in zip(here.columns, zip(*here.fetchall(), strict=True), strict=True):
        if name not in ("time", "progress", "aux", "read_at"):  # pandas has its own nothing, and its own times
            assert frame[name].to_list() == [*values]
