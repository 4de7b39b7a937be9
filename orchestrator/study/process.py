"""Trains seeds of a study in processes of their own, because JAX reads its settings only at its start.

As a program it reads a pickled Job from standard input and prints news and the seed's row as JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.eventlog.events import finite
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.compile_cache import compilation_cache

News = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """One seed."""

    recipe: Recipe
    folder: Path
    stacked: bool
    platform: str  # cpu, gpu or tpu
    cores: tuple[int, ...]  # that it may use; () for all


def train(jobs: Sequence[Job], at_once: int, on_news: Callable[[Job, News], None]) -> list[dict[str, Any]]:
    """The rows of all jobs; so many train at once. `on_news` gets a job, and its step and newest held-out loss.

    Raises InputError for a task that cannot be built, RuntimeError for a process that fails. Whatever is raised ends
    all processes; what they have saved stays.
    """
    seeds = _Processes(on_news)
    with ThreadPoolExecutor(at_once) as pool:
        rows = [pool.submit(seeds.train, job) for job in jobs]
        try:
            wait(rows, return_when=FIRST_EXCEPTION)
            for row in rows:
                if row.done():
                    row.result()
        except BaseException:
            for row in rows:
                row.cancel()
            raise
        finally:
            seeds.kill()
        return [row.result() for row in rows]


class _Processes:
    def __init__(self, on_news: Callable[[Job, News], None]) -> None:
        self._on_news = on_news
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def kill(self) -> None:
        with self._lock:
            self._over = True
            for process in self._running:
                process.kill()

    def train(self, job: Job) -> dict[str, Any]:
        """One seed, in a process that ends with this call."""
        path = os.pathsep.join(filter(None, sys.path))
        with self._lock:
            if self._over:
                raise RuntimeError("the study has ended")
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "orchestrator.study.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=compilation_cache(job.folder.parent) | os.environ | {"PYTHONPATH": path},
                start_new_session=True,  # an interrupt is for the command, which ends its processes
            )
            self._running.add(process)
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # if it has ended, its output says why
                pickle.dump(job, process.stdin)
            for line in process.stdout:
                said = json.loads(line)
                if "row" in said:
                    row: dict[str, Any] = said["row"]
                    return row
                if "problems" in said:
                    raise InputError([Problem(**problem) for problem in said["problems"]])
                self._on_news(job, said)
            message = f"the process of seed {job.recipe.seed} has ended; what it printed is above"
            raise RuntimeError(f"{message}. The same command continues")
        finally:
            with self._lock:
                self._running.discard(process)
            process.kill()
            process.wait()
            process.stdout.close()


# ------------------------------------------------------------------ inside


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    output = sys.stdout

    def tell(news: News) -> None:
        print(json.dumps(finite(dict(news)), allow_nan=False), file=output, flush=True)

    from learners.training.devices.device import fit, use_compile_cache

    if job.cores:
        os.sched_setaffinity(0, job.cores)
    fit(None, job.platform)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the news, whatever the task prints
        from orchestrator.study.seed_run import SeedRun  # JAX starts here

        use_compile_cache()
        try:
            tell({"row": SeedRun(job.recipe, job.folder, job.stacked).train(tell)})
        except InputError as error:
            tell({"problems": [asdict(problem) for problem in error.problems]})


if __name__ == "__main__":
    main()
