"""The report's tables: rows of text from the data, as the templates render them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.verdicts import Verdict
from orchestrator.report.data import Data, all_reduced
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


def table(title: str, columns: str, rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> Table:
    """`columns` are separated by bars: "learner|steps". Of very many rows the first are kept, with a note."""
    names = tuple(columns.split("|"))
    cells = tuple(tuple(row) for row in rows)
    assert all(len(row) == len(names) for row in cells)
    note = f"The first {ROWS_MOST} of {len(cells):,}; the others are in the log." if len(cells) > ROWS_MOST else ""
    return Table(title, names, cells[:ROWS_MOST], frozenset(numeric), note)


def short(value: float | None) -> str:
    """A duration; short ones with more digits."""
    if value is None or value >= 10:
        return seconds(value)
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"


def megabytes(count: float | None) -> str:
    return DASH if count is None else f"{count / 1e6:,.1f}"


# ------------------------------------------------------------------ learners


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


def participation(data: Data) -> Table:
    shares = (data.summary["participation"] or {}).get("by_learner") or {}
    rounds = data.summary["round_steps"] or {}
    made = rounds.get("by_learner") or {}
    rows = [(name, percent(share), number(made.get(name), 1)) for name, share in shares.items()]
    columns = f"learner|share of the commits|inner steps in a round ({number(rounds.get('asked'))} asked for)"
    return table("Share of the commits that each took part in, and its rounds", columns, rows, (1, 2))


# ------------------------------------------------------------------ outer steps


def waits(data: Data) -> Table:
    names = ("opening to the K-th report", "grace waited after it", "decision to durable")
    rows = [
        (name, *map(short, shares)) for name, shares in zip(names, data.waits or [(math.nan,) * 4] * 3, strict=True)
    ]
    return table("Waits of an outer step", "part|median|95 %|longest|mean", rows, (1, 2, 3, 4))


def refusals(data: Data) -> Table:
    rows = [(reason, number(count)) for reason, count in data.summary["refusals"].items()]
    return table("Refused", "reason|times", rows, (1,))


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
    left = data.skips - len(data.skipped)
    more = f"; {left:,} earlier ones are in the log" if left else ""
    return table(f"Planned faults that found no target{more}", "kind|target|reason", data.skipped)


def recoveries(data: Data) -> Table:
    rows = [
        (
            f"{index} {row['kind']} {row['target']}",
            *(short(row["recovery_phases"].get(name)) for name in PHASES),
            short(row["recovery_s"]),
        )
        for index, row in enumerate(data.summary["faults"], start=1)
        if any(value is not None for value in row["recovery_phases"].values())
    ]
    columns = "fault|detect|decide|place, start|import|compile|join|contribute|in all"
    return table("Recoveries by phase", columns, rows, range(1, 9))


# ------------------------------------------------------------------ bytes, books, checks, log


def wire(data: Data) -> Table:
    """Bytes of all learners together."""
    assert data.sizes is not None
    sent = (data.summary["wire_bytes"]["up"], data.summary["wire_bytes"]["down"], data.peer_bytes)
    total = None if None in sent else sum(sent)
    plain = data.steps * all_reduced(sum(data.sizes), data.configured)
    factor = f"{plain / total:.1f}×" if total and plain else DASH
    names = "contributions up|versions down|from peers|all|data-parallel|times as much"
    row = (*map(megabytes, (*sent, total, plain)), factor)
    return table("Megabytes (10⁶ bytes)", names, [row] if total or plain else [], range(6))


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
