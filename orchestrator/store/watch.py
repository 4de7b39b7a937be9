"""Watches a run through its store alone, without a cluster, address or token.

It cannot see the orchestrator's process, only how long ago the last status was written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.recipe.problems import InputError
from orchestrator.store import status_text as words
from orchestrator.store.readers import object_of, status_if_any, status_of
from orchestrator.store.run_store import RunStore

POLL_S = 0.5
LOST_S = 300.0  # without a status; they come twice a second, also while the run is summed up
LOOK_S = 15.0  # before an old or unreadable status counts as the last one (hosts' clocks differ)
SILENT_S = 15.0  # the age from which a status may be that of a dead run
NEWS_S, NEWS_POLL_S = 4.0, 0.2  # for another status, which a living run writes twice a second
SUMMARY_S = 20.0  # from the final status to the summary, which is written before it: for shared file systems


class RunLost(RuntimeError):
    """The orchestrator writes no status any more."""


def age_s(status: Mapping[str, Any]) -> float:
    """Return how long ago, by this host's clock, a status was written."""
    return time.time() - (status.get("written_at") or 0.0)


def has_news(store: RunStore, status: Mapping[str, Any]) -> bool:
    """Return whether a status other than this one appears. An old one may only mean that the hosts' clocks differ."""
    give_up_at = time.monotonic() + NEWS_S
    while time.monotonic() < give_up_at:
        if (status_if_any(store) or status).get("written_at") != status.get("written_at"):
            return True
        time.sleep(NEWS_POLL_S)
    return False


def follow(
    store: RunStore,
    on_status: Callable[[Mapping[str, Any]], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    wall: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Pass every status on until the run ends; return its summary. Raises RunLost when no more statuses come."""
    began = news_at = read_at = clock()
    written_at: float | None = None
    age_s = 0.0  # of the first status when it was read
    while True:
        try:
            status, read_at = status_of(store), clock()
        except InputError as error:
            if clock() - read_at > LOOK_S:
                said = error.problems[0].message if store.exists else "the folder has been removed"
                raise RunLost(f"{store.root}: {said}") from error
            pause(POLL_S)
            continue
        if status.get("written_at") != written_at:
            age_s = max(0.0, wall() - status["written_at"]) if written_at is None else 0.0
            written_at, news_at = status["written_at"], clock()
            on_status(status)
        if words.part(status, "run").get("state") in words.ENDED:
            return _summary(store, clock, pause)
        silent_s = age_s + clock() - news_at
        if silent_s > LOST_S and clock() - began > LOOK_S:
            raise RunLost(
                f"no status for {words.seconds(silent_s)}: the orchestrator's process has ended, or {store.root} is "
                f"not the folder that it writes to; what the run said so far is there: diloco check {store.root}"
            )
        pause(POLL_S)


def _summary(store: RunStore, clock: Callable[[], float], pause: Callable[[float], None]) -> dict[str, Any]:
    deadline = clock() + SUMMARY_S
    while clock() < deadline:
        if summary := object_of(store, "summary.json"):
            return dict(summary)
        pause(POLL_S)
    raise RunLost(f"the run has ended but left no summary in {store.root}; see diloco check {store.root}")
