"""The rare events of a run, one line each, whatever their kinds: starts, deaths, faults, joins, leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from orchestrator.report.data import Data
from orchestrator.report.tables import Table, table
from orchestrator.store.status_text import seconds

COMMON = frozenset(
    {
        "StepFinished", "Adopted", "Committed", "StepOpened", "StepReopened", "StepPassed", "SpanGranted",
        "SpanReturned", "SyncerStarted", "ReferenceLosses", "Refused", "ReadFailed", "AdoptionRefused",
    }
)  # fmt: skip
FIRST, LAST = 160, 80  # of a longer timeline
TEXT_MOST = 160


def timeline(data: Data) -> Table:
    """By time. What a long one leaves out is counted in its note."""
    rare = [event for event in data.history.events if type(event.fact).__name__ not in COMMON]
    left_out = max(0, len(rare) - FIRST - LAST)
    shown = [*rare[:FIRST], *rare[-LAST:]] if left_out else rare
    rows = (
        (
            seconds(event.at - data.origin),
            event.writer if event.incarnation == 1 else f"{event.writer} #{event.incarnation}",
            type(event.fact).__name__,
            "; ".join(_fields(asdict(event.fact))),
        )
        for event in shown
    )
    note = f"The first {FIRST} and the last {LAST}; {left_out:,} between them are left out." if left_out else ""
    return table("Timeline", "at|writer|event|what it says", rows, (0,), note)


def _fields(fact: dict[str, Any]) -> Iterator[str]:
    for name, value in fact.items():
        if value in (None, "", 0) or isinstance(value, dict):
            continue
        words = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
        yield f"{name.replace('_', ' ')} {words if len(words) <= TEXT_MOST else words[:TEXT_MOST] + '…'}"
