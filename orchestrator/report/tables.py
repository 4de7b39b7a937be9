"""The report's tables: rows of text from the data, as the templates render them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.accounting.verdicts import Verdict
from orchestrator.report.data import Data
from orchestrator.report.headline import STATUS_WORDS
from orchestrator.store.status_text import DASH, brief, number, percent, seconds, text

SIGNS = {"pass": "✓", "violated": "✗", "unknown": "?", "idle": "–"}
ROWS_MOST = 240
LONG = 32  # characters from which a cell may be broken into lines
PHASES = ("detect", "decide", "start", "import", "compile", "state", "first_contribution")


@dataclass(frozen=True)
class Table:
    """Cells as text. `numeric` are the columns to be aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: str = ""

    @property
    def long(self) -> frozenset[int]:
        """Columns of prose, which may be broken into lines."""
        return frozenset(index for row in self.rows for index, cell in enumerate(row) if len(cell) > LONG)


def table(
    title: str,
    columns: str,
    rows: Iterable[Sequence[str]],
    numeric: Iterable[int] = (),
    note: str = "",
    count: int = 0,
) -> Table:
    """`columns` are separated by bars: "learner|steps". Of very many rows the first are kept, with a note.

    `count`: how many rows there would be, where not all are given.
    """
    names = tuple(columns.split("|"))
    cells = tuple(tuple(row) for row in rows)
    assert all(len(row) == len(names) for row in cells)
    if max(count, len(cells)) > ROWS_MOST:
        note = f"The first {ROWS_MOST} of {max(count, len(cells)):,}; the others are in the log."
    return Table(title, names, cells[:ROWS_MOST], frozenset(numeric), note)


def short(value: float | None) -> str:
    """A duration; short ones with more digits."""
    if value is None or value >= 10:
        return seconds(value)
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"


def megabytes(count: float | None) -> str:
    return DASH if count is None else f"{count / 1e6:,.1f}"


# ------------------------------------------------------------------ learners and time


def incarnations(data: Data) -> Table:
    rows = (
        (
            lane.learner,
            str(lane.incarnation),
            seconds(lane.requested),
            seconds(lane.begun),
            data.sources.get((lane.learner, lane.incarnation)) or DASH,
            number(lane.steps),
            number(lane.tokens),
            lane.reason or "not fenced",
        )
        for lane in data.lanes
    )
    columns = "learner|incarnation|requested at|stepping from|first state from|steps|tokens|fenced as"
    return table("Incarnations", columns, rows, (1, 2, 3, 5, 6))


def auxiliaries(data: Data) -> Table:
    """Means of the auxiliary values that the task's loss returns; no rows where it returns none."""
    rows = [
        (name, *(brief(mean) if mean == mean else DASH for mean in means)) for name, means in data.auxiliaries.items()
    ]
    return table("Auxiliary values", "name|mean of the first steps|of the last|of all", rows, (1, 2, 3))


def held_out(data: Data) -> Table:
    """A table of the last evaluation's values beside the loss; no rows where there are none."""
    metrics = data.summary.get("eval_metrics") or {}
    rows = [(name, DASH if value is None else brief(value)) for name, value in metrics.items()]
    return table("Last held-out metrics", "name|value", rows, (1,))


def time(data: Data) -> Table:
    """Seconds by category, without categories of no time."""
    learners = list(data.seconds)
    names = [n for n in (data.summary["goodput_categories"] or {}) if any(data.seconds[who].get(n) for who in learners)]
    shares = data.summary["goodput_categories"] or {}
    rows = [
        (
            name,
            *(f"{data.seconds[who][name]:.2f}" if data.seconds[who][name] else "0" for who in learners),
            percent(shares[name]),
        )
        for name in names
    ]
    return table(
        "Seconds by category", "|".join(("category", *map(_column, learners), "share of all")), rows,
        range(1, len(learners) + 2),
    )  # fmt: skip


def participation(data: Data) -> Table:
    shares = data.summary["participation"] or {}
    rows = [(name, percent(share)) for name, share in (shares.get("by_learner") or {}).items()]
    return table("Share of the commits that each took part in", "learner|share", rows, (1,))


def _column(name: str) -> str:
    return name.replace("|", "¦")


# ------------------------------------------------------------------ outer steps


def waits(data: Data) -> Table:
    names = ("opening to the K-th report", "grace waited after it", "decision to durable")
    rows = [
        (name, *(short(waits.middle(share)) for share in (0.5, 0.95, 1.0)), short(waits.mean))
        for name, waits in zip(names, data.waits, strict=True)
    ]
    return table("Waits of an outer step", "part|median|95 %|longest|mean", rows, (1, 2, 3, 4))


def reasons(data: Data) -> Table:
    total = data.verdict_reasons.total()
    rows = [(why, number(count), percent(count / total)) for why, count in _most_first(data.verdict_reasons)]
    return table("Why collecting ended", "verdict, numbers as N|commits|share", rows, (1, 2))


def refusals(data: Data) -> Table:
    rows = [(message, reason, number(count)) for (message, reason), count in _most_first(data.refusals)]
    return table("Refused, failed and not adopted", "what|reason|times", rows, (2,))


