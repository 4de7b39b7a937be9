"""The report's files in a run's store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.accounting.history import History
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.segments import read_run
from orchestrator.store.run_store import RunStore

HTML, MARKDOWN, RECIPE = "report.html", "report.md", "config.toml"


def write(store: RunStore, html: Path | None = None, events: Iterable[Event] | History | None = None) -> list[Path]:
    """Render the run's log as it is now and write both files, beside the log or as `html` and its `.md`.

    `events` is that log where it has been read. Returns the paths. Raises ValueError for a damaged log, OSError
    where nothing can be written.
    """
    from orchestrator.report.render import report  # matplotlib takes a second to import

    rendered = report(read_run(store.root) if events is None else events, store.read_text(RECIPE) or "")
    target = RunStore(store.root if html is None else html.absolute().parent)
    name = HTML if html is None else html.name
    texts = {name: rendered.html, (MARKDOWN if html is None else html.with_suffix(".md").name): rendered.markdown}
    for file, text in texts.items():
        target.write_text(file, text)
    return [target.path(file) for file in texts]


def attempt(store: RunStore, events: Iterable[Event] | History) -> bool:
    """`write`, for a run that must not fail because of its report. `diloco report` then tells why it is missing."""
    try:
        write(store, events=events)
    except Exception:
        return False
    return True
