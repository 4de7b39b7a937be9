"""The block of text at the end of a run: the report's verdict and key numbers, faults and failed checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.report.headline import STATUS_WORDS, checks_words, tiles
from orchestrator.store.status_text import DASH, seconds, text

WIDTH = 19  # of the labels


def block(summary: Mapping[str, Any], folder: str) -> str:
    """The summary of a run for people, with the place of its files. Unknown values show as a dash."""
    return "\n".join(f"  {label:<{WIDTH}}{words}".rstrip() for label, words in _lines(summary, folder))[2:]


def _lines(summary: Mapping[str, Any], folder: str) -> Iterator[tuple[str, str]]:
    """(label, words) of each line."""
    ended = ", ok" if summary.get("ok") else "" if summary.get("state") == "stopped" else ", NOT OK"
    yield f"{text(summary.get('name'))}: {text(summary.get('state'))}{ended}", ""
    if summary.get("state") != "finished":
        yield "because", text(summary.get("reason"))
    for tile in tiles(summary):
        yield tile.label.lower(), f"{tile.value}, {tile.detail}"
    for fault in summary.get("faults") or []:
        origin = "" if fault.get("injected", True) else " (not injected)"
        yield (
            "",
            f"{text(fault.get('kind'))} {text(fault.get('target'))} at {seconds(fault.get('at_s'))}{origin}: "
            f"detected after {seconds(fault.get('detection_s'))}, recovered after {seconds(fault.get('recovery_s'))}",
        )
    checks = summary.get("checks") or []
    yield "checks", checks_words(checks) if checks else DASH
    for check in checks:
        if check.get("status") not in ("pass", "idle"):
            status = STATUS_WORDS.get(str(check.get("status")), DASH)
            yield "", f"{status} {text(check.get('name'))}: {text(check.get('reason'))}"
    yield "files", folder
