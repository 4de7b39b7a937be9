"""All checkers over one log, given as events or as a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.checkers import books, fencing, finite, log, merges, versions
from orchestrator.checkers.history import History, Verdict, indexed
from orchestrator.events import Event, read_run, read_segment

CHECKERS: tuple[Callable[[History], list[Verdict]], ...] = (
    log.check,
    books.check,
    versions.check,
    merges.check,
    fencing.check,
    finite.check,
)
READABLE = "the log is there, and every line of it is an event"


def check(events: Iterable[Event] | History) -> list[Verdict]:
    """Every verdict on a log, in a fixed order. An empty log gives `unknown` throughout."""
    history = indexed(events)
    return [verdict for checker in CHECKERS for verdict in checker(history)]


def check_run(run_dir: Path) -> list[Verdict]:
    """The same for a run's folder, and first whether its log can be read.

    Beside the merged log the segments are read again, unmerged, so that two versions of one fact are seen.
    A damaged log is `violated` and a missing one `unknown`; everything else about them is then `unknown`.
    """
    try:
        merged = read_run(run_dir)
        segments = sorted((run_dir / "events").glob("*.jsonl"))
        said = [*merged, *(event for path in segments for event in read_segment(path))]
    except (ValueError, OSError) as error:
        return [Verdict("log.readable", READABLE, "violated", str(error)), *check([])]
    if not said:
        return [Verdict("log.readable", READABLE, "unknown", f"no events in {run_dir}"), *check([])]
    return [Verdict("log.readable", READABLE, "pass", f"{len(merged)} events read"), *check(said)]
