"""The report as Markdown: all of its words and tables, none of its figures. What comes from the log is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.report import headline
from orchestrator.report.sections import ReportSection
from orchestrator.report.tables import Table


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
