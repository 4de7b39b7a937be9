"""A run on the terminal: what it does before it trains, then its status; where stderr is no terminal, lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.store import status_text as words

PLAIN_EVERY_S, PIPED_WIDTH = 5.0, 160
EVENTS_SHOWN, TREND_MOST, HEIGHTS = 6, 40, "▁▂▃▄▅▆▇█"
# The columns of learners: the key in the status, its words, and the width of a terminal from which it is shown.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str], int], ...] = (
    ("learner", "name", words.text, 0),
    ("state", "state", words.text, 0),
    ("step", "step", words.number, 40),
    ("tokens/s", "tokens_per_s", words.number, 50),
    ("loss", "loss", words.loss, 96),
    ("round", "round_steps", words.number, 104),
    ("lag", "version_lag", words.number, 60),
    ("lease", "lease_age_s", words.seconds, 112),
    ("pid", "pid", words.text, 120),
    ("last fault", "last_fault", words.text, 76),
)


def on_stdout() -> Console:
    """What tables are printed on: as wide as the terminal, or wide enough."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, soft_wrap=not sys.stdout.isatty())


def drawn(values: Sequence[float]) -> str:
    """The course of a series, a character for each value."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return "".join(HEIGHTS[round((len(HEIGHTS) - 1) * (each - low) / (high - low or 1.0))] for each in values)


class LiveView:
    """Tell it each stage and each new status; nothing else is printed inside its `with` block."""

    def __init__(self, hint: str = "", console: Console | None = None, clock: Any = time.monotonic) -> None:
        self._hint, self._console, self._clock, self._said_at = hint, console or Console(stderr=True), clock, clock()
        self._notes: list[str] = []
        self._stages: list[tuple[str, float]] = []  # with when each began
        self._status: Mapping[str, Any] = {}
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._losses: list[float] = []  # every so many of them, of the whole run
        self._every = self._seen = 1
        self._trained = False
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=2)

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last picture standing and give the terminal back."""
        self._hint, self._notes = "", []
        if self._live is not None:
            self._live.stop()

    def stage(self, what: str) -> None:
        """What this process does from now on, until it says something else; empty: nothing of its own."""
        now = self._clock()
        before, began = self._stages[-1] if self._stages else ("", now)
        if what == before:
            return
        self._stages.append((what, now))
        if self._live is not None:
            self._live.refresh()
        elif what:
            self._print(f"{what}{f' ({before} took {words.seconds(now - began)})' if before else ''}")

    def note(self, what: str) -> None:
        """A line that stays: where a page shows the run, or what a tracker said."""
        self._notes.append(what)
        if self._live is None:
            self._print(what)

    def update(self, status: Mapping[str, Any]) -> None:
        if not self._trained:
            self.stage(what := words.stage(status))
            self._trained = not what
        news = words.changes(self._status, status)
        self._events += [f"{words.elapsed(status):>8}  {each}" for each in news] if self._status else []
        if (loss := words.training_loss(status)) is not None:
            self._losses += [loss] * (self._seen % self._every == 0)
            self._seen += 1
        if len(self._losses) == TREND_MOST:
            self._losses, self._every = self._losses[::2], 2 * self._every
        self._status = status
        if self._live is None and (news or self._clock() - self._said_at >= PLAIN_EVERY_S):
            self._said_at = self._clock()
            self._print(*news, *[words.headline(status)] * self._trained)

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> RenderableType:
        """What is shown now. Rich calls it in a thread of its own, too."""
        width, stages, events = self._console.width, tuple(self._stages), tuple(self._events)
        if self._trained:
            trend = "" if self._console.options.ascii_only else drawn(tuple(self._losses))
            return picture(self._status, width, trend, (*events, *self._notes, stages[-1][0] or self._hint))
        ends = [*(began for _, began in stages[1:]), self._clock()]
        spent = (f"{words.seconds(end - began):>8}  {what}" for (what, began), end in zip(stages, ends, strict=False))
        return Group(*_cropped((*spent, *events, *self._notes)), table(self._status, width))


def picture(status: Mapping[str, Any], width: int, trend: str = "", more: Iterable[str] = ()) -> RenderableType:
    """The status for a terminal of this many columns, with the trend of the training loss, and more lines."""
    bar = Table.grid()  # which ends the bar's line
    bar.add_row(ProgressBar(total=1.0, completed=words.progress(status), width=width))
    first, *others = _cropped((*words.main_lines(status, trend), *words.away_lines(status), *more))
    return Group(first, bar, *others, table(status, width))


def _cropped(lines: Iterable[str]) -> Iterator[Text]:
    return (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)


def table(status: Mapping[str, Any], width: int) -> Table:
    """A row for each learner."""
    rows, columns = status.get("learners") or [], [each for each in COLUMNS if each[3] <= width]
    shown = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(rows))
    for title, _, say, _ in columns:
        shown.add_column(title, no_wrap=True, overflow="ellipsis", justify="left" if say is words.text else "right")
    for row in rows:
        style = "green" if row.get("state") == "stepping" else "yellow"
        shown.add_row(*(Text(say(row.get(key)), style if key == "state" else "") for _, key, say, _ in columns))
    return shown
