"""Makes every check of `sql/` on the tables of a log. A check is one query, whose rows are what breaks the rule.

A statement of a file that begins with `-- check: NAME` is a check:

    -- check: merges.once
    -- claim: a learner merges at most once into a commit
    -- checked: contributions = FROM contributions
    -- idle: nothing merged = FROM commits
    SELECT position, ... AS told FROM ...

It gives the place and, in words, each breach; with a third column `unknown`, true where the log lacks the evidence.
`checked` counts what was looked at; where that is nothing, the first `idle` whose count is not 0 says why the case did
not occur. Other statements make tables for those after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

import duckdb

from orchestrator.analysis.database import filled
from orchestrator.analysis.verdicts import Verdict
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.tables import LogPart

SQL = files("orchestrator.analysis") / "sql"
FAMILIES = (
    "base", "told", "books", "roster", "time", "log", "durable", "versions", "spans", "merges", "fencing", "replayable",
    "bounded", "closed", "links", "live", "isolation",
)  # fmt: skip  # those with checks, and what these need before them


@dataclass(frozen=True)
class Statement:
    """One statement of a file. `name` is empty where it is no check."""

    query: str
    name: str = ""
    claim: str = ""
    things: str = ""
    checked: str = ""  # FROM ...
    idle: tuple[tuple[str, str], ...] = ()  # words, FROM ...

    @cached_property
    def parsed(self) -> duckdb.Statement:
        """Of a check: how many breaches and the first, how many unknowns and the first."""
        unknown = "unknown" if " AS unknown" in self.query else "false AS unknown"
        asked = f"""SELECT count(*) FILTER (NOT unknown), min_by(told, position) FILTER (NOT unknown),
            count(*) FILTER (unknown), min_by(told, position) FILTER (unknown)
            FROM (SELECT position, told, {unknown} FROM ({self.query}))"""
        return duckdb.extract_statements(asked if self.name else self.query)[0]


@cache
def statements(family: str) -> tuple[Statement, ...]:
    """The statements of sql/FAMILY.sql."""
    return tuple(_parsed((SQL / f"{family}.sql").read_text(encoding="utf-8")))


def _parsed(text: str) -> Iterator[Statement]:
    for part in re.split(r";\s*(?:\n|$)", text):
        lines = part.strip().splitlines()
        tags: dict[str, list[str]] = {}
        for line in lines:
            if found := re.fullmatch(r"-- (check|claim|checked|idle): (.*)", line):
                tags.setdefault(found[1], []).append(found[2])
        query = "\n".join(line for line in lines if not line.startswith("--")).strip()
        if not query:
            continue
        if "check" not in tags:
            yield Statement(query)
            continue
        things, checked = _halves(tags["checked"][0])
        idle = tuple(map(_halves, tags.get("idle", ())))
        yield Statement(query, tags["check"][0], " ".join(tags["claim"]), things, checked, idle)


def _halves(text: str) -> tuple[str, str]:
    words, _, source = text.partition(" = ")
    return words, source


def prepare(database: duckdb.DuckDBPyConnection, *families: str) -> None:
    """Run the statements that make tables, once; of a family with checks see `verdicts`."""
    unprepared = _unprepared(database, families)
    for each in (each for family in families if family in unprepared for each in statements(family)):
        if not each.name:
            database.execute(each.parsed)


def _unprepared(database: duckdb.DuckDBPyConnection, families: Sequence[str]) -> set[str]:
    """The families whose tables have not been made; they are from now on."""
    missing = f"SELECT unnest({list(families)}::VARCHAR[]) EXCEPT FROM prepared"
    return {family for (family,) in database.execute(f"INSERT INTO prepared {missing} RETURNING family").fetchall()}


def check(log: Iterable[Event] | Iterable[LogPart]) -> list[Verdict]:
    """All verdicts on a log in its canonical order, in a fixed order. Of an empty log every verdict is `unknown`."""
    return verdicts(filled(log))


def verdicts(database: duckdb.DuckDBPyConnection, families: Sequence[str] = FAMILIES) -> list[Verdict]:
    """Every verdict, in the order of the files. `unknown` where values of the log are such that a query fails."""

    @cache
    def count(source: str) -> int:
        return int(database.execute(f"SELECT count(*) {source}").fetchall()[0][0])

    found, wrong, unprepared = list[Verdict](), "", _unprepared(database, families)
    for family in families:
        for each in statements(family):
            try:
                if each.name:
                    found.append(_verdict(each, count, *database.execute(each.parsed).fetchall()[0]))
                elif family in unprepared:
                    database.execute(each.parsed)
            except duckdb.Error as error:
                wrong = wrong or f"values of the log cannot be computed with: {str(error).splitlines()[0]}"
                if each.name:
                    found.append(Verdict(each.name, each.claim, "unknown", wrong))
    return found


def _verdict(
    check: Statement, count: Callable[[str], int], breaches: int, first: str, unknowns: int, lacking: str
) -> Verdict:
    if breaches:
        more = f" (and {breaches - 1} more)" if breaches > 1 else ""
        return Verdict(check.name, check.claim, "violated", first + more)
    if unknowns:
        return Verdict(check.name, check.claim, "unknown", lacking)
    if checked := count(check.checked):
        return Verdict(check.name, check.claim, "pass", f"{checked} {check.things} checked")
    for words, source in check.idle:
        if count(source):
            return Verdict(check.name, check.claim, "idle", words)
    return Verdict(check.name, check.claim, "unknown", f"the log has no {check.things}")
