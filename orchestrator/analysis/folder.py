"""Checks a run's folder: first that its log is complete and unaltered, and belongs to the recipe beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from orchestrator.analysis.checks import prepare, verdicts
from orchestrator.analysis.database import FAMILIES, filled
from orchestrator.analysis.verdicts import Verdict
from orchestrator.eventlog import reader
from orchestrator.eventlog.tables import LogPart
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import hash_in
from orchestrator.store.readers import RECIPE_FILE

CLAIMS = {
    "log.readable": "the log is there, and every part of it is as it was written",
    "log.chain": "every part of the log follows from the one before it: none is missing, inserted or in another's "
    "place",
    "log.seal": "the log ends where it was sealed",
    "log.recipe": "config.toml has the config hash of the log's most recent RunStarted",
}
NO_LOG = "there is no log to read"


def check_run(run_dir: Path, progress: Callable[[int], None] = lambda facts: None) -> list[Verdict]:
    """All verdicts on a run's folder; first, whether its log can be read and is unaltered.

    `progress` is called with the number of facts so far.
    A damaged log is `violated`, a missing one `unknown`; all other verdicts are then `unknown`.
    """
    log = reader.LogReader(run_dir)

    def parts() -> Iterator[LogPart]:
        for part in log.rest():
            yield part
            progress(part.stop)

    try:
        database = filled(parts())
    except OSError as error:
        unread = [_unknown(name, NO_LOG) for name in ("log.chain", "log.seal")]
        return [_judged("log.readable", 0, "facts", [str(error)]), *unread, *verdicts(filled(()))]
    begun = database.execute("SELECT max_by(config_hash, position) FROM RunStarted").fetchall()[0][0]
    return [*_whole(run_dir, log, begun), *verdicts(filled(()) if log.findings.unreadable else database)]


def tables(log: reader.LogReader) -> duckdb.DuckDBPyConnection:
    """The tables that the summary is computed from, of the whole log, for queries."""
    database = filled(log.rest())
    prepare(database, *FAMILIES)
    database.execute("PRAGMA enable_optimizer; RESET asof_loop_join_threshold")  # which those of a small log do without
    return database


def _whole(run_dir: Path, log: reader.LogReader, begun: str | None) -> list[Verdict]:
    """What the chains and the seal say of a log that was read to its end. `begun`: the hash in its RunStarted."""
    found, facts = log.findings, log.rows
    recipe = _recipe(run_dir, begun)
    if not facts and not found.unreadable:
        nothing = f"no events in {run_dir}"
        return [*(_unknown(name, nothing) for name in ("log.readable", "log.chain", "log.seal")), recipe]
    readable = _judged("log.readable", facts, "facts", found.unreadable)
    if found.unknown and not found.unreadable:
        readable = _unknown("log.readable", f"{found.unknown} facts are of kinds that this version does not know")
    return [readable, _judged("log.chain", facts, "facts", found.unlinked), _seal(run_dir, log), recipe]


def _seal(run_dir: Path, log: reader.LogReader) -> Verdict:
    try:
        ends = reader.sealed(run_dir)
    except ValueError as error:
        return _judged("log.seal", 0, "sealed facts", [str(error)])
    if ends is None:
        return _unknown("log.seal", "the run has no seal.json: it did not end")
    told = reader.differs(log, ends)
    return _judged("log.seal", log.rows, "sealed facts", [told] if told else [])


def _recipe(run_dir: Path, begun: str | None) -> Verdict:
    """Reads the values of config.toml as they are: a later version's defaults do not matter."""
    path = run_dir / RECIPE_FILE
    if begun is None or not path.is_file():
        lacking = "the log does not say with which the run was begun" if begun is None else f"no {RECIPE_FILE} is here"
        return _unknown("log.recipe", lacking)
    try:
        here = hash_in(path)
    except InputError as error:
        return _judged("log.recipe", 1, "recipe", [f"{RECIPE_FILE} {error.problems[0].message}"])
    told = f"{RECIPE_FILE} has the config hash {here}, the run was begun with {begun}"
    return _judged("log.recipe", 1, "recipe", [] if begun == here else [told])


def _judged(name: str, checked: int, things: str, failures: list[str]) -> Verdict:
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    told = (failures[0] + more) if failures else f"{checked} {things} checked"
    return Verdict(name, CLAIMS[name], "violated" if failures else "pass", told)


def _unknown(name: str, reason: str) -> Verdict:
    return Verdict(name, CLAIMS[name], "unknown", reason)
