"""`diloco log RUN`: print a run's log as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import Run
from orchestrator.eventlog.events import finite
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.readers import located

if TYPE_CHECKING:
    from orchestrator.eventlog.reader import LogReader  # which takes its time to import


def log(
    run: Run = None,
    sql: Annotated[str | None, typer.Option("--sql", help="Instead, what this query of its tables gives.")] = None,
) -> None:
    """Print a run's log, one event a line, in its order; exit code 5 if some of it is damaged or missing."""
    with reported():
        from orchestrator.eventlog.reader import LogReader

        store = located(run)
        reader = LogReader(store.root)
        for row in asked(reader, sql) if sql is not None else ():
            sys.stdout.write(json.dumps(finite(row), default=str) + "\n")
        for part in reader.rest() if sql is None else ():
            for event in part.events():
                sys.stdout.write(event.to_json() + "\n")
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
