"""Compared runs as rows: both ways to train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from orchestrator.compare.modes import DATA_PARALLEL, DECOUPLED
from orchestrator.compare.runs import IdealRing, RunOutcome
from orchestrator.store.status_text import DASH, number, percent, seconds


@dataclass(frozen=True)
class Row:
    """A way to train. None where its run knows it not, or did not finish."""

    mode: str
    outcome: RunOutcome
    at_tokens: float | None  # held-out loss at Comparison.tokens
    at_seconds: float | None  # held-out loss at Comparison.seconds


@dataclass(frozen=True)
class Comparison:
    """Both rows. `tokens`, `seconds`: that every finished run came to."""

    tokens: int
    seconds: float
    rows: tuple[Row, ...]

    @property
    def difference(self) -> tuple[float, float] | None:
        """The held-out loss of `decoupled` at equal tokens minus that of `data_parallel`, and its share of that."""
        losses = {row.mode: row.at_tokens for row in self.rows}
        ours, theirs = losses[DECOUPLED], losses[DATA_PARALLEL]
        return None if ours is None or theirs is None else (ours - theirs, (ours - theirs) / theirs)


def compared(found: Mapping[str, RunOutcome]) -> Comparison:
    """Rows in the order of `found`, which has both modes."""
    ended = [each for each in found.values() if each.converged]
    tokens = min((each.curve[-1][0] for each in ended), default=0)
    until = min((each.curve[-1][1] for each in ended), default=0.0)
    rows = (
        Row(mode, each, each.at_tokens(tokens), each.at_seconds(until))
        if each.finished
        else Row(mode, each, None, None)
        for mode, each in found.items()
    )
    return Comparison(tokens, until, tuple(rows))


def as_json(comparison: Comparison, folder: str, ring: IdealRing | None) -> dict[str, Any]:
    """The comparison as plain values."""
    loss, relative = comparison.difference or (None, None)
    return {
        "folder": folder,
        "tokens": comparison.tokens,
        "seconds": comparison.seconds,
        "difference": loss,
        "relative_difference": relative,
        "ideal_ring": ring and asdict(ring),
        "rows": [
            {
                "mode": row.mode,
                "eval_loss_at_tokens": row.at_tokens,
                "eval_loss_at_seconds": row.at_seconds,
                **asdict(row.outcome),
            }
            for row in comparison.rows
        ],
    }


def sentence(result: Comparison) -> str:
    if result.difference is None:
        return f"{DECOUPLED} and {DATA_PARALLEL} did not both finish: nothing to compare."
    loss, relative = result.difference
    amount = f"{abs(loss):.4f} ({abs(relative):.2%}) {'above' if loss >= 0 else 'below'}"
    return f"At equal tokens the held-out loss of {DECOUPLED} is {amount} that of {DATA_PARALLEL}."


def tables(result: Comparison, ring: IdealRing | None = None) -> Iterator[Table]:
    """A row for each way: losses at equal tokens and after equal times; what it made of its time, and what it sent.

    Below the latter what data-parallel training could do at best, where the links of the recipe say so.
    """
    yield _table(
        ("mode", f"loss at {_short(result.tokens)} tokens", f"loss after {seconds(result.seconds)}"),
        [
            (
                row.mode,
                # in brackets that of a run which ended before
                f"({number(row.outcome.eval_loss, 4)})" if row.at_tokens is None else number(row.at_tokens, 4),
                number(row.at_seconds, 4),
            )
            for row in result.rows
        ],
    )
    yield _table(
        ("mode", "tokens/s", "goodput", "participation", "MB up a step", "down"),
        [
            (
                row.mode,
                number(row.outcome.tokens_per_s),
                percent(row.outcome.goodput_time),
                percent(row.outcome.participation),
                _mb(row.outcome.up_bytes),
                _mb(row.outcome.down_bytes),
            )
            for row in result.rows
        ]
        + ([] if ring is None else [_of_ring(ring)]),
    )


def _of_ring(ring: IdealRing) -> tuple[str, ...]:
    step = f"ideal ring, {number(ring.seconds, 3)} s a step"
    return (step, number(ring.tokens_per_s), DASH, DASH, _mb(ring.bytes), _mb(ring.bytes))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(titles):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _mb(count: float | None) -> str:
    return DASH if count is None else f"{count / 1e6:.3f}"


def _short(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)
