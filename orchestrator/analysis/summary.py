"""The summary of a run: one plain dictionary, computed from the log's tables alone.

What the log does not contain is None, never 0. Times are seconds; `wall_s` and `tokens_per_s` are over the window of
the time accounts (first learner step to last commit), `at_s` counts from the first learner step. `wire_bytes` are
payloads only, headers are not counted: up, each merged contribution in its codec; down, what came for each adoption,
and where that was not measured, the fragment in float32.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb

from orchestrator.analysis.checks import prepare
from orchestrator.analysis.database import filled
from orchestrator.analysis.verdicts import Verdict, sound
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.tables import LogPart
from outer.numeric.formats import known

if TYPE_CHECKING:
    from orchestrator.recipe.config import Recipe


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


ELEMENT_BYTES = 4  # of a version, on the wire
PHASES = ("detect", "decide", "start", "import", "compile", "state", "first_contribution")
_FAULT = ("kind", "target", "injected", "at_s", "detection_s", "recovery_s")

# By learner that was ever wanted: contributions merged, and commits while it was wanted or that it took part in. The
# last row, without a learner, counts the contributions of all, and the learners live at each commit.
_PARTICIPATION = """WITH dated AS (SELECT learner, weight, position, t FROM contributions JOIN commits USING (position))
SELECT learner, place, (SELECT count(*) FROM dated d WHERE d.learner = l.learner AND weight > 0) AS merged,
    (SELECT count(*) FROM wanted w JOIN commits c ON c.t >= w.t AND c.t < w.until WHERE w.learner = l.learner)
    + (SELECT count(DISTINCT position) FROM (FROM dated ANTI JOIN wanted w ON w.learner = dated.learner
        AND dated.t >= w.t AND dated.t < w.until) o WHERE o.learner = l.learner) AS possible
FROM (SELECT learner, min({p: position, n: part}) AS place FROM wanted GROUP BY learner) l
UNION ALL SELECT NULL, NULL, count(*), (SELECT sum(live) FROM commits) FROM dated WHERE weight > 0 ORDER BY place"""
# Samples that were set aside, each once: a later epoch may tell it again.
_SET_ASIDE = """SELECT start, stop FROM (
    SELECT position, told_by, learner, incarnation, span, start, stop, false AS aside FROM SpanReturned
    UNION ALL SELECT position, told_by, learner, incarnation, span, start, stop, true FROM SetAside)
