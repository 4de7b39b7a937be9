"""Two learners of two processes each and one of one: a process is killed, stopped or hangs, each rank in turn.

    python benchmarks/island.py [--run-dir runs/island] [--json]

One run of small learners whose batches take 0.25 s, so that the cores are not full, and what a gang's restart costs the
others can be told from what two cores cannot do at once. Strikes learner-island-0: SIGKILL, SIGSTOP, and a step that
never ends, which its peers meet as a collective that hangs; of rank 1 and of rank 0. Measured from the log: from the
strike until the gang's next incarnation steps and until it is in a commit, and the step rate of the others meanwhile
against their rate before. At the end all checks, and a replay.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from benchmarks.standby import contributing, rate  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from learners.training.models.causal_lm import CausalLM  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import LearnerLost  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402

STRUCK = "learner-island-0"
STRIKES = [(how, rank) for how in ("SIGKILL", "SIGSTOP", "hang") for rank in (1, 0)]
TASK = "benchmarks.island:Paced"
QUIET_S = 65.0  # before a strike, in which all step: a learner that lived for a minute is restarted without a wait
USUAL_S = 15.0  # of that, in which the others' rate is measured
PACE_S = float(
    os.environ.get("ISLAND_PACE_S", "0.25")
)  # of a step: its batch is not there sooner, and cores that others use too do not slow it
HANG_S = 6.0  # the recipe's own deadline for a learner that is silent and does not step
SETTINGS = [
    "name=island",
    f"task={TASK}",
    "budget.tokens=1_000_000_000",
    "eval.every=0",
    "model.layers=1",
    "model.width=32",
    "sync.P=8",
    "sync.H=8",
    f"run.hang_s={HANG_S}",
    "sync.quorum=1",
    "pools.0.name=island",
    "pools.0.learners=2",
    "pools.0.processes=2",
    "pools.0.devices=2",
    "pools.0.model_parallel=2",  # two devices share a batch: with more, processes add up in another order than a replay
    'chaos.faults=[{kind="kill", learner="learner-island-0", at_step=1_000_000_000}]',
]


class Paced(CausalLM):
    """The built-in decoder, with batches that take their time."""

    def batch(self, start: int, count: int) -> Any:
        time.sleep(PACE_S)
        return super().batch(start, count)


class Striker:
    """Called with every status: strikes once everyone has stepped for a while."""

    def __init__(self, stop: Path) -> None:
        self.strikes: list[float] = []  # wall times
        self._stop, self._since = stop, 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows, now = status["learners"], time.time()
        (row,) = [each for each in rows if each["name"] == STRUCK] or [None]
        ready = bool(rows) and all(each["state"] == "stepping" for each in rows)
        if not ready or row is None or row["incarnation"] != len(self.strikes) + 1:
            self._since = 0.0
            return
        self._since = self._since or now
        if now - self._since < QUIET_S:
            return
        if len(self.strikes) == len(STRIKES):
            self._stop.write_text(json.dumps({"reason": "every strike has healed"}))
            return
        how, rank = STRIKES[len(self.strikes)]
        self.strikes.append(time.time())
        if how == "hang":
            hang = ray.get_actor("chaos").inject.remote("slow", f"{STRUCK}/{rank}" if rank else STRUCK, 3600.0, 3600.0)
            assert ray.get(hang, timeout=60.0).startswith("injected")
        else:
            pid = row["ranks"][rank - 1]["pid"] if rank else row["pid"]
            os.kill(pid, getattr(signal, how))
        self._since = 0.0


def measure(events: list[Event], strikes: list[float], summary: Mapping[str, Any]) -> dict[str, Any]:
    steps = [(event.at, event.writer) for event in events if isinstance(event.fact, StepFinished)]
    first: dict[int, float] = {}
    for event in events:
        if isinstance(event.fact, StepFinished) and event.writer == STRUCK:
            first.setdefault(event.incarnation, event.at)
    lost = {e.fact.incarnation: e for e in events if isinstance(e.fact, LearnerLost) and e.fact.learner == STRUCK}
    others = {name for _, name in steps} - {STRUCK}
    rows = []
    for number, (at, (how, rank)) in enumerate(zip(strikes, STRIKES, strict=False), start=1):
        back, again = first.get(number + 1), contributing(events, STRUCK, number + 1)
        usual = rate(steps, [(at - USUAL_S, at)], others)
        meanwhile = rate(steps, [(at, back)], others) if back else None
        rows.append(
            {
                "how": how,
                "rank": rank,
                "ended_s": lost[number].at - at if number in lost else None,
                "stepping_s": back and back - at,
                "contributing_s": again and again - at,
                "others_rate": meanwhile / usual if usual and meanwhile else None,
                "cause": lost[number].fact.cause if number in lost else None,
            }
        )
    return {
        "strikes": rows,
        "others_lost": sum(isinstance(e.fact, LearnerLost) and e.fact.learner != STRUCK for e in events),
        "failed_checks": [each["name"] for each in summary["checks"] if each["status"] == "violated"],
    }


def replayed(folder: Path) -> bool:
    environment = os.environ | {"ISLAND_PACE_S": "0"}
    command = [sys.executable, "-m", "orchestrator", "replay", str(folder), "--task", TASK, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0 and json.loads(done.stdout)["bit_equal"] is True


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/island"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    from chaos.actor import start as start_chaos
    from orchestrator.runtime import launch

    draft = load(ROOT / "deploy/recipes/local.toml", SETTINGS)
    alone = {"name": "alone", "learners": 1, "batch_size": 8}
    recipe = resolve(draft.model_copy(update={"pools": (*draft.pools, type(draft.pools[0])(**alone))}))
    store = emptied(options.run_dir)
    store.write_text(RECIPE_FILE, dump(recipe))  # for the replay
    striker = Striker(store.path("stop"))
    summary = launch.run_embedded(recipe, store, start_chaos, striker)
    report = measure(read_run(store.root), striker.strikes, summary)
    report["bit_equal"] = replayed(options.run_dir)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    for row in report["strikes"]:
        print(
            f"{row['how']} of rank {row['rank']}: ended after {row['ended_s']:.1f} s, steps again after "
            f"{row['stepping_s']:.1f}, contributes after {row['contributing_s']:.1f}; the others step at "
            f"{row['others_rate']:.3f} of their rate"
        )
    print(
        f"others lost: {report['others_lost']}; checks that failed: {report['failed_checks'] or 'none'}; "
        f"replayed to the bit: {report['bit_equal']}"
    )


if __name__ == "__main__":
    main()
