"""Work beside an actor's calls: nobody waits for it, so its owner hears of the error that ends it."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

Failed = Callable[[BaseException], object]


class Background:
    """One owner's tasks. `failed` hears of each error that ends one, in the event loop's thread."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self.running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


def thread(name: str, work: Callable[[], object], failed: Failed) -> threading.Thread:
    """Start a daemon thread. `failed` hears, in it, of the error that ends it."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed(error)

    started = threading.Thread(target=run, name=name, daemon=True)
    started.start()
    return started


def tell(error: BaseException) -> None:
    """A rule for `failed`: the rest goes on without; why is in the process's own log."""
    traceback.print_exception(error)


def end_process(error: BaseException) -> None:
    """A rule for `failed`: without this work the process is of no use; the one that started it starts another."""
    tell(error)
    os._exit(1)
