"""What the journal costs: the same run with commits kept and not kept, in turn.

    python benchmarks/durability.py [--pairs 4] [--seconds 25] [--store URI] [--run-dir runs/durability] [--json]

`journal` writes every commit before it is announced, `checkpoint` writes nothing in between. Two learners, not paced,
share the machine with the syncer. Ratios are of the two runs of a pair; every number is read from the logs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer.protocol.facts import Committed, SyncerStarted  # noqa: E402

WARM_S = 5.0  # after the first commit


class Stopper:
    """Called with every status: ends the run in time, and keeps what it last said of the journal."""

    def __init__(self, store: RunStore, seconds: float) -> None:
        self.journal: Mapping[str, Any] = {}
        self._store, self._seconds, self._began = store, seconds, 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        self.journal = status["durability"]["journal"] or self.journal
        if status["run"]["syncer_step"] >= 1 and not self._began:
            self._began = status["written_at"]
        if self._began and status["written_at"] - self._began > self._seconds + WARM_S:
            self._store.write_json("stop", {"reason": "measured"})


def measure(events: list[Event], seconds: float, journal: Mapping[str, Any]) -> dict[str, float]:
    begin = min(event.at for event in events if isinstance(event.fact, Committed)) + WARM_S
    inside = [event.fact for event in events if begin <= event.at < begin + seconds]
    commits = [fact for fact in inside if isinstance(fact, Committed)]
    (started,) = (event.fact for event in events if isinstance(event.fact, SyncerStarted))
    every = [event.fact for event in events if isinstance(event.fact, Committed)]
    values = sum(4 * started.sizes[fact.fragment] for fact in every)  # parameters alone
    return {
        "steps_per_s": sum(isinstance(fact, StepFinished) for fact in inside) / seconds,
        "commits_per_s": len(commits) / seconds,
        "sync_s_median": statistics.median(fact.sync_s for fact in commits),
        "journal_bytes_per_fragment_byte": journal.get("bytes", 0) / values,
        "write_s": journal.get("write_s", 0.0),
    }


def run(mode: str, number: int, given: argparse.Namespace) -> dict[str, float]:
    from orchestrator.runtime.launch import run_embedded

    settings = [f'name="cost-{mode}"', f'durability.mode="{mode}"', "durability.every_s=0.0", "eval.every=0"]
    settings += ["pools.0.learners=2", "sync.quorum=1", "budget.tokens=1000000000"]
    settings += [f'durability.store="{given.store}/{mode}-{number}"'] if given.store else []
    recipe = resolve(load(ROOT / "deploy/recipes/local.toml", settings))
    store = emptied(given.run_dir / f"{mode}-{number}")
    stopper = Stopper(store, given.seconds)
    run_embedded(recipe, store, None, stopper)
    return measure(read_run(store.root), given.seconds, stopper.journal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--store", default="")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/durability"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    pairs = []
    for number in range(given.pairs):
        order = ("journal", "checkpoint") if number % 2 == 0 else ("checkpoint", "journal")
        measured = {mode: run(mode, number, given) for mode in order}
        ratios = {
            name: measured["journal"][name] / measured["checkpoint"][name] for name in ("steps_per_s", "commits_per_s")
        }
        pairs.append(measured | {"ratio": ratios})
        if not given.json:
            print(f"pair {number}: {json.dumps(pairs[-1])}", flush=True)
    result = {
        "pairs": pairs,
        "steps_ratio_median": statistics.median(pair["ratio"]["steps_per_s"] for pair in pairs),
        "commits_ratio_median": statistics.median(pair["ratio"]["commits_per_s"] for pair in pairs),
    }
    print(
        json.dumps(result)
        if given.json
        else f"medians: {json.dumps({k: v for k, v in result.items() if k != 'pairs'})}"
    )


if __name__ == "__main__":
    main()
