"""How fast a log of 64 learners goes through the accounts and through all checks, on one core.

    python benchmarks/check_speed.py [--learners 64] [--steps 5000]

Makes the history in memory (benchmarks/history.py); with --run DIR reads a run's folder instead, reading included.
Prints one line of JSON: facts per second of this process's CPU time, and its largest memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

from benchmarks.history import History
from orchestrator.accounting.accounts import Accounts
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.reader import blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--run", type=Path)
    asked = parser.parse_args()
    accounts = Accounts()
    suite, facts, folding_s, begun = Suite(accounts), 0, [0.0, 0.0], time.process_time()
    for block in blocks(asked.run) if asked.run else History(asked.learners, asked.steps).blocks():
        times = [time.process_time()]
        for fold in (accounts, suite):
            fold.take(block)
            times.append(time.process_time())
        folding_s = [s + after - before for s, before, after in zip(folding_s, times, times[1:], strict=False)]
        facts = block.stop
    seconds = {"accounts": folding_s[0], "checks": folding_s[1]}
    if asked.run:
        seconds["reading"] = time.process_time() - begun - sum(folding_s)
    per_s = {name: round(facts / spent) for name, spent in seconds.items()} | {
        "all": round(facts / sum(seconds.values()))
    }
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"facts": facts, "facts_per_s": per_s, "mib": round(mib)}))


if __name__ == "__main__":
    main()
