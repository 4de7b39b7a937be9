"""The report of a log as one HTML page and one Markdown text. The same log and recipe give the same bytes.

The page needs no network, no script and no other file. The template escapes everything that comes from
the log, except the figures' SVG, in which matplotlib has escaped it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.accounting.history import History, indexed
from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import check
from orchestrator.eventlog.events import Event
from orchestrator.report import headline
from orchestrator.report.canvas import NARROW, WIDE, variables
from orchestrator.report.data import Data, collect
from orchestrator.report.markdown import markdown
from orchestrator.report.sections import Section, drawn, sections


@dataclass(frozen=True)
class Report:
    html: str
    markdown: str


def report(events: Iterable[Event] | History, recipe: str) -> Report:
    """`recipe` is the text of the run's config.toml; empty where it is lost."""
    history, plain = indexed(events), _plain(recipe)
    verdicts = check(history)
    summary = summarise(history, plain, verdicts)
    data = collect(history, plain, summary, verdicts)
    told = sections(data, recipe)
    return Report(_encodable(_html(summary, data, told)), _encodable(markdown(summary, told)))


def _html(summary: Mapping[str, Any], data: Data, told: list[Section]) -> str:
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
    return environment.get_template("report.html").render(
        summary=summary,
        verdict=headline.verdict(summary),
        tiles=headline.tiles(summary),
        sections=told,
        pictures=pictures,
        light=variables(dark=False),
        dark=variables(dark=True),
    )


def _plain(recipe: str) -> Mapping[str, Any]:
    """The recipe's values; none where the text is damaged: the log is worth a report without them."""
    try:
        return tomllib.loads(recipe)
    except tomllib.TOMLDecodeError:
        return {}


def _encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can carry and UTF-8 cannot, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
