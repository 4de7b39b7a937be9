"""A comparison as a sentence and two tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from orchestrator.compare.comparison import Comparison, LossDifference, Row
from orchestrator.store.status_text import DASH, number, percent, seconds


def sentence(result: Comparison) -> str:
    """Say the result for the first row that is not the reference, and for the first under faults."""
    others = [row for row in result.rows if row.case != result.reference]
    if not others:
        return f"Only {result.reference.name} was trained: there is nothing to compare it with."
    compared = [_said(row.against, row.relative, row.case.name, result.reference.name) for row in others[:1]]
    struck = [row for row in others if row.against_calm is not None][:1]
    compared += [_said(row.against_calm, row.relative_calm, row.case.name, row.case.mode.name) for row in struck]
    return " ".join(compared)


def _said(found: LossDifference | None, relative: float | None, name: str, other: str) -> str:
    if found is None or relative is None:
        return f"{name} and {other} have no seed that finished in both: nothing to compare."
    pairs = f"over {len(found.seeds)} paired seeds" if len(found.seeds) > 1 else "with one seed, so without interval"
    half = "" if found.half_width is None else f" ± {found.half_width:.4f}"
    where = "above" if found.mean >= 0 else "below"
    amount = f"{abs(found.mean):.4f}{half} ({abs(relative):.2%}) {where}"
    return f"At equal tokens the held-out loss of {name} is {amount} that of {other}, {pairs}."


def tables(result: Comparison) -> Iterator[Table]:
    """A row for each case: losses at equal tokens and after equal times; what it made of its time, and what it sent."""
    at_tokens, after = f"loss at {_short(result.tokens)} tokens", f"loss after {seconds(result.seconds)}"
    yield _table(
        ("mode", at_tokens, f"minus {result.reference.name}", "%", after),
        [
            (
                _name(row),
                _loss_cell(row),
                _difference_cell(row.against),
                DASH if row.relative is None else f"{100 * row.relative:+.2f}",
                number(row.at_seconds, 4),
            )
            for row in result.rows
        ],
    )
    struck = any(row.case.chaos for row in result.rows)
    yield _table(
        ("mode", "tokens/s", "goodput", "participation", "MB up a step", "down", *("faults", "recovery")[: 2 * struck]),
        [
            (
                _name(row),
                number(row.mean(lambda each: each.tokens_per_s)),
                percent(row.mean(lambda each: each.goodput_time)),
                percent(row.mean(lambda each: each.participation)),
                _mb(row.mean(lambda each: each.up_bytes)),
                _mb(row.mean(lambda each: each.down_bytes)),
                *((number(row.mean(lambda each: each.faults), 1), seconds(row.recovery_s)) if struck else ()),
            )
            for row in result.rows
        ],
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(titles):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _name(row: Row) -> str:
    """The case, and how many of its seeds the means are over where not all finished."""
    finished = sum(each.finished for each in row.outcomes)
    return row.case.name if finished == len(row.outcomes) else f"{row.case.name} ({finished} of {len(row.outcomes)})"


def _loss_cell(row: Row) -> str:
    """At equal tokens; in brackets that of a run which ended before."""
    return f"({number(row.eval_loss[0], 4)})" if row.at_tokens is None else number(row.at_tokens, 4)


def _difference_cell(found: LossDifference | None) -> str:
    if found is None:
        return DASH
    return f"{found.mean:+.4f}" + ("" if found.half_width is None else f" ± {found.half_width:.4f}")


def _mb(count: float | None) -> str:
    return DASH if count is None else f"{count / 1e6:.3f}"


def _short(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)
