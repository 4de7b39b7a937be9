"""The process of a command: how it is asked to end, and what it is told where it runs inside a Ray job.

Does not import Ray: Ray sets one variable for a job's entrypoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.recipe.problems import Problem

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # its content: {"runtime_env", "metadata"}


def config(environment: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """The job's configuration; None outside of a job."""
    text = environment.get(JOB_CONFIG)
    return None if text is None else dict(json.loads(text))


def submission_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """The job's id as its submitter knows it; None outside of a job."""
    found = config(environment)
    return None if found is None else (found.get("metadata") or {}).get("job_submission_id")


SHARED = "give a folder that all nodes share, by its absolute path: --set run.folder=/shared/runs/NAME"


def unshared(run_folder: str | None) -> list[Problem]:
    """Why a job may not keep its run in the recipe's run.folder, whatever the job's own folder is."""
    if run_folder is None:
        return [Problem("run.folder", None, "is required: a Ray job's own folder is removed with it", SHARED)]
    if "://" not in run_folder and not Path(run_folder).is_absolute():
        return [
            Problem("run.folder", run_folder, "is relative to a Ray job's folder, which is removed with it", SHARED)
        ]
    return []


def misplaced(run_folder: str | None, root: Path, folder: Path) -> list[Problem]:
    """Why this process may not keep its run in that place, `root`: in `folder`, a job's own, it would be removed."""
    if (found := config()) is None:
        return []
    if not unshared(run_folder) and found.get("runtime_env", {}).get("working_dir") and root.is_relative_to(folder):
        return [Problem("run.folder", run_folder, "is inside a Ray job's folder, which is removed with it", SHARED)]
    return unshared(run_folder)


class Terminated(KeyboardInterrupt):
    """SIGTERM: this process was asked to end, and its run with it."""


def terminate(number: int, frame: Any) -> None:
    raise Terminated


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Have interruptions wait until this block has ended. For the main thread; in another there are none."""
    came, main = list[int](), threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {each: signal.signal(each, lambda number, frame: came.append(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise Terminated


def run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run this until it ends, or a signal cancels it: between its tasks' steps, not within one. The second one ends it
    at once.
    """
    import asyncio  # which takes its time to import

    async def cancelled_by_signals() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        heard = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is not signal.SIG_IGN]

        def end() -> None:
            for number in heard:
                loop.remove_signal_handler(number)
            task.cancel()

        for number in heard:
            loop.add_signal_handler(number, end)
        await work

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(cancelled_by_signals())


def prepare_process() -> None:
    """Let SIGTERM and the end of the terminal interrupt, so that what was begun is cleaned up; open closed streams."""
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup's
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
