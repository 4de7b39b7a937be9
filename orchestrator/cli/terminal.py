"""The live view of a run: a table that redraws on a terminal, plain lines anywhere else.

Shows the words of orchestrator/store/status_text.py; decides what fits the width, and how often to print.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.store import status_text as words

PLAIN_EVERY_S = 5.0
# Columns in the order in which a narrow terminal keeps them, with the width from which each is shown.
SHOWN_FROM = {
    "learner": 0,
    "state": 0,
    "step": 40,
    "tokens/s": 50,
    "lag": 60,
    "last fault": 76,
    "loss": 96,
    "round": 104,
    "lease": 112,
}
STYLES = {"stepping": "green", "running": "green", "finished": "green", "failed": "red", "stopped": "yellow"}


class LiveView:
    """Update it with each new status; close it before printing anything else.

    With `json_mode` it prints plain lines, on a console that should then be stderr.
    """

    def __init__(self, console: Console, json_mode: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live: Live | None = None
        self._said_at = float("-inf")
        self._last: Mapping[str, Any] = {}
        if console.is_terminal and not console.is_dumb_terminal and not json_mode:
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()

    def update(self, status: Mapping[str, Any]) -> None:
        if self._live is not None:
            self._live.update(picture(status, self._console.width), refresh=True)
        else:
            self._print_news(status)
        self._last = status

    def close(self) -> None:
        """Leave the last picture standing and give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def _print_news(self, status: Mapping[str, Any]) -> None:
        news = words.states(status) != words.states(self._last)
        if not news and self._clock() - self._said_at < PLAIN_EVERY_S:
            return
        self._said_at = self._clock()
        for line in [*words.changes(self._last, status), words.headline(status)]:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def picture(status: Mapping[str, Any], width: int) -> RenderableType:
    """The whole status for a terminal of this many columns."""
    lines = [words.headline(status), *words.aux_line(status), words.syncer_line(status)]
    lines += [*words.shard_lines(status), *words.conditions(status)]
    return Group(*(Text(line) for line in lines), _bar(status, width), _table(status, width))


def _bar(status: Mapping[str, Any], width: int) -> RenderableType:
    left = words.seconds(words.part(status, "run").get("eta_s"))
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=1.0, completed=words.progress(status), width=max(5, min(60, width - 30))),
        Text(f"{100 * words.progress(status):.0f} %, {left} left", no_wrap=True),
    )
    return line


def _table(status: Mapping[str, Any], width: int) -> Table:
    shown = [column for column in words.COLUMNS if SHOWN_FROM.get(column, 10**6) <= width]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column, no_wrap=True, overflow="ellipsis", justify="left" if column in _LEFT else "right")
    for learner in status.get("learners") or []:
        cells = dict(zip(words.COLUMNS, words.row(learner), strict=True))
        style = STYLES.get(cells["state"], "yellow")
        table.add_row(*(Text(cells[column], style=style if column == "state" else "") for column in shown))
    return table


_LEFT = ("learner", "state", "last fault")
