"""A run on the terminal: what it does before it trains, then its status; where stderr is no terminal, lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.store import status_text as words

PLAIN_EVERY_S = 5.0
EVENTS_SHOWN = 6
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
STYLES = {"stepping": "green", "running": "green", "finished": "green", "failed": "red", "stopped": "yellow"}


class Trend:
    """A series that goes on, as the means of at most twice POINTS spans of equal length."""

    POINTS, BARS = 20, "▁▂▃▄▅▆▇█"

    def __init__(self) -> None:
        self._means: list[float] = []
        self._each, self._open, self._sum = 1, 0, 0.0  # values in a span; of the last one so far

    def add(self, value: float) -> None:
        self._open, self._sum = self._open + 1, self._sum + value
        if self._open == self._each:
            self._means.append(self._sum / self._each)
            self._open, self._sum = 0, 0.0
        if len(self._means) == 2 * self.POINTS:
            self._means = [(one + two) / 2 for one, two in zip(self._means[::2], self._means[1::2], strict=True)]
            self._each *= 2

    def __str__(self) -> str:
        low, high = min(self._means, default=0.0), max(self._means, default=0.0)
        share = (len(self.BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(self.BARS[round((each - low) * share)] for each in self._means)


class LiveView:
    """Tell it each stage and each new status; nothing else is printed inside its `with` block."""

    def __init__(
        self, hint: str = "", console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hint, self._console, self._clock = hint, console or Console(stderr=True), clock
        self._began = self._said_at = clock()
        self._stages: list[tuple[str, float]] = []  # with when each began
        self._status: Mapping[str, Any] = {}
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._trend, self._trained = Trend(), False
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._picture, refresh_per_second=2, vertical_overflow="crop"
            )

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last picture standing and give the terminal back."""
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

    def update(self, status: Mapping[str, Any]) -> None:
        if not self._trained:
            self.stage(what := words.stage(status))
            self._trained = not what
        news = words.changes(self._status, status)
        self._events += [f"{words.elapsed(status):>8}  {each}" for each in news] if self._status else []
        if (loss := words.training_loss(status)) is not None:
            self._trend.add(loss)
        self._status = status
        if self._live is None and (news or self._clock() - self._said_at >= PLAIN_EVERY_S):
            self._said_at = self._clock()
            self._print(*news, words.headline(status))

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        if not self._trained:
            ends = [*(began for _, began in self._stages[1:]), self._clock()]
            spent = zip(self._stages, ends, strict=False)  # none yet: no stage
            parts += [Text(f"{words.seconds(end - began):>8}  {what}") for (what, began), end in spent]
        if self._status:
            trend = "" if self._console.options.ascii_only else str(self._trend)
            parts.append(picture(self._status, self._console.width, trend, self._events))
        if self._trained:
            parts.append(Text(self._stages[-1][0] or self._hint, style="dim"))
        return Group(*parts)


def picture(status: Mapping[str, Any], width: int, trend: str = "", events: Iterable[str] = ()) -> RenderableType:
    """The status for a terminal of this many columns, with the trend of the training loss, and the last events."""
    bar = Table.grid()  # which ends the bar's line
    bar.add_row(ProgressBar(total=1.0, completed=words.progress(status), width=width))
    lines = [*words.main_lines(status, trend), *words.away_lines(status), *events]
    first, *others = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
    return Group(first, bar, *others, table(status, width))


def table(status: Mapping[str, Any], width: int) -> Table:
    """A row for each learner."""
    shown, columns = (
        Table(box=None, pad_edge=False, header_style="bold"),
        [each for each in COLUMNS if each[3] <= width],
    )
    for title, _, say, _ in columns:
        shown.add_column(title, no_wrap=True, overflow="ellipsis", justify="left" if say is words.text else "right")
    for row in status.get("learners") or []:
        style = STYLES.get(row.get("state"), "yellow")
        cells = ((say(row.get(key)), style if key == "state" else "") for _, key, say, _ in columns)
        shown.add_row(*(Text(*cell) for cell in cells))
    return shown
