"""The report of a log as one HTML page. The same log and recipe give the same bytes.

The page needs no network and no other file. The template escapes everything that comes from the log. Its one script,
which draws the figures, is allowed by its digest, and makes text of all that it is given.
"""

from __future__ import annotations

import base64
import hashlib
import json
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
from orchestrator.report.figures import drawn
from orchestrator.report.palette import variables
from orchestrator.report.sections import sections


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
    environment = Environment(
        loader=(templates := PackageLoader("orchestrator.report")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = "".join(templates.get_source(environment, name)[0] for name in ("figures.js", "report.js"))
    html = environment.get_template("report.html").render(
        summary=summary,
        verdict=headline.verdict(summary),
        tiles=headline.tiles(summary),
        sections=sections(data, recipe),
        told=json.dumps(drawn(data), allow_nan=False).replace("<", "\\u003c"),  # nothing there ends the element
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        light=variables(dark=False),
        dark=variables(dark=True),
    )
    return html.encode("utf-8", "replace").decode()  # half of a surrogate pair, which JSON can carry, becomes "?"


def contents_of(parts: Iterable[LogPart], recipe: str) -> Contents:
    """The contents of a log, read from its beginning to its end."""
    database = filled(parts)
    found = verdicts(database)
    return Contents(database, summary_of(database, plain(recipe), found), found)


def plain(recipe: str) -> Mapping[str, Any]:
    """The recipe's values; none where the text is damaged: the log is worth a report without them."""
    try:
        return tomllib.loads(recipe)
    except tomllib.TOMLDecodeError:
        return {}
