"""What syncing costs a learner: its step rate with a syncer's traffic over that of its trainer alone, in pairs.

    python benchmarks/loop.py [--step-ms 75 100 500] [--pairs 10] [--run-dir runs/loop] [--json]

A run of one learner, P = H = 24, tau = 2, uploads in bf16: a fragment is read and another adopted at every step. The
learner has one core, everything else the other. A third process on the learner's core, with the same heap, repeats the
same compiled step in a bare loop, one step dispatched ahead. Windows take turns, and what does not belong to one is
frozen (SIGSTOP):

    alone    only the bare loop
    quiet    the learner, while the syncer and the orchestrator are frozen: its shell without traffic
    synced   the learner and all that it talks to

Steps are counted by the times in the log (StepFinished) and in the bare loop. `synced_over_alone` is the median of the
pairs' ratios of rates. Other work on the machine disturbs them, and hardly `on_core_ms`, the processor time on the
step's core per step. Where the time goes is read from /proc for each thread: processor time and time
in the run queue, per step, on the step's core and elsewhere. Rows for 75 ms take about seven minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer import heap  # noqa: E402

SETTLE_S = 1.0  # after a change, before a window: what was held up meanwhile arrives
WINDOW_S = 9.0  # at least, and at least WINDOW_STEPS steps
WINDOW_STEPS = 60
WARM_S = 10.0  # of stepping before the first window
BATCH = 8  # with which a step is timed first
SETTINGS = (
    "name=loop",
    "model.layers=4",
    "sync.P=24",
    "sync.H=24",
    "sync.tau=2",
    "sync.quorum=1",
    "sync.codec=bf16",
    "sync.lease_s=600",
    "pools.0.learners=1",
    "budget.tokens=1000000000",
    "eval.every=1000000",
    "run.hang_s=600",
    "run.syncer_lease_s=600",
)
PHASES = ("alone", "quiet", "synced")
ON_CORE = "on the step's core"


@dataclass
class Window:
    """One stretch of time in which one of the three stepped."""

    phase: str
    begin: float  # Unix seconds
    end: float
    threads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # place -> thread -> seconds in it


def rate(times: Iterable[float], begin: float, end: float) -> float:
    """Steps per second between the first and the last end of a step in [begin, end]. Raises ValueError for too few."""
    inside = sorted(at for at in times if begin <= at <= end)
    if len(inside) < 3:
        raise ValueError(f"{len(inside)} steps in {end - begin:.1f} s: the window is too short, or nothing stepped")
    return (len(inside) - 1) / (inside[-1] - inside[0])


def row(step_ms: float, windows: Sequence[Window], bare: Sequence[float], learner: Sequence[float]) -> dict[str, Any]:
    """The result for one length of a step; `bare` and `learner`: when their steps ended, Unix seconds."""
    rates: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for each in windows:
        rates[each.phase].append(rate(bare if each.phase == "alone" else learner, each.begin, each.end))
    ratios = [synced / alone for synced, alone in zip(rates["synced"], rates["alone"], strict=True)]
    quiet = [synced / still for synced, still in zip(rates["synced"], rates["quiet"], strict=True)]
    threads = {phase: _per_step([each for each in windows if each.phase == phase], rates[phase]) for phase in PHASES}
    on_core = {phase: sum(threads[phase].get(ON_CORE, {}).values()) for phase in PHASES}
    return {
        "step_ms": step_ms,
        "pairs": len(ratios),
        "alone_ms": 1e3 / median(rates["alone"]),
        "quiet_ms": 1e3 / median(rates["quiet"]),
        "synced_ms": 1e3 / median(rates["synced"]),
        "synced_over_alone": median(ratios),
        "synced_over_quiet": median(quiet),
        "ratios": ratios,
        "on_core_ms": on_core,
        "threads_ms_per_step": threads,
    }


def _per_step(windows: Sequence[Window], rates: Sequence[float]) -> dict[str, dict[str, float]]:
    """Milliseconds per step, by place and thread; what is below a hundredth is left out."""
    total: dict[str, Counter[str]] = {}
    for each, steps_s in zip(windows, rates, strict=True):
        for place, threads in each.threads.items():
            for name, seconds in threads.items():
                per_step = 1e3 * seconds / ((each.end - each.begin) * steps_s) / len(windows)
                total.setdefault(place, Counter())[name] += per_step
    return {place: {name: ms for name, ms in threads.most_common() if ms >= 0.01} for place, threads in total.items()}


# ------------------------------------------------------------------ what /proc says


def thread_seconds(pid: int, core: int) -> dict[tuple[str, str, int], float]:
    """(place, thread's name, its id) -> seconds so far.

    Places: on the core (threads that may run only there), waiting for it, elsewhere.
    """
    found: dict[tuple[str, str, int], float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError, ValueError):  # it has ended
            tid = int(task.name)
            name = re.sub(r"[-.:]?\d+$", "", (task / "comm").read_text().strip())
            ran, waited, _ = (task / "schedstat").read_text().split()
            here = os.sched_getaffinity(tid) == {core}
            found[ON_CORE if here else "elsewhere", name, tid] = int(ran) / 1e9
            if here:
                found["in its run queue", name, tid] = int(waited) / 1e9
    return found


def between(
    before: Mapping[tuple[str, str, int], float], after: Mapping[tuple[str, str, int], float]
) -> dict[str, dict[str, float]]:
    """place -> thread's name -> seconds; threads of one name together, one that began in between from its start."""
    spent: dict[str, Counter[str]] = {}
    for (place, name, tid), seconds in after.items():
        spent.setdefault(place, Counter())[name] += seconds - before.get((place, name, tid), 0.0)
    return {place: dict(threads) for place, threads in spent.items()}


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of all processes below this one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                found.append((child, Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()))
    return found


# ------------------------------------------------------------------ the bare loop


def bare(recipe_file: Path, core: int, times: Path | None) -> None:
    """Step until SIGTERM, and then write when steps ended; without `times`: print one step's processor seconds."""
    from learners.training.devices.device import fit

    fit(core, "cpu")
    from learners.training.trainer import Trainer
    from learners.training.tree import deal
    from orchestrator.recipe.tasks import build_task
    from orchestrator.recipe.toml_text import load

    recipe = load(recipe_file)
    task, batch = build_task(recipe), recipe.pools[0].batch_size
    trainer = Trainer(task, deal(task, recipe.sync), recipe.inner, recipe.seed)
    trainer.warm_up(batch)
    if times is None:
        for count in range(15):
            if count == 5:
                began = time.process_time()
            trainer.step(count * batch, batch, 0.5)
        print(json.dumps((time.process_time() - began) / 10))
        return
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
    print("ready", flush=True)
    ended, start, flying = [], 0, trainer.dispatch(0, batch, 0.5)
    while not over:
        start += batch
        trainer.expect([start], batch)
        following = trainer.dispatch(start, batch, 0.5)
        flying.result()
        ended.append(time.time())
        flying = following
    times.write_text(json.dumps(ended))


def _bare(recipe_file: Path, core: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--bare", str(recipe_file), str(core), *more]
    # As a learner's process starts: later, threads have heaps that it would go on with.
    alike = os.environ | heap.ONE_HEAP | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alike)


# ------------------------------------------------------------------ the run


class Turns:
    """Called with every status; once the learner has stepped for a while, lets the three step in turns."""

    def __init__(self, store: RunStore, plain: subprocess.Popen[str], core: int, pairs: int, seconds: float) -> None:
        self.windows: list[Window] = []
        self._store = store
        self._plain, self._core, self._pairs, self._seconds = plain, core, pairs, seconds
        self._since: float | None = None

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows = status["learners"]
        if not rows or rows[0]["state"] != "stepping" or len(self.windows) == 3 * self._pairs:
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() < self._since + WARM_S:
            return
        control = [pid for pid, command in descendants(os.getpid()) if re.match(r"ray::(Syncer|Orchestrator)", command)]
        assert len(control) == 2, "a syncer and an orchestrator"
        for number in range(self._pairs):
            turns = PHASES if number % 2 else tuple(reversed(PHASES))
            for phase in turns:
                self.windows.append(self._window(phase, rows[0]["pid"], control))
        self._store.write_json("stop", {"reason": "all windows are measured"})

    def _window(self, phase: str, learner: int, control: list[int]) -> Window:
        frozen = {"alone": [learner, *control], "quiet": [self._plain.pid, *control], "synced": [self._plain.pid]}
        with _stopped(frozen[phase]):
            time.sleep(SETTLE_S)
            stepping = self._plain.pid if phase == "alone" else learner
            before, begin = thread_seconds(stepping, self._core), time.time()
            time.sleep(self._seconds)
            end, after = time.time(), thread_seconds(stepping, self._core)
        return Window(phase, begin, end, between(before, after))


@contextlib.contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def measure(step_ms: float, pairs: int, folder: Path, core: int) -> dict[str, Any]:
    from orchestrator.runtime import launch

    recipe_file = folder.parent / f"{folder.name}.toml"
    timed = float(_bare(_written(_recipe(BATCH), recipe_file), core).communicate()[0])
    recipe = _recipe(max(1, round(BATCH * step_ms / 1e3 / timed)))
    times = folder.parent / f"{folder.name}.times.json"
    plain = _bare(_written(recipe, recipe_file), core, str(times))
    try:
        assert plain.stdout is not None and plain.stdout.readline() == "ready\n", "the bare loop did not start"
        store = emptied(folder)
        turns = Turns(store, plain, core, pairs, max(WINDOW_S, WINDOW_STEPS * step_ms / 1e3))
        os.kill(plain.pid, signal.SIGSTOP)
        launch.run_embedded(recipe, store, None, turns)
        os.kill(plain.pid, signal.SIGCONT)
        plain.terminate()
        plain.wait()
    finally:
        plain.kill()
    if len(turns.windows) < len(PHASES) * pairs:
        raise SystemExit(f"error: the run ended before its last window; see {folder}")
    learner = [event.at for event in read_run(store.root) if isinstance(event.fact, StepFinished)]
    found = row(step_ms, turns.windows, json.loads(times.read_text()), learner)
    return found | {"batch_size": recipe.pools[0].batch_size, "load": os.getloadavg()[0]}


def _recipe(batch: int) -> Recipe:
    return resolve(load(ROOT / "deploy/recipes/local.toml", [*SETTINGS, f"pools.0.batch_size={batch}"]))


def _written(recipe: Recipe, file: Path) -> Path:
    from orchestrator.recipe.toml_text import dump

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump(recipe))
    return file


