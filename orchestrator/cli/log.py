"""`diloco log RUN`: print a run's log as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import Run
from orchestrator.eventlog.events import finite
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store import status_text as words
from orchestrator.store.readers import located, status_of
from orchestrator.store.run_store import RunStore
from orchestrator.store.watch import LOST_S, RunLost

if TYPE_CHECKING:
    from orchestrator.eventlog.reader import LogReader  # which takes its time to import
    from orchestrator.eventlog.tables import LogPart

POLL_S = 0.5


def log(
    run: Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run ends.")] = False,
    sql: Annotated[str | None, typer.Option("--sql", help="Instead, what this query of its tables gives.")] = None,
) -> None:
    """Print a run's log, one event a line, in its order; exit code 5 if some of it is damaged or missing."""
    with reported():
        if sql is not None and follow:
            raise InputError([Problem("--sql", sql, "asks the whole log", "leave out --follow")])
        from orchestrator.eventlog.reader import LogReader

        store = located(run)
        reader = LogReader(store.root)
        for row in asked(reader, sql) if sql is not None else ():
            sys.stdout.write(json.dumps(finite(row), default=str) + "\n")
        for part in () if sql is not None else following(store, reader) if follow else reader.rest():
            for event in () if part is None else part.events():
                sys.stdout.write(event.to_json() + "\n")
            if part is None:
                sys.stdout.flush()
        sys.stdout.flush()
        if damage := reader.findings.damage:
            print("\n".join(f"damaged: {each}" for each in damage), file=sys.stderr)
            raise typer.Exit(CHECK_FAILED)


def asked(reader: LogReader, sql: str) -> Iterator[dict[str, Any]]:
    """The rows of a query of the tables that the summary is computed from."""
    import duckdb

    from orchestrator.analysis.folder import tables

    try:
        found = tables(reader).execute(sql)
    except duckdb.Error as error:
        fix = 'tables and columns: docs/run-folder.md, or --sql "SHOW TABLES" and "DESCRIBE steps"'
        raise InputError([Problem("--sql", sql, str(error), fix)]) from error
    names = [name for name, *_ in found.description or ()]
    while rows := found.fetchmany(1000):
        yield from (dict(zip(names, row, strict=True)) for row in rows)


def following(store: RunStore, reader: LogReader) -> Iterator[LogPart | None]:
    """The log's parts as they come, and None after each look, until the run has ended. Raises RunLost."""
    while True:
        status = status_of(store)  # before the log: what is written before the run ends is then read
        yield from reader.poll()
        yield None
        if words.part(status, "run").get("state") in words.ENDED:
            yield from reader.rest()
            return
        if (silent_s := time.time() - status.get("written_at", 0.0)) > LOST_S:
            raise RunLost(f"no status for {words.seconds(silent_s)}: the orchestrator's process has ended")
        time.sleep(POLL_S)
