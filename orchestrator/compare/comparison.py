"""Compared runs as rows, one for each mode without and with faults: means over seeds, and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from rich import box
from rich.table import Table
from scipy.special import stdtrit

from orchestrator.compare.modes import Case, Mode
from orchestrator.compare.runs import IdealRing, RunOutcome
from orchestrator.store.status_text import DASH, number, percent, seconds


@dataclass(frozen=True)
class LossDifference:
    """The first ones' held-out losses minus the second ones', over paired seeds."""

    seeds: tuple[int, ...]
    each: tuple[float, ...]
    mean: float
    half_width: float | None  # of Student's 95 % interval; None for one seed


@dataclass(frozen=True)
class Row:
    """A case over its seeds: means, None where no run knows. Losses with half of Student's 95 % interval."""

    case: Case
    outcomes: tuple[RunOutcome, ...]
    eval_loss: tuple[float | None, float | None]
    at_tokens: float | None  # held-out loss at Comparison.tokens
    at_seconds: float | None  # held-out loss at Comparison.seconds
    against: LossDifference | None  # of losses at equal tokens to the reference; None for the reference itself
    against_calm: LossDifference | None  # of a case with faults to the same mode without
    relative: float | None  # against.mean / the reference's mean loss
    relative_calm: float | None = None  # against_calm.mean / the same mode's mean loss without faults

    def mean(self, of: Callable[[RunOutcome], float | None]) -> float | None:
        """Over the runs that finished."""
        return _mean([each for each in self.outcomes if each.finished], of)

    @property
    def recovery_s(self) -> float | None:
        """The median over all faults of all runs that finished."""
        found = [seconds for each in self.outcomes if each.finished for seconds in each.recoveries]
        return statistics.median(found) if found else None


@dataclass(frozen=True)
class Comparison:
    """All rows. `tokens`, `seconds`: that every finished run without faults came to."""

    reference: Case
    tokens: int
    seconds: float
    rows: tuple[Row, ...]

    @property
    def loss_unit(self) -> str:
        return next((each.loss_unit for row in self.rows for each in row.outcomes if each.loss_unit), "")


def compared(found: Mapping[Case, Sequence[RunOutcome]], reference: Mode) -> Comparison:
    """Rows in the order of `found`, in which no case is without outcomes, and the reference is without faults."""
    ended = [(case, each) for case, outcomes in found.items() for each in outcomes if each.converged]
    calm = [(case, each) for case, each in ended if not case.chaos] or ended
    tokens = min((each.curve[-1][0] for _, each in calm), default=0)
    seconds = min((each.curve[-1][1] for _, each in calm), default=0.0)
    base = Case(reference, False)
    losses = {case: _losses(outcomes, tokens) for case, outcomes in found.items()}
    rows = []
    for case, every in found.items():
        outcomes = [each for each in every if each.finished]
        against = None if case == base else difference(losses[case], losses[base])
        unstruck = losses.get(Case(case.mode, False)) if case.chaos else None
        against_calm = None if unstruck is None else difference(losses[case], unstruck)
        rows.append(
            Row(
                case,
                tuple(every),
                spread([each.eval_loss for each in outcomes if each.eval_loss is not None]),
                _mean(outcomes, lambda each: each.at_tokens(tokens)),
                _mean(outcomes, lambda each: each.at_seconds(seconds)),
                against,
                against_calm,
                None if against is None else against.mean / _paired_mean(losses[base], against),
                None if against_calm is None else against_calm.mean / _paired_mean(unstruck or [], against_calm),
            )
        )
    return Comparison(base, tokens, seconds, tuple(rows))


def _mean(outcomes: Sequence[RunOutcome], of: Callable[[RunOutcome], float | None]) -> float | None:
    known = [value for each in outcomes if (value := of(each)) is not None]
    return statistics.fmean(known) if known else None


def _paired_mean(rows: Sequence[dict[str, Any]], found: LossDifference) -> float:
    return statistics.fmean(row["eval_loss"] for row in rows if row["seed"] in found.seeds)


def _losses(outcomes: Sequence[RunOutcome], tokens: int) -> list[dict[str, Any]]:
    """Rows for `difference`: losses of finished runs at equal tokens."""
    return [{"seed": each.seed, "eval_loss": each.at_tokens(tokens)} for each in outcomes if each.finished]


def as_json(comparison: Comparison, folder: str, ring: IdealRing | None) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "folder": folder,
        "reference": comparison.reference.name,
        "loss_unit": comparison.loss_unit,
        "tokens": comparison.tokens,
        "seconds": comparison.seconds,
        "ideal_ring": ring and asdict(ring),
        "rows": [_row_as_json(row) for row in comparison.rows],
    }


MEANS = (
    "committed", "steps", "wall_s", "tokens_per_s", "goodput_time", "goodput_tokens", "participation", "up_bytes",
    "down_bytes", "faults",
)  # fmt: skip


def _row_as_json(row: Row) -> dict[str, Any]:
    return {
        "mode": row.case.mode.name,
        "chaos": row.case.chaos,
        "eval_loss": row.eval_loss[0],
        "half_width": row.eval_loss[1],
        "eval_loss_at_tokens": row.at_tokens,
        "eval_loss_at_seconds": row.at_seconds,
        "difference": row.against and asdict(row.against),
        "relative_difference": row.relative,
        "difference_to_calm": row.against_calm and asdict(row.against_calm),
        "relative_difference_to_calm": row.relative_calm,
        **{name: row.mean(attrgetter(name)) for name in MEANS},
        "recovery_s": row.recovery_s,
        "seeds": [asdict(each) for each in row.outcomes],
    }


# ------------------------------------------------------------------ paired differences


def difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> LossDifference | None:
    """None where no seed is in both with a finite loss."""
    before = {row["seed"]: row["eval_loss"] for row in theirs if row["eval_loss"] is not None}
    pairs = [(row["seed"], row["eval_loss"] - before[row["seed"]]) for row in ours if _both(row, before)]
    if not pairs:
        return None
    seeds, each = zip(*pairs, strict=True)
    return LossDifference(seeds, each, statistics.fmean(each), half_width(each) if len(each) > 1 else None)


def _both(row: dict[str, Any], others: dict[int, float]) -> bool:
    return row["eval_loss"] is not None and row["seed"] in others


def spread(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and half of Student's 95 % interval, as far as so many losses have them."""
    mean = statistics.fmean(losses) if losses else None
    return mean, half_width(losses) if len(losses) > 1 else None


def half_width(samples: Sequence[float]) -> float:
    """Half of Student's 95 % interval for the mean of two or more independent samples."""
    return float(stdtrit(len(samples) - 1, 0.975)) * statistics.stdev(samples) / math.sqrt(len(samples))


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


def tables(result: Comparison, ring: IdealRing | None = None) -> Iterator[Table]:
    """A row for each case: losses at equal tokens and after equal times; what it made of its time, and what it sent.

    Below the latter what data-parallel training could do at best, where the links of the recipe say so.
    """
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
        ]
        + ([] if ring is None else [_of_ring(ring, *(DASH,) * 2 * struck)]),
    )


def _of_ring(ring: IdealRing, *more: str) -> tuple[str, ...]:
    step = f"ideal ring, {number(ring.seconds, 3)} s a step"
    return (step, number(ring.tokens_per_s), DASH, DASH, _mb(ring.bytes), _mb(ring.bytes), *more)


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
