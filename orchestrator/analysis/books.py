"""The token books as the summary tells them, from the tables of sql/books.sql."""

from __future__ import annotations

from typing import Any

import duckdb

REASONS = ("drained", "killed", "overlap", "refused", "run_ended", "set_aside", "stale_base")


def tokens(database: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """The whole run's tokens by fate."""
    return _books(database.execute("SELECT fate, sum(tokens)::BIGINT FROM ledger GROUP BY fate").fetchall())


def token_fragments(database: duckdb.DuckDBPyConnection) -> dict[str, Any] | None:
    """The same counted once per fragment; `by_fragment`: committed by each. None: the log does not name fragments."""
    rows = database.execute("SELECT fate, sum(tokens)::BIGINT FROM fragment_ledger GROUP BY fate").fetchall()
    if not rows:
        return None
    query = "SELECT coalesce(sum(tokens) FILTER (fate = 'committed'), 0)::BIGINT FROM fragment_ledger"
    apart = database.execute(f"{query} GROUP BY fragment ORDER BY fragment").fetchall()
    return _books(rows) | {"by_fragment": [count for (count,) in apart]}


def _books(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    of = dict.fromkeys(("processed", "committed", "in_flight", "unknown", *REASONS), 0) | dict(rows)
    plain: dict[str, Any] = {name: of[name] for name in ("processed", "committed", "in_flight", "unknown")}
    return plain | {"discarded": {reason: of[reason] for reason in REASONS}}
