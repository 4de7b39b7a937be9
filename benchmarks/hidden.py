"""A slow batch and a slow copy to the host, hidden behind the step.

    python benchmarks/hidden.py [--steps N] [--json]

The step time of one trainer with two steps in flight, computed by one thread as in a learner: as is; with a task that
sleeps in `batch` for most of a step, built ahead; and with a host copy that takes longer than a step, in an answering
thread. Beside them what both cost when nothing hides them. Sleeping needs no core, so what is hidden is free. Exit
code 1 if a hidden row takes more than 1.1 times the plain one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from learners.training.devices.device import fit  # noqa: E402

fit(None, "cpu")  # one thread computes, as in a learner

from learners.config import DataConfig, InnerConfig  # noqa: E402
from learners.training.models.language import ByteLanguageModel  # noqa: E402
from learners.training.trainer import InFlight, Trainer  # noqa: E402
from learners.training.tree import deal  # noqa: E402
from outer.config import SyncConfig  # noqa: E402

BATCH = 8
SLOWER_MAX = 1.1


class SlowData(ByteLanguageModel):
    """Each batch takes `sleep_s` longer."""

    sleep_s = 0.0

    def batch(self, start: int, count: int) -> Any:
        time.sleep(self.sleep_s)
        return super().batch(start, count)


def step_ms(
    trainer: Trainer, steps: int, ahead: bool = True, in_flight_max: int = 2, at_boundary: Callable[[], Any] = int
) -> float:
    """The median step time."""
    in_flight: list[InFlight] = []
    ended = []
    for step in range(steps):
        if ahead:
            trainer.expect([BATCH * (step + later) for later in range(2)], BATCH)
        at_boundary()
        in_flight.append(trainer.dispatch(BATCH * step, BATCH, 0.5))
        if len(in_flight) == in_flight_max:
            in_flight.pop(0).result()
            ended.append(time.perf_counter())
    for last in in_flight:
        last.result()
    return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(ended))


def measured(steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 4000)
        task = SlowData(DataConfig(path=corpus, sequence_length=64), 0, layers=2, width=96, heads=4)
        trainer = Trainer(task, deal(task, SyncConfig(P=4)), InnerConfig(), 0)
        trainer.warm_up(BATCH)
        step_ms(trainer, 4)
        plain = step_ms(trainer, steps)
        rows = {"plain": plain}
        task.sleep_s = 0.8 * plain / 1e3
        rows["slow batch, built ahead"] = step_ms(trainer, steps)
        rows["slow batch, one step at a time"] = step_ms(trainer, steps, ahead=False, in_flight_max=1)
        task.sleep_s = 0.0

        def host_copy(copy: Any) -> None:
            trainer.host(copy)
            time.sleep(1.5 * plain / 1e3)

        def answer() -> None:
            threading.Thread(target=host_copy, args=(trainer.copy(0),)).start()

        rows["slow host copy, in an answering thread"] = step_ms(trainer, steps, at_boundary=answer)
        rows["slow host copy, in the loop"] = step_ms(trainer, steps, at_boundary=lambda: host_copy(trainer.copy(0)))
    hidden = [name for name in rows if "ahead" in name or "thread" in name]
    return {
        "rows": [
            {"what": name, "step_ms": round(ms, 2), "over_plain": round(ms / plain, 3)} for name, ms in rows.items()
        ],
        "ok": all(rows[name] <= SLOWER_MAX * plain for name in hidden),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measured(options.steps)
    if options.json:
        print(json.dumps(found))
    else:
        for row in found["rows"]:
            print(f"{row['what']:40} {row['step_ms']:8.2f} ms  {row['over_plain']:.3f}")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
