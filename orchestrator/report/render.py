"""The report of a log as one HTML page and one Markdown text. The same log and recipe give the same bytes.

The page needs no network, no script and no other file. The template escapes everything that comes from
the log, except the figures' SVG, in which matplotlib has escaped it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import drive
from orchestrator.accounting.summary import summarise
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.block import Block
from orchestrator.report import headline
from orchestrator.report.canvas import NARROW, WIDE, variables
from orchestrator.report.data import Data, collect
from orchestrator.report.fold import ReportFold
from orchestrator.report.markdown import markdown
from orchestrator.report.sections import ReportSection, drawn, sections


@dataclass(frozen=True)
class ReportPage:
    html: str
    markdown: str


@dataclass(frozen=True)
class Contents:
    """What a report is made of: a fold of the whole log, and what others made of the same log."""

    fold: ReportFold
    summary: Mapping[str, Any]
    verdicts: Sequence[Verdict]


def report(contents: Contents, recipe: str) -> ReportPage:
    """`recipe` is the text of the run's config.toml; empty where it is lost."""
    summary = contents.summary
    data = collect(contents.fold, plain(recipe), summary, contents.verdicts)
    told = sections(data, recipe)
    return ReportPage(_encodable(_html(summary, data, told)), _encodable(markdown(summary, told)))


def contents_of(blocks: Iterable[Block], recipe: str) -> Contents:
    """The contents of a log, read from its beginning to its end."""
    accounts = Accounts()
    suite, fold = Suite(accounts), ReportFold(accounts)
    drive([accounts, suite, fold], blocks)
    verdicts = suite.verdicts()
    return Contents(fold, summarise(accounts, plain(recipe), verdicts), verdicts)


def _html(summary: Mapping[str, Any], data: Data, told: list[ReportSection]) -> str:
    return page(
        "report.html", data, told, summary=summary, verdict=headline.verdict(summary), tiles=headline.tiles(summary)
    )


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
        section.key: [(wide, narrow, picture) for (wide, narrow), picture in drawn(section, data, (WIDE, NARROW))]
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


def _encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can carry and UTF-8 cannot, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
