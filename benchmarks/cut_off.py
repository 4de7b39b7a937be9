"""A learner is cut off from the syncer for minutes while others train: what becomes of its steps?

    python benchmarks/cut_off.py [--minutes 10] [--learners 3] [--run-dir runs/cut-off] [--json]

Once under overwrite and once under rebase. The link fails at our own layer (the chaos fault `link`): no message comes
or goes, and the orchestrator still reaches the process. Learners are paced, so that cores are there for all. Counted,
from the log, of the steps that the learner finished while it was cut off:
    merged      a commit contains them;
    replaced    a newer version took their place before they were read (overwrite);
    refused     contributions of it that were refused, by reason, from the cut on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.accounting.verdicts import NOT_FAILED  # noqa: E402
from orchestrator.eventlog import reader  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, LearnerLost  # noqa: E402
from orchestrator.recipe.config import FaultConfig, Recipe  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer.protocol.facts import Committed, Refused  # noqa: E402

VICTIM = "learner-local-0"
CUT_AT = 80  # syncer step: by then everyone steps
AFTER_S = 40.0  # from the end of the cut to the end of the run
SLOWDOWN = 8.0


def recipe(adopt: str, learners: int, cut_s: float) -> Recipe:
    overrides = ['name="cut-off"', "eval.every=0", "eval.ngrams=false", "sync.quorum=1", f'sync.adopt="{adopt}"']
    found = resolve(load(ROOT / "deploy/recipes/demo.toml", overrides))
    fault = FaultConfig(kind="link", learner=VICTIM, at_step=CUT_AT, duration_s=cut_s)
    pool = found.pools[0].model_copy(update={"learners": learners, "slowdown": SLOWDOWN})
    change = {"pools": (pool,), "chaos": found.chaos.model_copy(update={"faults": (fault,)})}
    return found.model_copy(update=change | {"budget": found.budget.model_copy(update={"tokens": 10**9})})


class Ending:
    """Called with every status: ends the run some time after the cut."""

    def __init__(self, store: RunStore, cut_s: float) -> None:
        self._store, self._lasts_s = store, cut_s + AFTER_S
        self._end = float("inf")  # monotonic

    def __call__(self, status: Mapping[str, Any]) -> None:
        if status["run"]["syncer_step"] >= CUT_AT:
            self._end = min(self._end, time.monotonic() + self._lasts_s)
        if time.monotonic() >= self._end:
            self._store.write_json("stop", {"reason": "the cut is over"})


def measure(events: Iterable[Event]) -> dict[str, Any]:
    """What the log says of the steps of the cut."""
    cut, healed, steps, lost = 0.0, float("inf"), list[tuple[float, int, int]](), 0
    merged: list[tuple[float, int, int, int]] = []  # of the victim: when, incarnation, base step, step
    others: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for event in events:
        match event.fact:
            case FaultInjected():
                cut = event.at
            case FaultHealed():
                healed = event.at
            case LearnerLost(learner=name) if name == VICTIM:
                lost += 1
            case StepFinished(step=step) if event.writer == VICTIM:
                steps.append((event.at, event.incarnation, step))
            case StepFinished() if cut and event.at < healed:
                others[event.writer] += 1
            case Refused(learner=name, reason=reason, message=message) if name == VICTIM and cut:
                refused[f"{message}: {reason}"] += 1
            case Committed(participants=participants):
                merged += [
                    (event.at, one.incarnation, one.base_step, one.step)
                    for one in participants
                    if one.learner == VICTIM
                ]
    inside = [(incarnation, step) for at, incarnation, step in steps if cut <= at < healed]
    covered = {(incarnation, step) for _, incarnation, begin, end in merged for step in range(begin + 1, end + 1)}
    contained = sum(each in covered for each in inside)
    again = min((at for at, *_ in merged if at > healed), default=None)
    near = [at for at, *_ in steps if cut - 5.0 <= at <= healed + 5.0]
    return {
        "cut_s": healed - cut,
        "incarnations_lost": lost,
        "steps": len(inside),
        "steps_of_others": dict(sorted(others.items())),
        "longest_gap_s": max((later - earlier for earlier, later in pairwise(near)), default=None),
        "merged": contained,
        "replaced": len(inside) - contained,
        "refused": dict(sorted(refused.items())),
        "contributing_again_s": None if again is None else again - healed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--learners", type=int, default=3)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/cut-off"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    from orchestrator.__main__ import start_chaos
    from orchestrator.runtime.launch import run_embedded

    results = {}
    for adopt in ("overwrite", "rebase"):
        store, wanted = emptied(given.run_dir / adopt), recipe(adopt, given.learners, 60.0 * given.minutes)
        store.write_text(RECIPE_FILE, dump(wanted))
        summary = run_embedded(wanted, store, start_chaos, Ending(store, 60.0 * given.minutes))
        failed = [each["name"] for each in summary["checks"] if each["status"] not in NOT_FAILED]
        results[adopt] = measure(reader.events(store.root)) | {"checks_failed": failed}
        if not results[adopt]["steps"]:
            raise SystemExit(f"error: {VICTIM} did not step when it was cut off; is the machine too busy?")
    if given.json:
        print(json.dumps(results))
        return
    for adopt, result in results.items():
        print(adopt)
        for name, value in result.items():
            print(f"  {name:22} {value}")


if __name__ == "__main__":
    main()
