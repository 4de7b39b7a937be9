"""Ends a data-parallel run that Ray Train would restart for ever: an error that comes again without progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ray.train import UserCallback

from orchestrator.runtime.data_parallel.history import FAULTS_FILE, STEPS_FILE, lines
from orchestrator.store.run_store import RunStore

RESTARTS = 3  # in a row without a new step, beside those that the plan's faults cause
TOLD_LINES = 12  # of the newest traceback


class NoProgress(RuntimeError):
    """The same steps fail again and again."""


class RestartCap(UserCallback):  # type: ignore[misc]
    """Called by Ray Train's controller, before it restarts failed workers."""

    def __init__(self, store: RunStore) -> None:
        self._root, self._read = str(store.root), 0
        self._most, self._failures, self._struck = 0, 0, 0  # failures: since the furthest step, not by faults

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:
        """Raises NoProgress, with which the run fails, if it must not be restarted again."""
        store = RunStore(self._root)
        struck = sum(1 for line in lines(store.path(FAULTS_FILE)) if line.get("injected"))
        if self._advanced(store):
            self._failures = 0
        if struck == self._struck:
            self._failures += 1
        self._struck = struck
        if self._failures > RESTARTS:
            rank, error = next(iter(sorted(worker_exceptions.items())))
            told = "\n".join(str(error).strip().splitlines()[-TOLD_LINES:])
            again = f"the workers failed {self._failures} times without a new step after step {self._most}"
            raise NoProgress(f"{again}; rank {rank}, the last time:\n{type(error).__name__}: {told}")

    def _advanced(self, store: RunStore) -> bool:
        """Whether the log, read from where it was left, has a step further than all before."""
        path, before = store.path(STEPS_FILE), self._most
        if not path.exists():
            return False
        with open(path, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue  # cut by a kill
            if told.get("kind") == "step":
                self._most = max(self._most, int(told["step"]))
        return self._most > before
