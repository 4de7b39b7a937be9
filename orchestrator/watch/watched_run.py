"""One run as its folder shows it: the status file twice a second, and the log as it grows.

It needs no cluster, changes nothing in the folder, and reads on after the run has ended.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from orchestrator.eventlog.reader import LogReader
from orchestrator.recipe.problems import InputError
from orchestrator.report.headline import checks_words
from orchestrator.store import status_text as words
from orchestrator.store.readers import object_of, status_of
from orchestrator.store.run_store import RunStore
from orchestrator.watch.history import STORIES_MAX, RunHistory, story

NOW_S = 30.0  # over which `now` counts
LOOKS_MAX = 120  # statuses that are kept for that
SHARE = 0.015  # of this process's time for lanes, and as much for stories


@dataclass(frozen=True)
class Telling:
    """Where a run's news go: a topic's new state, or lines; may be called in any thread."""

    state: Callable[[str, Any], None]
    lines: Callable[[Sequence[Any]], None]


class Paced:
    """Lets work be done only so often that it takes `SHARE` of the time."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, work: Callable[[], Any]) -> Any:
        """The work's result; None while it is too early."""
        if (began := time.monotonic()) < self._next:
            return None
        spent = time.thread_time()
        try:
            return work()
        finally:
            self._next = began + (time.thread_time() - spent) / SHARE


class WatchedRun:
    """`look` and `read_on` block, and may run beside each other, each in one thread at a time."""

    def __init__(self, store: RunStore, telling: Telling) -> None:
        self.store, self._telling = store, telling
        self._folder, self._history = 0, RunHistory()
        self._reader: LogReader | None = None
        self._counts: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=LOOKS_MAX)
        self._lanes, self._stories = Paced(), Paced()
        self._summed_up = False  # whether the stories are those of the summary

    # -------------------------------------------------------------- status

    def look(self) -> None:
        """Tell the status as it is now, and once the run has ended its summary."""
        try:
            status = status_of(self.store)
        except InputError as error:
            self._telling.state("status", {"missing": error.problems[0].message})
            return
        self._telling.state("status", status)
        self._telling.state("now", self._now(status))
        if words.part(status, "run").get("state") not in words.ENDED:
            self._summed_up = False
            self._telling.state("summary", None)
        elif not self._summed_up and (summary := object_of(self.store, "summary.json")):
            self._summed_up = True
            faults = [story(row | row["recovery_phases"], row["at_s"] or 0.0) for row in summary["faults"]]
            self._telling.state("stories", faults[: -STORIES_MAX - 1 : -1])
            broken = [each for each in summary["checks"] if each["status"] not in ("pass", "idle")]
            told = {key: summary.get(key) for key in ("ok", "reason", "goodput_time")} | {"broken": broken}
            self._telling.state("summary", told | {"checks": checks_words(summary["checks"])})

    def _now(self, status: Mapping[str, Any]) -> dict[str, float | None]:
        """Rates over the last NOW_S; participation also over the run. None where counts went back or stood still."""
        learners = [words.part(each, "counts") for each in status.get("learners") or []]
        names = ("tokens_committed", "contributions")
        sums = [sum(each.get(name) or 0 for each in learners) for name in names]
        live = words.part(words.part(status, "syncer"), "counts").get("live") or 0
        at = float(status.get("written_at") or 0.0)
        if not self._counts or at > self._counts[-1][0]:
            self._counts.append((at, (*sums, live)))
        while len(self._counts) > 2 and at - self._counts[0][0] > NOW_S:
            self._counts.popleft()
        before, then = self._counts[0]
        committed, merged, possible = (now - old for now, old in zip((*sums, live), then, strict=True))
        return {
            "tokens_per_s": _share(committed, at - before),
            "participation": _share(merged, possible),
            "participation_so_far": _share(sums[1], live),
        }

    # -------------------------------------------------------------- log

    def read_on(self) -> None:
        """Read what is new in the log, and tell what follows from it."""
        with contextlib.suppress(OSError):
            if (here := self.store.root.stat().st_ino) != self._folder:  # with --fresh, another run has this name
                self._folder, self._history, self._reader = here, RunHistory(), None
        history, damage = self._history, list[str]()
        try:
            self._reader = self._reader or LogReader(self.store.root)
            for part in self._reader.poll():
                self._telling.lines(history.take(part))
                self._telling.state("reading", {"facts": history.rows, "whole": False})
                curves = {"points": history.points, "held_out": history.held_out, "origin": history.origin}
                self._telling.state("curves", curves)
                self._telling.state("rounds", sorted(history.rounds.values(), key=lambda row: -row["syncer_step"]))
            damage = self._reader.findings.damage
        except (OSError, ValueError) as error:
            damage = [f"the log cannot be read now: {error}"]
        try:
            if history.changed and (lanes := self._lanes(history.lanes)) is not None:
                self._telling.state("lanes", lanes)
            if history.untold and not self._summed_up and (stories := self._stories(history.stories)) is not None:
                self._telling.state("stories", stories)
        except duckdb.Error as error:
            damage = [*damage, f"values of the log cannot be computed with: {str(error).splitlines()[0]}"]
        self._telling.state("reading", {"facts": history.rows, "whole": True, "damage": damage[:5]})


def _share(of: float, whole: float) -> float | None:
    return of / whole if whole > 0 and of >= 0 else None
