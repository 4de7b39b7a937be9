"""The syncer dies again and again: what is lost, how long nothing commits, and whether the learners notice.

    python benchmarks/failover.py [--random 30] [--run-dir runs/failover] [--json]

One run, in which the syncer is killed once at each named point of a commit and then at random times; and a control
without kills, in which as much is computed beside the learners at the same times as a new syncer computes while it
comes up. The learners are paced: most of a step is waiting, so that cores are there for all. Then the tape is
replayed. Every number is read from the logs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import FaultInjected  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.config import FaultConfig, Point, Recipe  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402

POINTS = get_args(Point)
FIRST_S = 15.0  # after the first step, all is warm
GAP_S, GAP_S_MAX = 7.0, 11.0  # from one kill to the next
AFTER_S = 15.0  # from the last kill to the end
LIKE_A_SYNCER = "import jax, jax.numpy as n, optax, ray; jax.jit(lambda x: n.sin(x) @ x)(n.ones((99, 99)))"
SLOWDOWN = 8.0


def schedule(kills: int, seed: int) -> list[tuple[float, str | None]]:
    """(seconds after the first step, at which point) of every kill."""
    chance, at, found = random.Random(seed), FIRST_S, []
    for number in range(len(POINTS) + kills):
        found.append((at, POINTS[number] if number < len(POINTS) else None))
        at += chance.uniform(GAP_S, GAP_S_MAX)
    return found


def recipe(name: str, kills: list[tuple[float, str | None]]) -> Recipe:
    overrides = [f"name={json.dumps(name)}", "eval.every=0", "run.idle_s=120.0", "sync.quorum=1"]
    found = resolve(load(ROOT / "deploy" / "recipes" / "demo.toml", overrides))
    faults = tuple(FaultConfig(kind="kill", learner="syncer", at_s=at, point=point) for at, point in kills)
    pool = found.pools[0].model_copy(update={"learners": 2, "slowdown": SLOWDOWN})
    change = {"pools": (pool,), "chaos": found.chaos.model_copy(update={"faults": faults})}
    return found.model_copy(update=change | {"budget": found.budget.model_copy(update={"tokens": 10**9})})


class Conductor:
    """Called with every status: ends the run in time, and in the control computes beside it when it is due."""

    def __init__(self, store: RunStore, kills: list[tuple[float, str | None]], control: bool) -> None:
        self._store, self._left, self._control = store, [at for at, _ in kills] if control else [], control
        self._end = kills[-1][0] + AFTER_S
        self._began: float | None = None
        self._beside: list[subprocess.Popen[bytes]] = []

    def __call__(self, status: Mapping[str, Any]) -> None:
        if self._began is None:
            if status["run"]["syncer_step"] >= 1:
                self._began = time.monotonic()
            return
        now = time.monotonic() - self._began
        while self._left and now >= self._left[0]:
            self._left.pop(0)
            self._beside.append(subprocess.Popen([sys.executable, "-c", LIKE_A_SYNCER]))
        if now >= self._end:
            self._store.write_json("stop", {"reason": "all kills are done"})

    def close(self) -> None:
        for process in self._beside:
            process.wait(60.0)


def run(name: str, folder: Path, kills: list[tuple[float, str | None]], control: bool) -> dict[str, Any]:
    from orchestrator.__main__ import start_chaos
    from orchestrator.runtime.launch import run_embedded

    store, wanted = emptied(folder), recipe(name, [] if control else kills)
    store.write_text(RECIPE_FILE, dump(wanted))
    conductor = Conductor(store, kills, control)
    try:
        return run_embedded(wanted, store, start_chaos, conductor)
    finally:
        conductor.close()


def rate(events: list[Event], kills: list[tuple[float, str | None]]) -> dict[str, float]:
    """Steps a second of each learner, from the first kill to one gap after the last."""
    steps = [event for event in events if isinstance(event.fact, StepFinished)]
    origin = min(event.at - event.fact.seconds - event.fact.waited_s for event in steps)
    begin, end = origin + kills[0][0], origin + kills[-1][0] + GAP_S
    inside: dict[str, int] = {}
    for event in steps:
        if begin <= event.at < end:
            inside[event.writer] = inside.get(event.writer, 0) + 1
    return {name: count / (end - begin) for name, count in sorted(inside.items())}


def longest(events: list[Event]) -> float:
    """The longest step of any learner after its tenth, waiting included, in seconds."""
    steps = [event.fact for event in events if isinstance(event.fact, StepFinished) and event.fact.step > 10]
    return max(fact.seconds + fact.waited_s for fact in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/failover"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    kills = schedule(given.random, given.seed)
    summary = run("failover", given.run_dir / "killed", kills, control=False)
    run("control", given.run_dir / "control", kills, control=True)
    killed, control = read_run(given.run_dir / "killed"), read_run(given.run_dir / "control")
    outages = [row for row in summary["faults"] if row["target"] == "syncer"]
    lasted = sorted(row["recovery_s"] for row in outages if row["recovery_s"] is not None)
    rates, beside = rate(killed, kills), rate(control, kills)
    replayed = subprocess.run(
        [sys.executable, "-m", "orchestrator", "replay", str(given.run_dir / "killed"), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    result = {
        "kills_planned": len(kills),
        "kills_done": sum(isinstance(e.fact, FaultInjected) for e in killed),
        "outages": len(outages),
        "outages_ended": len(lasted),
        "outage_s_p50": statistics.median(lasted),
        "outage_s_max": max(lasted),
        "detected_s_max": max(row["detection_s"] for row in outages if row["detection_s"] is not None),
        "steps_per_s": rates,
        "control_steps_per_s": beside,
        "step_rate": sum(rates.values()) / sum(beside.values()),
        "longest_step_s": longest(killed),
        "control_longest_step_s": longest(control),
        "commits": summary.get("commits"),
        "broken_promises": [each for each in summary["checks"] if each["status"] == "violated"],
        "replay": json.loads(replayed.stdout) if replayed.stdout else replayed.stderr[-2000:],
    }
    if given.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