def _most_first(counter: Mapping[Any, int]) -> list[tuple[Any, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


# ------------------------------------------------------------------ faults


def faults(data: Data) -> Table:
    rows = [
        (
            str(index),
            text(row["kind"]),
            text(row["target"]),
            "yes" if row["injected"] else "no",
            seconds(row["at_s"]),
            short(row["detection_s"]),
            short(row["recovery_s"]),
            number(row["tokens_lost"]),
        )
        for index, row in enumerate(data.summary["faults"], start=1)
    ]
    rows += [
        (str(mark.number), mark.kind, mark.target, "yes", seconds(mark.at_s), DASH, _healed(mark.until_s), DASH)
        for mark in data.marks
        if mark.number > len(data.summary["faults"])
    ]
    columns = "no.|kind|target|injected|at|detected after|recovered after|tokens lost"
    return table("Faults", columns, rows, (0, 4, 5, 6, 7))


def _healed(until_s: float | None) -> str:
    return DASH if until_s is None else f"healed at {seconds(until_s)}"


def skipped(data: Data) -> Table:
    rows = [(fact.fault_kind, fact.target, fact.reason) for fact in data.skipped]
    return table("Planned faults that found no target", "kind|target|reason", rows, count=data.skips)


def recoveries(data: Data) -> Table:
    rows = [
        (
            f"{index} {row['kind']} {row['target']}",
            *(short(row["recovery_phases"].get(name)) for name in PHASES),
            _source(data, index),
            short(row["recovery_s"]),
        )
        for index, row in enumerate(data.summary["faults"], start=1)
        if any(value is not None for value in row["recovery_phases"].values())
    ]
    columns = "fault|detect|decide|place, start|import|compile|join|contribute|state from|in all"
    return table("Recoveries by phase", columns, rows, (1, 2, 3, 4, 5, 6, 7, 9))


def _source(data: Data, number: int) -> str:
    """Where the incarnation after a death got its state from; a dash for one that survived."""
    mark = next((mark for mark in data.marks if mark.number == number), None)
    if mark is None or mark.incarnation is None:
        return DASH
    dead = any(lane.dead for lane in data.lanes if (lane.learner, lane.incarnation) == (mark.target, mark.incarnation))
    sources = data.sources.items()
    later = sorted(
        which for (who, which), source in sources if source and who == mark.target and which > mark.incarnation
    )
    return data.sources[mark.target, later[0]] if dead and later else DASH


# ------------------------------------------------------------------ bytes, books, checks, log


def wire(data: Data) -> Table:
    """Megabytes of each learner, and of all together."""
    columns = list(
        zip(
            *((link.up, link.down, link.joins, link.peers, link.total, link.data_parallel) for link in data.links),
            strict=True,
        )
    )
    sums = [None if None in column else sum(column) for column in columns]
    rows = [
        (link.learner, *_bytes((link.up, link.down, link.joins, link.peers, link.total, link.data_parallel)))
        for link in data.links
    ]
    if len(rows) > 1:
        rows.append(("all", *_bytes(sums)))
    names = "learner|contributions up|versions down|down at joins|from peers|all|data-parallel|times as much"
    return table("Megabytes (10⁶ bytes)", names, rows, range(1, 8))


def _bytes(values: Sequence[float | None]) -> tuple[str, ...]:
    total, conventional = values[-2], values[-1]
    factor = f"{conventional / total:.1f}×" if total and conventional else DASH
    return (*map(megabytes, values), factor)


def books(data: Data) -> Table:
    """The fate of every token, and of every token-fragment."""
    whole, parts = data.summary["tokens"], data.summary["token_fragments"]
    fates = [("committed", _fate("committed")), *((f"discarded: {why}", _fate(why)) for why in whole["discarded"])]
    fates += [("unknown: its facts were lost", _fate("unknown"))] if whole.get("unknown") else []
    fates += [("in flight", _fate("in_flight")), ("processed", _fate("processed"))]
    rows = []
    for name, fate in fates:
        count, all_ = fate(whole), whole["processed"]
        share = percent(count / all_) if all_ else DASH
        pieces = (
            (number(fate(parts)), percent(fate(parts) / parts["processed"]))
            if parts and parts["processed"]
            else (DASH, DASH)
        )
        rows.append((name, number(count), share, *pieces))
    return table("The fate of every token", "fate|tokens|share|token-fragments|share ", rows, (1, 2, 3, 4))


def _fate(name: str) -> Any:
    return lambda ledger: ledger[name] if name in ledger else ledger["discarded"][name]


def checks(verdicts: Sequence[Verdict]) -> Table:
    rows = [
        (f"{SIGNS[v.status]} {STATUS_WORDS[v.status]}", v.name, v.claim, v.reason)
        for v in sorted(verdicts, key=lambda v: _WORST.index(v.status))
    ]
    return table("Checks", "result|name|what must hold|on this log", rows)


_WORST = ("violated", "unknown", "pass", "idle")


def versions(data: Data) -> Iterator[tuple[str, str]]:
    """The versions that the run was made with."""
    for name, value in sorted(data.versions.items()):
        if value:
            yield name, value


# ------------------------------------------------------------------ rare events, one line each


def timeline(data: Data) -> Table:
    """Rare events in order of time. A note counts those left out of a long run."""
    told = data.timeline
    rows = ((seconds(at - data.origin), *rest) for at, *rest in told.all())
    note = ""
    if told.left_out:
        ends = f"The first {len(told.first)} and the last {len(told.last)}"
        note = f"{ends}; {told.left_out:,} between them are left out."
    return table("Timeline", "at|writer|event|details", rows, (0,), note)
