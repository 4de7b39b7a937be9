"""Runs all checks over one log, given as events or as a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.accounting.history import History, indexed
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers import (
    books,
    bounded,
    closed,
    durable,
    fencing,
    isolation,
    liveness,
    log,
    merges,
    replayable,
    time_accounted,
    versions,
)
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.segments import read_run, read_segment

CHECKERS: tuple[Callable[[History], list[Verdict]], ...] = (
    log.check,
    durable.check,
    versions.check,
    books.check,
    merges.check,
    fencing.check,
    liveness.check,
    isolation.check,
    merges.check_finite,
    replayable.check,
    bounded.check,
    time_accounted.check,
    closed.check,
)
READABLE = "the log is there, and every line of it is an event"


def check(events: Iterable[Event] | History) -> list[Verdict]:
    """All verdicts on a log, in a fixed order. Of an empty log every verdict is `unknown`."""
    history = indexed(events)
    return [verdict for checker in CHECKERS for verdict in checker(history)]


def check_run(run_dir: Path) -> list[Verdict]:
    """All verdicts on a run's folder; first, whether its log can be read and is unaltered.

    The segments are read too, unmerged, so that two versions of one fact show. A damaged log is `violated`, a missing
    one `unknown`; all other verdicts are then `unknown`.
    """
    try:
        merged = read_run(run_dir)
        said = [*merged, *_in_segments(run_dir)]
        intact = log.check_seal(run_dir)
    except (ValueError, OSError) as error:
        unread = Verdict("log.readable", READABLE, "violated", str(error))
        return [unread, *log.UNKNOWN, log.check_recipe(run_dir, []), *check([])]
    found = (
        Verdict("log.readable", READABLE, "pass", f"{len(merged)} events read")
        if said
        else Verdict("log.readable", READABLE, "unknown", f"no events in {run_dir}")
    )
    return [found, *intact, log.check_recipe(run_dir, said), *check(said)]


def _in_segments(run_dir: Path) -> Iterator[Event]:
    """The sealed events in the segments."""
    within = log.sealed_facts(run_dir)
    for path in sorted((run_dir / "events").glob("*.jsonl")):
        for event in read_segment(path):
            if within is None or event.sequence < within.get((event.writer, event.incarnation), 0):
                yield event
