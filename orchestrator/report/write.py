"""The report's file in a run's store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.eventlog.reader import intact
from orchestrator.store.run_store import RunStore

if TYPE_CHECKING:
    from orchestrator.report.render import Contents

HTML, SUMMARY, RECIPE = "report.html", "summary.json", "config.toml"
STORE_AWAY = 75  # the exit status of `python -m orchestrator.report` that could not read or write: to be tried again


def write(store: RunStore, html: Path | None = None, contents: Contents | None = None) -> Path:
    """Render a run's report and write it, beside the log or as `html`.

    `contents`: of the run's log, where it has been read; else the log is read as it is now. Returns the path. Raises
    ValueError for a damaged log, OSError where nothing can be written.
    """
    from orchestrator.report.render import contents_of, report  # which take their time to import

    recipe = store.read_text(RECIPE) or ""
    rendered = report(contents_of(intact(store.root), recipe) if contents is None else contents, recipe)
    target = RunStore(store.root if html is None else html.absolute().parent)
    name = HTML if html is None else html.name
    target.write_text(name, rendered)
    return target.path(name)
