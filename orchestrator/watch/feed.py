"""What pages are told: the newest state of each topic and the newest lines of each run, numbered as they came.

A page that has everything up to a number gets what came later, and one that lost too much gets all that is kept; so
nothing grows with the run, with a page that is slow, or with the time for which it was away.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from orchestrator.eventlog.events import finite

LINES_KEPT = 400  # of a run


class Numbered(NamedTuple):
    """A piece of JSON text, and the number of the message that brought it."""

    number: int
    text: str


class Feed:
    """Belongs to an event loop; `state` and `lines` are called there."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(4)  # a page may know the numbers of an earlier process
        self._number = 0
        self._states: dict[tuple[int, str], Numbered] = {}
        self._lines: dict[int, deque[Numbered]] = {}
        self._dropped: dict[int, int] = {}  # by run, the number of the newest line that is not kept
        self._news = asyncio.Event()  # set, and replaced, when there is any

    def state(self, run: int, topic: str, value: Any) -> None:
        """Replace what is known of a topic; what is the same again is no news."""
        text = _json(value)
        if (old := self._states.get((run, topic))) is None or old.text != text:
            self._states[run, topic] = Numbered(self._next(), text)

    def lines(self, run: int, values: Sequence[Any]) -> None:
        """Append lines."""
        kept = self._lines.setdefault(run, deque())
        kept.extend(Numbered(self._next(), _json(value)) for value in values)
        while len(kept) > LINES_KEPT:
            self._dropped[run] = kept.popleft().number

    def _next(self) -> int:
        self._number += 1
        self._news.set()
        self._news = asyncio.Event()
        return self._number

    def known(self, last: str) -> int:
        """The number up to which a page knows everything, by the last id that it saw."""
        name, _, number = last.partition("-")
        return int(number) if name == self._name and number.isdecimal() and int(number) <= self._number else 0

    def after(self, number: int) -> tuple[int, bytes]:
        """All that came after this number as one event, and the number of the last of it.

        `lost` names the runs of which a page has to drop the lines that it has: some after them are kept no more. So it
        does with all that it has once the ids begin with another name.
        """
        states = [
            f'{{"run":{run},"topic":"{topic}","value":{each.text}}}'
            for (run, topic), each in sorted(self._states.items(), key=lambda item: item[1].number)
            if each.number > number
        ]
        lines = [
            f'"{run}":[{",".join(each.text for each in kept if each.number > number)}]'
            for run, kept in self._lines.items()
            if kept and kept[-1].number > number
        ]
        lost = [run for run, dropped in self._dropped.items() if dropped > number]
        data = f'{{"at":{time.time():.2f},"states":[{",".join(states)}],"lines":{{{",".join(lines)}}},"lost":{lost}}}'
        return self._number, f"id: {self._name}-{self._number}\ndata: {data}\n\n".encode()

    async def later(self, number: int, seconds: float) -> bool:
        """Wait until something came after this number; whether it did in time."""
        try:
            async with asyncio.timeout(seconds):
                while self._number <= number:
                    await self._news.wait()
        except TimeoutError:
            return False
        return True


def _json(value: Any) -> str:
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