def say(found: Mapping[str, Any]) -> None:
    print(
        f"step {found['step_ms']:g} ms (batch {found['batch_size']}): alone {found['alone_ms']:.1f} ms, quiet "
        f"{found['quiet_ms']:.1f} ms, synced {found['synced_ms']:.1f} ms; synced over alone "
        f"{found['synced_over_alone']:.3f} ({min(found['ratios']):.3f} to {max(found['ratios']):.3f}, "
        f"mean {fmean(found['ratios']):.3f}), over quiet {found['synced_over_quiet']:.3f}"
    )
    for phase, places in found["threads_ms_per_step"].items():
        for place, threads in places.items():
            shown = ", ".join(f"{name} {ms:.2f}" for name, ms in list(threads.items())[:6])
            print(f"  {phase}, {place}: {sum(threads.values()):.2f} ms a step: {shown}")


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        bare(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--step-ms", type=float, nargs="+", default=[75.0, 100.0, 500.0])
    arguments.add_argument("--pairs", type=int, default=10)
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/loop"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("error: needs two cores: one for the learner, one for everything else")
    # A learner is pinned to the first core where one core is all that the run has, so the run gets the others.
    assert cores[0] == 0, "the first core is the learner's"
    os.sched_setaffinity(0, set(cores[1:2]))
    rows = [measure(step_ms, options.pairs, options.run_dir, cores[0]) for step_ms in options.step_ms]
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        for found in rows:
            say(found)


if __name__ == "__main__":
    main()
