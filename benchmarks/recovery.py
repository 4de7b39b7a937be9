"""How learners come back, and what it costs the result: five runs of equal committed tokens, four of them with deaths.

    python benchmarks/recovery.py [--tokens 1600000] [--only none,one,...] [--run-dir runs/recovery] [--json]

    none    nobody is killed: the twin that the others are compared with
    one     one learner
    donor   one learner, and its donor in the moment in which it is named
    two     two learners at once
    all     all learners at once

Kills are SIGKILLs from outside, once a quarter of the tokens is committed. Every number is read from the logs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import Donated, DonorFailed, StateReceived  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402

AT_PROGRESS = 0.25
VICTIMS = {"none": 0, "one": 1, "donor": 1, "two": 2, "all": 4}
WATCH_S = 60.0  # for a donor to be named
POLL_S = 0.002


class Assassin:
    """Called with every status; kills once, and in the scenario `donor` the next learner that is named a donor."""

    def __init__(self, scenario: str, folder: Path) -> None:
        self.killed: list[str] = []
        self.failure = ""
        self._scenario, self._segment = scenario, folder / "events" / "syncer.jsonl"

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows = status["learners"]
        ready = status["run"]["progress"] >= AT_PROGRESS and all(row["state"] == "stepping" for row in rows)
        if self.killed or not ready or not VICTIMS[self._scenario]:
            return
        pids = {row["name"]: row["pid"] for row in rows}
        if self._scenario == "donor":
            threading.Thread(target=self._ambush, args=(pids, self._segment.stat().st_size), daemon=True).start()
        for name in list(pids)[: VICTIMS[self._scenario]]:
            os.kill(pids[name], signal.SIGKILL)
            self.killed.append(name)

    def _ambush(self, pids: Mapping[str, int], offset: int) -> None:
        deadline = time.monotonic() + WATCH_S
        with self._segment.open() as lines:
            lines.seek(offset)
            rest = ""
            while time.monotonic() < deadline:
                rest += lines.read()
                *whole, rest = rest.split("\n")
                for line in whole:
                    if '"DonorNamed"' in line:
                        donor = json.loads(line)["fact"]["donor"]
                        os.kill(pids[donor], signal.SIGKILL)
                        self.killed.append(donor)
                        return
                time.sleep(POLL_S)


def facts(events: list[Event], kind: type[Any]) -> list[Event]:
    return [event for event in events if isinstance(event.fact, kind)]


def measure(scenario: str, events: list[Event], killed: list[str], summary: Mapping[str, Any]) -> dict[str, Any]:
    donated = {(e.fact.joiner, e.fact.joiner_incarnation): e for e in facts(events, Donated)}
    returns = [
        {
            "learner": event.writer,
            "incarnation": event.incarnation,
            "source": event.fact.source,
            "donor": event.fact.donor,
            "digests_equal": (gift := donated.get((event.writer, event.incarnation))) is not None
            and gift.writer == event.fact.donor
            and gift.fact.digest == event.fact.digest,
            "bytes": event.fact.bytes,
            "seconds": event.fact.seconds,
        }
        for event in facts(events, StateReceived)
        if event.incarnation > 1
    ]
    return {
        "scenario": scenario,
        "killed": killed,
        "returns": returns,
        "donors_failed": [(e.writer, e.fact.donor, e.fact.reason) for e in facts(events, DonorFailed)],
        "recoveries": [
            {"target": fault["target"], "recovery_s": fault["recovery_s"], **fault["recovery_phases"]}
            for fault in summary["faults"]
        ],
        "eval_loss": summary["eval_loss"],
        "tokens": summary["tokens"],
        "wall_s": summary["wall_s"],
        "goodput_time": summary["goodput_time"],
        "ok": summary["ok"],
    }


def run(scenario: str, tokens: int, folder: Path) -> dict[str, Any]:
    from orchestrator.runtime import launch

    settings = [f"name=recovery-{scenario}", f"budget.tokens={tokens}", "eval.every=0"]
    recipe = resolve(load(ROOT / "deploy/recipes/local.toml", settings))
    store = emptied(folder)
    assassin = Assassin(scenario, folder)
    begin: Callable[..., Any] = launch.run_embedded
    summary = begin(recipe, store, None, assassin)
    return measure(scenario, read_run(store.root), assassin.killed, summary)


def say(report: Mapping[str, Any], twin: float | None) -> None:
    against = f" ({100 * (report['eval_loss'] / twin - 1):+.2f} % against none)" if twin else ""
    print(
        f"{report['scenario']}: ok {report['ok']}, held-out loss {report['eval_loss']:.4f}{against}, {report['tokens']}"
    )
    for back in report["returns"]:
        how = f"{back['bytes']:,} bytes of {back['donor']}, digests equal: {back['digests_equal']}"
        source = how if back["source"] == "peer" else "the syncer's snapshot"
        print(
            f"  {back['learner']} {back['incarnation']} starts from {source}, {back['seconds']:.2f} s after attaching"
        )
    for joiner, donor, reason in report["donors_failed"]:
        print(f"  {joiner}: no state from {donor}: {reason}")
    for row in report["recoveries"]:
        phases = ", ".join(
            f"{k} {v:.1f}" for k, v in row.items() if k not in ("target", "recovery_s") and v is not None
        )
        print(f"  {row['target']} contributes again after {row['recovery_s']:.1f} s ({phases})")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=1_600_000)
    arguments.add_argument("--only", default=",".join(VICTIMS))
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/recovery"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    reports: list[dict[str, Any]] = []
    for scenario in options.only.split(","):
        reports.append(run(scenario, options.tokens, options.run_dir / scenario))
        twins = [report["eval_loss"] for report in reports if report["scenario"] == "none"]
        if not options.json:
            say(reports[-1], twins[0] if twins and scenario != "none" else None)
    if options.json:
        print(json.dumps(reports, indent=1))


if __name__ == "__main__":
    main()