WINDOW same AS (PARTITION BY learner, incarnation, span, start ORDER BY position)
QUALIFY aside AND told_by <= first_value(told_by) OVER same ORDER BY position"""


def summarise(
    log: Iterable[Event] | Iterable[LogPart], recipe: Recipe | Mapping[str, Any], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """The summary of a whole log."""
    return summary_of(filled(log), recipe if isinstance(recipe, Mapping) else recipe.canonical(), verdicts)


def summary_of(
    database: duckdb.DuckDBPyConnection, recipe: Mapping[str, Any], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """The summary of the log in `database`, with the verdicts on the same log: strict JSON values throughout."""
    prepare(database, "base", "books", "roster", "time", "goodput", "faults", "rounds")

    def ask(query: str) -> list[Any]:
        return database.execute(query).fetchall()

    def rows(query: str) -> list[dict[str, Any]]:
        return [dict(zip([name for name, *_ in database.description or ()], row, strict=True)) for row in ask(query)]

    def newest(kind: str, order: str = "DESC") -> dict[str, Any]:
        return next(iter(rows(f"FROM {kind} ORDER BY position {order} LIMIT 1")), {})

    rules, started, finished, evaluated = map(newest, ("SyncerStarted", "RunStarted", "RunFinished", "Evaluated"))
    first = newest("Evaluated", "ASC")  # of the initial parameters, unless that failed
    failed, goodput = newest("EvaluationFailed"), next(iter(rows("FROM goodput")), {})
    failed = failed if failed.get("position", -1) > evaluated.get("position", -1) else {}
    commits = dict(ask("SELECT fragment, count(*) FROM commits GROUP BY fragment"))
    steps = " UNION ALL ".join(f"SELECT syncer_step FROM {table}" for table in ("commits", "StepPassed", "Finished"))
    syncer_step = ask(f"SELECT max(syncer_step) FROM ({steps})")[0][0]
    # An older evaluation says something of older parameters.
    current = bool(evaluated) and evaluated["syncer_step"] == syncer_step
    books, wall_s = tokens(database), goodput.get("wall_s")
    fates = books["committed"] + sum(books["discarded"].values()) + books["in_flight"] + books["unknown"]
    shares = ask("SELECT category, sum(seconds) FROM time_accounts GROUP BY rank, category ORDER BY rank DESC")
    older = (
        "SELECT kind, count(*), coalesce(sum(tokens_lost), 0)::BIGINT FROM fault_rows WHERE NOT recent GROUP BY kind"
    )
    return {
        "name": started.get("name") or recipe.get("name"),
        "config_hash": started.get("config_hash"),
        "ok": finished.get("state") == "finished" and sound(verdicts) and books["processed"] == fates,
        "state": finished.get("state"),
        "reason": finished.get("reason"),
        "initial_eval_loss": _finite(first["loss"]) if first.get("syncer_step") == 0 else None,
        "eval_loss": _finite(evaluated["loss"]) if current else None,
        "eval_fault": failed.get("reason"),
        "loss_unit": evaluated.get("unit"),
        "eval_metrics": {k: _finite(v) for k, v in json.loads(evaluated["metrics"]).items()} if current else None,
        "tokens": books,
        "token_fragments": token_fragments(database) if rules else None,
        "syncer_steps": syncer_step,
        "commits": sum(commits.values()) if rules else None,
        "rounds_per_fragment": min(commits.get(each, 0) for each in range(len(rules["sizes"]))) if rules else None,
        "wall_s": wall_s,
        "tokens_per_s": books["committed"] / wall_s if wall_s else None,
        "availability": goodput.get("availability"),
        "goodput_time": goodput.get("goodput_time"),
        "goodput_categories": {name: s / goodput["wanted_s"] for name, s in shares} if goodput else None,
        "global_downtime_s": goodput.get("global_downtime_s"),
        "outer_downtime_s": goodput.get("outer_downtime_s"),
        "participation": _participation(ask(_PARTICIPATION)) if rules and commits else None,
        "round_steps": {
            "asked": recipe.get("sync", {}).get("H"),
            "median": ask("SELECT median(steps) FROM round_steps")[0][0],
            "by_learner": dict(ask("FROM round_steps ORDER BY learner")),
        }
        if rules and commits
        else None,
        "faults": [
            {name: row[name] for name in _FAULT}
            | {"recovery_phases": {name: row[name] for name in PHASES}, "tokens_lost": row["tokens_lost"]}
            for row in rows("FROM fault_rows WHERE recent ORDER BY t, position")
        ],
        "faults_left_out": {kind: {"rows": count, "tokens_lost": lost} for kind, count, lost in ask(older)},
        "set_aside": [list(samples) for samples in ask(_SET_ASIDE)],
        "refusals": dict(ask("SELECT reason, count(*) FROM Refused GROUP BY reason ORDER BY reason")),
        "wire_bytes": _wire_bytes(ask, rules.get("sizes"), recipe.get("sync", {}).get("codec")),
        "checks": [{"name": v.name, "status": v.status, "reason": v.reason} for v in verdicts],
    }


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None


def _participation(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    *learners, (_, _, merged, live) = rows
    return {
        "mean": merged / sum(possible for *_, possible in learners),
        "alive_mean": merged / live if live else None,
        "by_learner": {learner: own / possible if possible else 0.0 for learner, _, own, possible in learners},
    }


def _wire_bytes(ask: Any, sizes: list[int] | None, codec: str | None) -> dict[str, int | None]:
    """A strange log may name fragments that the syncer does not have: these count nothing."""
    if sizes is None:
        return {"up": None, "down": None}
    elements, run, up = Counter(dict(enumerate(sizes))), known(codec), 0
    for fragment, own, count in ask("SELECT fragment, codec, count(*) FROM contributions GROUP BY ALL"):
        form = known(own) if own else run
        up += form.bytes(elements[fragment]) * count if form and fragment in elements else 0
    adopted = ask("SELECT fragment, sum(bytes)::BIGINT, count(*) FILTER (bytes = 0) FROM adoptions GROUP BY fragment")
    down = sum(came + elements[fragment] * ELEMENT_BYTES * count for fragment, came, count in adopted)
    return {"up": up if run else None, "down": down}
