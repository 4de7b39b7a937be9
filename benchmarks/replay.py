"""A chaos run, computed again in another process: is it the same, bit for bit?

    python benchmarks/replay.py [--set KEY=VALUE ...] [--run-dir runs/replay] [--json]

The run is deploy/recipes/replay.toml: kills, freezes, a dead link, NaN; on the way its pool grows by one learner, and
later shrinks again, so that one joins from a peer and one drains. Then `diloco replay` computes every step, every
contribution and every commit again from the log alone. Every number is read from the log or from that command. Exit
code 1 unless all of it is equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from chaos.actor import start as start_chaos  # noqa: E402
from learners.protocol.facts import StateReceived  # noqa: E402
from orchestrator.eventlog.facts import FaultInjected  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.lifecycle.pools import request_file  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer.protocol.facts import LearnerFenced  # noqa: E402

GROW_AT, SHRINK_AT = 0.3, 0.6  # of the budget
REPLAY_S = 1800.0
EQUAL = {True: "yes", False: "no", None: "unknown"}


class Steering:
    """Called with every status: one learner more, and later one fewer."""

    def __init__(self, store: RunStore, learners: int) -> None:
        self._store, self._learners = store, learners

    def __call__(self, status: Mapping[str, Any]) -> None:
        more = GROW_AT <= status["run"]["progress"] < SHRINK_AT
        wanted = {"learners": self._learners + more}
        if status["run"]["progress"] >= GROW_AT and self._store.read_json(request_file("local")) != wanted:
            self._store.write_json(request_file("local"), wanted)


def train(settings: list[str], folder: Path) -> dict[str, Any]:
    from orchestrator.runtime import launch

    recipe = resolve(load(ROOT / "deploy/recipes/replay.toml", settings))
    store = emptied(folder)
    store.write_text(RECIPE_FILE, dump(recipe))
    return launch.run_embedded(recipe, store, start_chaos, Steering(store, recipe.pools[0].learners))


def play(folder: Path) -> dict[str, Any]:
    """What `diloco replay --json` says, in a process that knows nothing of the run but its folder."""
    command = [sys.executable, "-m", "orchestrator", "replay", str(folder.resolve()), "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=REPLAY_S)
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        told = {"error": {"message": "it said nothing; what it printed is above"}}
    return told | {"exit_code": done.returncode}


def measure(summary: Mapping[str, Any], folder: Path, played: Mapping[str, Any]) -> dict[str, Any]:
    events = read_run(folder)
    faults = Counter(event.fact.fault_kind for event in events if isinstance(event.fact, FaultInjected))
    states = [event.fact for event in events if isinstance(event.fact, StateReceived)]
    fenced = [event.fact.reason for event in events if isinstance(event.fact, LearnerFenced)]
    return {
        "ok": summary["ok"],
        "wall_s": summary["wall_s"],
        "rounds_per_fragment": summary["rounds_per_fragment"],
        "commits": summary["commits"],
        "participation": summary["participation"]["mean"],
        "faults": dict(faults),
        "recoveries_from_peers": sum(fact.source == "peer" for fact in states),
        "drained": fenced.count("drained"),
        "replay": dict(played),
    }


def say(report: Mapping[str, Any]) -> None:
    played = report["replay"]
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report["faults"].items()))
    print(f"run: ok {report['ok']}, {report['commits']:,} commits in {report['wall_s']:.0f} s")
    print(
        f"  every fragment at least {report['rounds_per_fragment']} times; {report['participation']:.1%} participation"
    )
    print(f"  faults: {faults}; {report['recoveries_from_peers']} started from a peer, {report['drained']} drained")
    if "error" in played:
        print(f"replay: exit code {played['exit_code']}: {played['error']['message']}")
        return
    print(f"replay: {played['commits']:,} commits, {played['steps']:,} steps in {played['seconds']:.0f} s")
    for kind, compared in played["compared"].items():
        print(f"  {kind}: {played['equal'].get(kind, 0):,} of {compared:,} equal")
    print(f"  bit-equal: {EQUAL[played['bit_equal']]}, digest {played['digest']}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/replay"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    summary = train(options.set, options.run_dir)
    report = measure(summary, options.run_dir, play(options.run_dir))
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        say(report)
    if report["replay"].get("bit_equal") is not True:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
