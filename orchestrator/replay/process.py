"""Replays a tape in a fresh process, because JAX reads its settings only at its start.

As a program it reads a pickled Job from standard input and prints progress and the outcome as JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.eventlog.events import finite
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.replay.crew import Crew
from orchestrator.replay.environment import Environment, hints
from orchestrator.replay.incarnation import TapeError
from orchestrator.replay.tape import Tape
from orchestrator.replay.workers import Workers, shares
from orchestrator.store.compile_cache import compilation_cache

if TYPE_CHECKING:
    from orchestrator.replay.replayer import Replayer

SILENT_S = 900.0  # without output for so long, the process is given up: no step or compilation takes longer
NEWS_S = 0.5  # between two
FILE = "parameters.safetensors"

News = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """A replay: its log and how it is computed."""

    tape: Tape
    recipe: Recipe
    environment: Environment | None
    out: Path | None  # the folder for the parameters


def play_apart(job: Job, on_news: Callable[[News], None]) -> dict[str, Any]:
    """Replay in a process of its own; return the outcome.

    Raises InputError for a task that cannot be built, TapeError for a tape that cannot be played, RuntimeError for a
    process that fails or falls silent. Whatever is raised here ends the process.
    """
    with tempfile.TemporaryDirectory(prefix="diloco-replay-") as folder:
        inherited = compilation_cache(Path(folder)) | os.environ
        variables = inherited if job.environment is None else job.environment.variables(inherited)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.replay.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # if it has ended, its output says why
                pickle.dump(job, process.stdin)
            return _outcome(process.stdout, on_news)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _outcome(output: IO[bytes], on_news: Callable[[News], None]) -> dict[str, Any]:
    for line in _lines(output):
        said = json.loads(line)
        if "outcome" in said:
            outcome: dict[str, Any] = said["outcome"]
            return outcome
        if "problems" in said:
            raise InputError([Problem(**problem) for problem in said["problems"]])
        if "tape" in said:
            raise TapeError(said["tape"])
        on_news(said)
    raise RuntimeError("the process that replays has ended without an outcome; what it printed is above")


def _lines(output: IO[bytes]) -> Iterator[bytes]:
    """Complete lines as they arrive. Raises RuntimeError after SILENT_S without output."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if not selector.select(SILENT_S):
                raise RuntimeError(f"the process that replays has said nothing for {SILENT_S:.0f} s")
            if not (got := os.read(output.fileno(), 1 << 16)):
                return
            *whole, rest = (rest + got).split(b"\n")
            yield from whole


# ------------------------------------------------------------------ inside


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    output = sys.stdout

    def tell(news: News) -> None:
        print(json.dumps(finite(dict(news)), allow_nan=False), file=output, flush=True)

    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the news, whatever the task prints
        try:
            tell({"outcome": _play(job, tell)})
        except InputError as error:
            tell({"problems": [asdict(problem) for problem in error.problems]})
        except TapeError as error:
            tell({"tape": str(error)})


def _play(job: Job, tell: Callable[[News], None]) -> dict[str, Any]:
    from learners.training.devices.device import fit

    parts = shares(job.tape, job.recipe, job.environment, sorted(os.sched_getaffinity(0)))
    if job.environment is None:
        fit(None, job.recipe.pools[0].platform)
    elif job.environment.cores and len(parts) == 1:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.environment.cores])
    with contextlib.ExitStack() as closing:
        crew = None
        if len(parts) > 1:
            crew = Workers(parts)  # they start while this process does
            closing.callback(crew.close)
        return _computed(job, tell, crew, len(parts))


def _computed(job: Job, tell: Callable[[News], None], crew: Crew | None, processes: int) -> dict[str, Any]:
    from learners.training.devices.device import use_compile_cache
    from learners.training.evaluator import Evaluator  # JAX starts here
    from orchestrator.recipe.tasks import build_task
    from orchestrator.replay.replayer import Replayer

    use_compile_cache()
    task = build_task(job.recipe)
    progress = _Progress(job, tell, processes)
    replayer = progress.replayer = Replayer(job.tape, job.recipe, task, progress, crew)
    asked = job.recipe.eval
    evaluator = Evaluator(
        task, replayer.fragments, asked.sequences, asked.batch_size, job.recipe.seed, job.recipe.warm_start
    )
    for count, _ in enumerate(replayer.play(), start=1):
        progress.commits = count
    digest = replayer.finish()
    last = max(replayer.parameters.versions)
    out = None if job.out is None else _write(job, replayer)
    return {
        "commits": len(job.tape.commits),
        "syncer_step": last,
        "tokens": job.tape.commits[-1].tokens_committed if job.tape.commits else 0,
        "steps": replayer.tally.steps,
        "computed": dict(replayer.tally.computed),
        "compared": dict(replayer.tally.compared),
        "equal": dict(replayer.tally.equal),
        "difference": replayer.difference and asdict(replayer.difference),
        "bit_equal": replayer.tally.bit_equal,
        "digest": digest,
        "hints": _hints(job),
        "eval_loss": evaluator.loss(replayer.parameters.thetas),
        "out": out,
        "seconds": progress.seconds,
        "processes": processes,
    }


class _Progress:
    """Called with all news: reports progress from time to time, and a difference at once."""

    def __init__(self, job: Job, tell: Callable[[News], None], processes: int) -> None:
        self.replayer: Replayer | None = None
        self.commits = 0
        self._job, self._tell, self._processes = job, tell, processes
        self._begun = self._told = time.monotonic()
        self._differs = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def __call__(self) -> None:
        now = time.monotonic()
        assert self.replayer is not None
        if self.replayer.difference is not None and not self._differs:
            self._differs = True
            self._tell({"difference": asdict(self.replayer.difference)})
        if now - self._told >= NEWS_S:
            self._told = now
            done = {"commits": self.commits, "of": len(self._job.tape.commits), "steps": self.replayer.tally.steps}
            self._tell(done | {"seconds": self.seconds, "processes": self._processes})


def _write(job: Job, replayer: Replayer) -> str:
    from orchestrator.store import export

    assert job.out is not None
    commits = job.tape.commits
    tokens = commits[-1].tokens_committed if commits else 0
    thetas, step = replayer.parameters.thetas, max(replayer.parameters.versions)
    job.out.mkdir(parents=True, exist_ok=True)
    model = export.of_parameters(job.recipe, step, replayer.fragments, thetas, tokens, replayer.left_out)
    export.write(model, job.out / FILE)
    return str(job.out / FILE)


def _hints(job: Job) -> list[str]:
    from importlib.metadata import version

    from learners.training.devices.device import device_taken
    from outer.protocol.manifest import code_digest

    devices = next((device.devices for device in job.tape.devices.values()), 1)
    here = device_taken(devices)
    if job.environment is not None and job.environment.cores:
        here = replace(here, cores=min(here.cores, job.environment.cores))  # of each learner
    found = hints(job.tape, here, {"optax": version("optax"), "code": code_digest()})
    return found + [
        f"pool {pool.name}: where more than two devices share a batch, its {pool.processes} processes added up in "
        "another order than one does"
        for pool in job.recipe.pools
        if pool.processes > 1 and pool.known_devices > 2 * pool.model_parallel
    ]


if __name__ == "__main__":
    main()
