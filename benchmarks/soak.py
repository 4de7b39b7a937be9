"""A run with deaths, for hours: does any of its processes grow?

    python benchmarks/soak.py [--minutes 60] [--learners 4] [--kill-s 120] [--syncer-kill-s 600] [--json]

A learner is killed every `--kill-s` seconds, in turn, and the syncer every `--syncer-kill-s`. Resident and unique
memory, descriptors and threads of every process of the run, Ray's too, are sampled every five seconds. The slope of
each is that of a straight line through the samples of all processes of one role, each with an intercept of its own and
without its first minute; neighbouring samples are averaged first, so that the 95 % interval is not too narrow. At the
end the log is checked, and the run is computed again from it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from orchestrator.accounting.verdicts import NOT_FAILED  # noqa: E402
from orchestrator.recipe.config import FaultConfig, Recipe  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402

SAMPLE_S = 5.0
WARM_S = 60.0  # of each process, left out
BIN_S = 30.0  # samples within are averaged
FIRST_S = 30.0  # after the first step: nothing is killed before
SLOWDOWN = 8.0
FIGURES = ("rss", "uss", "descriptors", "threads")
NORMAL_95 = 1.96


class Sample(NamedTuple):
    """Of one process; bytes for memory."""

    at: float
    rss: float
    uss: float
    descriptors: float
    threads: float


class Slope(NamedTuple):
    """Per hour, with half of the 95 % interval; None where there is too little to tell."""

    per_hour: float
    within: float | None
    mean: float
    samples: int


def recipe(learners: int, minutes: float, kill_s: float, syncer_kill_s: float) -> Recipe:
    overrides = ['name="soak"', "eval.every=2000", "eval.ngrams=false", "sync.quorum=1"]
    found = resolve(load(ROOT / "deploy/recipes/demo.toml", overrides))
    last_s = 60.0 * minutes - FIRST_S
    faults = [
        FaultConfig(kind="kill", learner=f"learner-local-{number % learners}", at_s=FIRST_S + number * kill_s)
        for number in range(int((last_s - FIRST_S) // kill_s) + 1)
    ]
    times = [number * syncer_kill_s for number in range(1, int(last_s // syncer_kill_s) + 1)]
    faults += [FaultConfig(kind="kill", learner="syncer", at_s=at + kill_s / 2.0) for at in times]
    pool = found.pools[0].model_copy(update={"learners": learners, "slowdown": SLOWDOWN})
    change = {"pools": (pool,), "chaos": found.chaos.model_copy(update={"faults": tuple(faults)})}
    return found.model_copy(update=change | {"budget": found.budget.model_copy(update={"tokens": 10**10})})


class Watch:
    """Called with every status; samples the processes in a thread, and ends the run in time."""

    def __init__(self, store: RunStore, minutes: float) -> None:
        self.samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)  # by role and pid
        self._store, self._lasts_s = store, 60.0 * minutes
        self._end = float("inf")  # monotonic
        self._roles: dict[int, str] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __call__(self, status: Mapping[str, Any]) -> None:
        roles = {row["pid"]: "learner" for row in status["learners"] if row.get("pid")}
        for name in ("syncer", "orchestrator"):
            if pid := (status.get(name) or {}).get("pid"):
                roles[pid] = name
        self._roles |= roles
        if status["run"]["syncer_step"] >= 1:
            self._end = min(self._end, time.monotonic() + self._lasts_s)
        if time.monotonic() >= self._end:
            self._store.write_json("stop", {"reason": "the time is over"})

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    with process.oneshot():
                        role = self._roles.get(process.pid) or title(process)
                        memory = process.memory_full_info()
                        sample = Sample(time.time(), memory.rss, memory.uss, process.num_fds(), process.num_threads())
                except psutil.Error:
                    continue  # it has ended
                self.samples[role, process.pid].append(sample)


def title(process: psutil.Process) -> str:
    """What a process without a role in the run calls itself."""
    command = process.cmdline() or [process.name()]
    return Path(command[0].split(" ")[0]).name.split(".")[0] or process.name()


def binned(samples: Sequence[Sample], figure: str) -> list[tuple[float, float]]:
    """(time, mean) of each bin, without the first minutes of the process."""
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        if sample.at >= samples[0].at + WARM_S:
            bins[int(sample.at // BIN_S)].append((sample.at, float(getattr(sample, figure))))
    return [
        (sum(at for at, _ in each) / len(each), sum(value for _, value in each) / len(each)) for each in bins.values()
    ]


def slope(series: Sequence[Sequence[tuple[float, float]]]) -> Slope | None:
    """Of a line through several series, each with an intercept of its own; times in seconds."""
    series = [each for each in series if len(each) > 1]
    if not series:
        return None
    centred = []
    for each in series:
        mean_at, mean = (sum(column) / len(each) for column in zip(*each, strict=True))
        centred += [(at - mean_at, value - mean) for at, value in each]
    spread = sum(at * at for at, _ in centred)
    found = sum(at * value for at, value in centred) / spread
    free = len(centred) - len(series) - 1
    rest = sum((value - found * at) ** 2 for at, value in centred)
    within = NORMAL_95 * math.sqrt(rest / free / spread) if free > 0 else None
    values = [value for each in series for _, value in each]
    return Slope(found * 3600.0, within and within * 3600.0, sum(values) / len(values), len(values))


def slopes(samples: Mapping[tuple[str, int], Sequence[Sample]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By role and figure."""
    roles: dict[str, list[Sequence[Sample]]] = defaultdict(list)
    for (role, _), taken in samples.items():
        roles[role].append(taken)
    found = {
        role: {figure: slope([binned(each, figure) for each in taken]) for figure in FIGURES}
        for role, taken in sorted(roles.items())
    }
    return {
        role: {figure: line._asdict() for figure, line in lines.items() if line is not None}
        for role, lines in found.items()
        if any(lines.values())
    }


def diloco(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {"code": done.returncode, "said": (done.stdout or done.stderr)[-600:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--kill-s", type=float, default=120.0)
    parser.add_argument("--syncer-kill-s", type=float, default=600.0)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/soak"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    from orchestrator.__main__ import start_chaos
    from orchestrator.runtime.launch import run_embedded

    store = emptied(given.run_dir)
    wanted = recipe(given.learners, given.minutes, given.kill_s, given.syncer_kill_s)
    store.write_text(RECIPE_FILE, dump(wanted))
    watch = Watch(store, given.minutes)
    try:
        summary = run_embedded(wanted, store, start_chaos, watch)
    finally:
        watch.close()
    result = {
        "minutes": given.minutes,
        "kills": len(wanted.chaos.faults),
        "faults": len(summary["faults"]),
        "tokens": summary["tokens"],
        "checks_failed": [each["name"] for each in summary["checks"] if each["status"] not in NOT_FAILED],
        "slopes_per_hour": slopes(watch.samples),
        "check": diloco("check", str(given.run_dir)),
        "replay": diloco("replay", str(given.run_dir), "--json"),
    }
    if given.json:
        print(json.dumps(result))
        return
    lines = result.pop("slopes_per_hour")
    for name, value in result.items():
        print(f"{name:10} {value}")
    for role, figures in lines.items():
        for figure, line in figures.items():
            unit = 2.0**20 if figure in ("rss", "uss") else 1.0
            within = "" if line["within"] is None else f" +- {line['within'] / unit:.2f}"
            print(f"{role:24} {figure:12} {line['mean'] / unit:10.1f}  {line['per_hour'] / unit:+.2f}{within} an hour")


if __name__ == "__main__":
    main()
