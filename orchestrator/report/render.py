"""The report of a log as one HTML page. The same log and recipe give the same bytes.

The page needs no network, no script and no other file. The template escapes everything that comes from
the log, except the figures' SVG, in which matplotlib has escaped it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.analysis.checks import verdicts
from orchestrator.analysis.database import filled
from orchestrator.analysis.summary import summary_of
from orchestrator.analysis.verdicts import Verdict
from orchestrator.eventlog.tables import LogPart
from orchestrator.report import headline
from orchestrator.report.data import collect
from orchestrator.report.palette import variables
from orchestrator.report.sections import ReportSection, sections


@dataclass(frozen=True)
class Contents:
    """The sources of a report: the tables of the whole log, and what was made of the same log."""

    database: duckdb.DuckDBPyConnection
    summary: Mapping[str, Any]
    verdicts: Sequence[Verdict]


def report(contents: Contents, recipe: str) -> str:
    """Return the page. `recipe` is the text of the run's config.toml; empty where it is lost."""
    summary = contents.summary
    data = collect(contents.database, summary, contents.verdicts)
    values = {"summary": summary, "verdict": headline.verdict(summary), "tiles": headline.tiles(summary)}
    html = page("report.html", data, sections(data, recipe), **values)
    return html.encode("utf-8", "replace").decode()  # half of a surrogate pair, which JSON can carry, becomes "?"


def contents_of(parts: Iterable[LogPart], recipe: str) -> Contents:
    """The contents of a log, read from its beginning to its end."""
    database = filled(parts)
    found = verdicts(database)
    return Contents(database, summary_of(database, plain(recipe), found), found)


def page(template: str, data: Any, told: Sequence[ReportSection], **values: Any) -> str:
    """The HTML of a template with these sections, whose pictures are drawn from `data`."""
    environment = Environment(
        loader=PackageLoader("orchestrator.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pictures = {
        section.key: [(svg, one) for one in section.pictures if (svg := one.draw(data, one.words)) is not None]
        for section in told
    }
    colours = {"light": variables(dark=False), "dark": variables(dark=True)}
    return environment.get_template(template).render(sections=told, pictures=pictures, **colours, **values)


def plain(recipe: str) -> Mapping[str, Any]:
    """The recipe's values; none where the text is damaged: the log is worth a report without them."""
    try:
        return tomllib.loads(recipe)
    except tomllib.TOMLDecodeError:
        return {}
