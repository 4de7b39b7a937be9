"""A comparison as one HTML page, in the report's style: a table, curves, differences and the runs behind them."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.compare import figures
from orchestrator.compare.comparison import Comparison, Difference, Row
from orchestrator.compare.modes import Mode
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.report.render import page
from orchestrator.report.sections import Picture, ReportSection
from orchestrator.report.tables import Table, table
from orchestrator.store.status_text import DASH, number, percent, seconds


def html(result: Comparison, recipe: Recipe, plan: ChaosConfig | None) -> str:
    """The page. It needs no network, no script and no other file."""
    told = [
        _table(result),
        _loss(result),
        _differences(result),
        _runs(result),
        _recipe(recipe, plan),
    ]
    shown = [section for section in told if section is not None]
    return page("compare.html", result, shown, title=f"{recipe.name}: ways to train", sentence=sentence(result))


def sentence(result: Comparison) -> str:
    """Say the result for the first row that is not the reference, and for the first under faults."""
    others = [row for row in result.rows if row.case != result.reference]
    if not others:
        return f"Only {result.reference.name} was trained: there is nothing to compare it with."
    compared = [_said(row.against, row.relative, row.case.name, result.reference.name) for row in others[:1]]
    struck = [row for row in others if row.against_calm is not None][:1]
    compared += [_said(row.against_calm, row.relative_calm, row.case.name, row.case.mode.name) for row in struck]
    return " ".join(compared)


def _said(found: Difference | None, relative: float | None, name: str, other: str) -> str:
    if found is None or relative is None:
        return f"{name} and {other} have no seed that finished in both: nothing to compare."
    pairs = f"over {len(found.seeds)} paired seeds" if len(found.seeds) > 1 else "with one seed, so without interval"
    half = "" if found.half_width is None else f" ± {found.half_width:.4f}"
    where = "above" if found.mean >= 0 else "below"
    amount = f"{abs(found.mean):.4f}{half} ({abs(relative):.2%}) {where}"
    return f"At equal tokens the held-out loss of {name} is {amount} that of {other}, {pairs}."


# ------------------------------------------------------------------ the table, here and in the terminal


def losses(result: Comparison) -> Table:
    """A row for each case: losses at equal tokens and after equal times, and the difference."""
    titles = (
        "mode",
        f"loss at {_short(result.tokens)} tokens",
        f"minus {result.reference.name}",
        "%",
        f"loss after {seconds(result.seconds)}",
    )
    rows = [
        (
            _name(row),
            _loss_cell(row),
            difference_cell(row.against),
            DASH if row.relative is None else f"{100 * row.relative:+.2f}",
            number(row.at_seconds, 4),
        )
        for row in result.rows
    ]
    return table("Held-out losses", "|".join(titles), rows, range(1, 5))


def speed(result: Comparison) -> Table:
    """A row for each case: what it made of its time, and what it sent."""
    faults = any(row.case.chaos for row in result.rows)
    titles = "mode|tokens/s|goodput|participation|MB up a step|down"
    rows = [
        (
            _name(row),
            number(row.mean(lambda each: each.tokens_per_s)),
            percent(row.mean(lambda each: each.goodput_time)),
            percent(row.mean(lambda each: each.participation)),
            _mb(row.mean(lambda each: each.up_bytes)),
            _mb(row.mean(lambda each: each.down_bytes)),
            *((number(row.mean(lambda each: each.faults), 1), seconds(row.recovery_s)) if faults else ()),
        )
        for row in result.rows
    ]
    return table("Speed and bytes", titles + ("|faults|recovery" if faults else ""), rows, range(1, 8 if faults else 6))


def _name(row: Row) -> str:
    """The case, and how many of its seeds the means are over where not all finished."""
    finished = sum(each.finished for each in row.outcomes)
    return row.case.name if finished == len(row.outcomes) else f"{row.case.name} ({finished} of {len(row.outcomes)})"


def _loss_cell(row: Row) -> str:
    """At equal tokens; in brackets that of a run which ended before."""
    return f"({number(row.eval_loss[0], 4)})" if row.at_tokens is None else number(row.at_tokens, 4)


def difference_cell(found: Difference | None, relative: float | None = None) -> str:
    if found is None:
        return DASH
    share = "" if relative is None else f" ({relative:+.2%})"
    half = "" if found.half_width is None else f" ± {found.half_width:.4f}"
    return f"{found.mean:+.4f}{half}{share}"


def _mb(count: float | None) -> str:
    return DASH if count is None else f"{count / 1e6:.3f}"


def _short(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)


# ------------------------------------------------------------------ sections


def _table(result: Comparison) -> ReportSection:
    faults = any(row.case.chaos for row in result.rows)
    lead = (
        "One model, one order of samples, one inner optimizer, one budget of tokens, and the same hardware for all.",
        "Time counts from the first learner step.",
    )
    notes = (
        "Losses before a run's end are interpolated, and their learning rate is not yet at its last. ± is half of "
        "Student's 95 % interval over paired seeds. Bytes are payloads, for one learner's hardware and one of its "
        "steps; gradients are counted as a ring all-reduce in float32."
    )
    if faults:
        notes += " Recovery: the median, until a restarted learner contributes, or all ranks are further than before."
    found = losses(result), replace(speed(result), note=notes)
    meanings = table(
        "What they are", "mode|what it is", [(mode.name, mode.words) for mode in dict.fromkeys(_modes(result))]
    )
    return ReportSection("table", "Side by side", lead, (), (*found, meanings))


def _modes(result: Comparison) -> list[Mode]:
    return [row.case.mode for row in result.rows]


def _loss(result: Comparison) -> ReportSection | None:
    words = "Held-out loss against committed tokens and against time, a line for each mode."
    several = any(len(row.outcomes) > 1 for row in result.rows)
    caption = "Means over seeds; thin lines are single seeds." if several else "One seed."
    if any(row.case.chaos for row in result.rows):
        caption += " Dashed: under faults."
    return ReportSection("loss", "Held-out loss", (), (Picture(figures.curves, words, caption),))


def _differences(result: Comparison) -> ReportSection | None:
    rows = [row for row in result.rows if row.against is not None]
    if not rows:
        return None
    words = f"Each mode's paired differences of held-out losses to {result.reference.name}."
    caption = (
        "Loss at equal tokens minus that of the same seed in the reference: small dots are seeds, large ones their "
        "mean, bars Student's 95 % interval. Left is better."
    )
    faults = any(row.case.chaos for row in rows)
    listed = table(
        "Paired differences",
        f"mode|to {result.reference.name}|seeds" + ("|to itself without faults" if faults else ""),
        [
            (
                row.case.name,
                difference_cell(row.against, row.relative),
                ", ".join(map(str, row.against.seeds)) if row.against else DASH,
                *((difference_cell(row.against_calm, row.relative_calm),) if faults else ()),
            )
            for row in rows
        ],
        (1, 3) if faults else (1,),
    )
    return ReportSection("differences", "Differences", (), (Picture(figures.differences, words, caption),), (listed,))


def _runs(result: Comparison) -> ReportSection:
    rows = [
        (
            row.case.name,
            str(each.seed),
            number(each.eval_loss, 4),
            number(each.committed),
            number(each.processed),
            number(each.steps),
            seconds(each.wall_s),
            number(each.faults),
            "ok" if each.ok else "NOT OK",
        )
        for row in result.rows
        for each in row.outcomes
    ]
    titles = "mode|seed|held-out loss|tokens committed|processed|steps|time|faults|checks"
    return ReportSection("runs", "Runs", (), (), (table("Every run", titles, rows, range(1, 8)),))


def _recipe(recipe: Recipe, plan: ChaosConfig | None) -> ReportSection:
    calm = recipe.model_copy(update={"chaos": plan or ChaosConfig()})
    return ReportSection("recipe", "Recipe", blocks=(("The recipe that all modes change", dump(calm)),))
