"""The report of a log as one HTML page and one Markdown text. The same log and recipe give the same bytes.

The page needs no network, no script and no other file. The template escapes everything that comes from
the log, except the figures' SVG, in which matplotlib has escaped it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from orchestrator.report.sections import ReportSection, drawn, sections
from orchestrator.report.tables import Table


@dataclass(frozen=True)
class ReportPage:
    html: str
    markdown: str


@dataclass(frozen=True)
class Contents:
    """The sources of a report: a fold of the whole log, and what others made of the same log."""

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


# ------------------------------------------------------------------ markdown

# The report as Markdown: all of its words and tables, none of its figures. What comes from the log is escaped.


def markdown(summary: Mapping[str, Any], sections: list[ReportSection]) -> str:
    return "\n".join(_lines(summary, sections)).rstrip() + "\n"


def escape(text: str) -> str:
    """Text that Markdown and HTML show as it is, on one line."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = re.sub(r"([\\`*_\[\]|~#!$])", r"\\\1", plain)
    return re.sub(
        r"(?i)(https?|ftp)(?=:)|www(?=\.)", lambda found: f"{found.group()[:-1]}&#{ord(found.group()[-1])};", plain
    )


def _lines(summary: Mapping[str, Any], sections: list[ReportSection]) -> Iterator[str]:
    verdict = headline.verdict(summary)
    yield f"# {escape(str(summary['name'] or 'run'))}: {escape(verdict.word)}"
    yield ""
    yield escape(verdict.sentence)
    yield ""
    yield "Figures: `report.html`."
    yield ""
    yield "| | | |"
    yield "|---|---:|---|"
    yield from (f"| {tile.label} | {escape(tile.value)} | {escape(tile.detail)} |" for tile in headline.tiles(summary))
    for section in sections:
        yield from ("", f"## {section.title}")
        for words in section.lead:
            yield from ("", escape(words))
        for picture in section.pictures:
            yield from ("", escape(picture.words))
        for one in section.tables:
            yield from _table(one)
        for title, text in section.blocks:
            yield from ("", f"### {escape(title)}", "", *_fenced(text))


def _table(one: Table) -> Iterator[str]:
    yield from ("", f"### {escape(one.title)}", "")
    yield "| " + " | ".join(map(escape, one.columns)) + " |"
    yield "|" + "|".join("---:" if index in one.numeric else "---" for index in range(len(one.columns))) + "|"
    yield from ("| " + " | ".join(map(escape, row)) + " |" for row in one.rows)
    if one.note:
        yield from ("", escape(one.note))


def _fenced(text: str) -> tuple[str, str, str]:
    """A block that nothing inside can end: its fence is longer than any run of the fence's own sign."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return (fence, text.rstrip("\n"), fence)
