"""The report's sections in order, each with words, figures and tables. The templates render this list."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.report import tables
from orchestrator.report.data import Data
from orchestrator.report.figures import LEARNERS_MOST
from orchestrator.report.tables import Table
from orchestrator.store.status_text import number, percent, seconds


@dataclass(frozen=True)
class Picture:
    """A figure, which the page's script draws."""

    figure: str  # its name there, templates/report.js
    words: str  # for those who cannot see it
    caption: str


@dataclass(frozen=True)
class ReportSection:
    key: str
    title: str
    lead: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    blocks: tuple[tuple[str, str], ...] = ()  # title, text as it is


def sections(data: Data, recipe: str) -> list[ReportSection]:
    """All sections that have content. `recipe` is the text of config.toml."""
    all_ = [
        _failure(data), _loss(data), _learners(data), _time(data), _merges(data),
        _faults(data), _wire(data), _books(data), _checks(data), _recipe(data, recipe),
    ]  # fmt: skip
    return [section for section in all_ if section.lead or section.pictures or section.tables or section.blocks]


def _kept(*candidates: Table) -> tuple[Table, ...]:
    return tuple(candidate for candidate in candidates if candidate.rows)


def _failure(data: Data) -> ReportSection:
    """Tracebacks of the run and of learners whose loops failed."""
    blocks = []
    reason = data.summary["reason"] or ""
    if "\n" in reason.strip():
        blocks.append(("Why the run ended", reason))
    for learner, incarnation, step, traceback in data.failures:
        blocks.append((f"{learner}, incarnation {incarnation}, after step {step}", traceback))
    left = data.failed - len(data.failures)
    lead = (f"{left:,} learners' loops failed before these; their tracebacks are in the log.",) if left else ()
    return ReportSection("failures", "What failed", lead, blocks=tuple(blocks))


def _loss(data: Data) -> ReportSection:
    if not data.training and not data.held_out:
        return ReportSection("loss", "Loss")
    words = ""
    if data.training:
        unit = f" {data.summary['loss_unit']}" if data.summary.get("loss_unit") else ""
        words += f" Training loss goes from {data.training[0].middle:.2f} to {data.training[-1].middle:.2f}{unit}."
    if data.held_out:
        words += f" Held-out loss goes from {data.held_out[0].value:.2f} to {data.held_out[-1].value:.2f}."
    caption = (
        "Training loss is measured on the learners' own batches: the median over neighbouring steps of all learners. "
        "Held-out loss is that of the syncer's parameters, drawn at their commit."
    )
    if data.marks:
        caption += " Red lines are faults, numbered as in the table. Shading ends where the learner contributed again."
    lead = (
        (f"{data.not_finite:,} steps had a loss that is not finite. The figure leaves them out.",)
        if data.not_finite
        else ()
    )
    return ReportSection(
        "loss",
        "Loss",
        lead,
        (
            Picture("loss-by-tokens", f"Loss against committed tokens.{words}", "Loss against committed tokens."),
            Picture("loss-by-time", f"Loss against time.{words}", f"Loss against time. {caption}"),
        ),
        _kept(tables.auxiliaries(data), tables.held_out(data)),
    )


def _learners(data: Data) -> ReportSection:
    if not data.lanes:
        return ReportSection("learners", "Learners")
    restarts = sum(lane.incarnation > 1 for lane in data.lanes)
    learners = len({lane.learner for lane in data.lanes})
    words = f"{learners} learners in {len(data.lanes)} incarnations over {seconds(data.end_s)}; {restarts} restarts."
    caption = "Each learner's incarnations follow each other in one row."
    if data.marks:
        caption += " Triangles are faults, numbered as in the table of faults."
    if any(lane.frozen for lane in data.lanes):
        caption += " The thin line under a row starts where the learner lost its lease."
    if learners > LEARNERS_MOST:
        caption += f" The first {LEARNERS_MOST} of {learners} learners are drawn."
    left = data.lanes_left_out
    lead = (f"{left:,} earlier incarnations are left out of the figure.",) if left else ()
    pictures = (Picture("lanes", words, caption),)
    return ReportSection("learners", "Learners", lead, pictures, _kept(tables.participation(data)))


def _time(data: Data) -> ReportSection:
    if not data.seconds:
        return ReportSection("time", "Where the time went")
    share = percent(data.summary["goodput_time"])
    words = f"{share} of the configured learners' time went into steps whose tokens were committed."
    caption = (
        "Every second of every configured learner, from the first learner step to the last commit, is in exactly one "
        "category. The second figure leaves productive time out."
    )
    return ReportSection("time", "Where the time went", (), (Picture("time", words, caption),))


def _merges(data: Data) -> ReportSection:
    lead = (
        "Grace is the wait after the quorum for learners that had not reported; the last part reads the contributions, "
        "merges them and makes the result durable. The log records the grace that was used, not what was granted.",
    )
    found = _kept(tables.waits(data), tables.refusals(data))
    return ReportSection("merges", "Outer steps", lead if found else (), (), found)


def _faults(data: Data) -> ReportSection:
    listed, missed = tables.faults(data), tables.skipped(data)
    if not listed.rows and not missed.rows:
        return ReportSection("faults", "Faults and recoveries", ("No fault was injected, and no learner died.",))
    lead = (
        "A recovery lasts from the fault to the first merged contribution after it. A frozen learner that is not "
        "declared dead goes on once it thaws: its time is detection, the rest of the freeze, and the wait for its next "
        "contribution.",
    )
    return ReportSection("faults", "Faults and recoveries", lead, (), _kept(listed, tables.recoveries(data), missed))


def _wire(data: Data) -> ReportSection:
    if data.sizes is None:
        return ReportSection("wire", "Bytes on the links")
    elements, count = sum(data.sizes), data.configured
    lead = (
        "Up: the elements of every merged contribution in the recipe's codec. Down: what was fetched until "
        "each adoption, and in float32 where the log does not say. Payloads only: headers and refused contributions "
        "are not in the log and not counted.",
        f"Data-parallel training is a ring all-reduce of one float32 gradient ({number(elements)} elements) for each "
        f"of the same learner steps among {count} learners: 2 (M − 1) / M × 4 bytes × elements sent by each learner "
        "and step. "
        "Each byte is counted once, where it is sent; gradients of 16 bits would halve that figure."
        if count > 1
        else "With one learner, data-parallel training would send nothing.",
    )
    return ReportSection("wire", "Bytes on the links", lead, (), _kept(tables.wire(data)))


def _books(data: Data) -> ReportSection:
    lead = (
        "Processed tokens are committed, discarded or in flight; each column is summed independently. A token is "
        "committed when a contribution with its step is merged into at least one fragment. In token-fragments it "
        "counts once for each fragment.",
    )
    return ReportSection(
        "books", "Books", lead, tables=_kept(tables.books(data)) if data.summary["tokens"]["processed"] else ()
    )


def _checks(data: Data) -> ReportSection:
    return ReportSection("checks", "Checks", (), (), _kept(tables.checks(data.verdicts)))


def _recipe(data: Data, recipe: str) -> ReportSection:
    made = tables.table("Made with", "what|version", tables.versions(data))
    blocks = (("config.toml", recipe),) if recipe.strip() else ()
    return ReportSection("recipe", "Recipe", (), (), _kept(made), blocks)
