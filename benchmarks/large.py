"""A run at size: half a billion bfloat16 parameters, 24 fragments, on learners whose steps cost next to nothing.

    python benchmarks/large.py [--parameters 5e8] [--learners 2] [--rounds 2] [--codec bf16] [--downlink fp32] [--json]

The learners, the syncer and Ray are production's. The model's loss reads one row of each of its 48 matrices, and a step
sleeps until it has lasted about two seconds, so what the run moves and merges is that of a large model, and what it
computes is not. Reported: participation, commits, the longest quorum-to-durable time, and for each kind of process the
peak of its private memory beside `plan`'s figure without checkpoints and joiners, of which the run has none; for the
object store, the peak of the machine's shared memory over what was taken before. Half a billion parameters take about
16 GB and four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from outer.protocol.facts import Committed  # noqa: E402

LAYERS, WIDTH = 48, 1024
FRAGMENTS = 24
SAMPLE_S = 0.2


class Large:
    """48 bfloat16 matrices; the loss pulls the first row of each towards zero. Implements Task."""

    def __init__(self, data: Any, seed: int, parameters: int = 500_000_000) -> None:
        self._rows = max(1, parameters // (LAYERS * WIDTH))

    def init(self, rng: Any) -> dict[str, Any]:
        import jax.numpy as jnp

        return {f"layer{number:02d}": jnp.ones((self._rows, WIDTH), jnp.bfloat16) for number in range(LAYERS)}

    def loss(self, params: Mapping[str, Any], batch: Any, rng: Any) -> tuple[Any, dict[str, Any]]:
        import jax.numpy as jnp

        rows = [jnp.mean(jnp.square(matrix[0].astype(jnp.float32))) for matrix in params.values()]
        return sum(rows) * jnp.mean(batch["x"]) / len(rows), {}

    def optimizer(self, inner: Any) -> Any:
        import optax

        return optax.sgd(inner.lr)

    def batch(self, start: int, count: int) -> dict[str, Any]:
        import numpy as np

        return {"x": np.ones(count, np.float32)}

    def tokens(self, count: int) -> int:
        return count

    def held_out(self, start: int, count: int) -> dict[str, Any]:
        return self.batch(start, count)


def recipe(parameters: int, learners: int, rounds: int, codec: str, downlink: str, slowdown: float) -> Recipe:
    return resolve(
        Recipe.model_validate(
            {
                "name": "large",
                "task": "benchmarks.large:Large",
                "model": {"parameters": parameters},
                "inner": {"optimizer": "sgd", "lr": 0.1, "clip_norm": 0.0, "schedule": "constant", "warmup": 0.0},
                "sync": {
                    "P": FRAGMENTS,
                    "H": FRAGMENTS,
                    "tau": 2,
                    "quorum": 1,
                    "codec": codec,
                    "downlink": downlink,
                    "lease_s": 30.0,
                },
                "pools": [{"name": "large", "learners": learners, "batch_size": 1, "slowdown": slowdown}],
                "budget": {"syncer_steps": FRAGMENTS * rounds},
                "eval": {"every": 0, "sequences": 1},
                "durability": {"mode": "checkpoint", "every_s": 86_400.0},
                "run": {"metrics": False, "start_s": 600.0, "hang_s": 300.0, "syncer_lease_s": 120.0},
            }
        )
    )


class Peaks:
    """Samples, in a thread of its own, the memory of everything below this process."""

    def __init__(self) -> None:
        self.private: Counter[str] = Counter()  # bytes, by kind of process
        self._before = _shared()
        self.shared = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *why: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.shared = max(self.shared, _shared() - self._before)
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError, IndexError):
                    if kind := _kind(" ".join(process.cmdline())):
                        self.private[kind] = max(self.private[kind], _private(process.pid))


def _kind(command: str) -> str:
    """A process's kind by what Ray calls it; empty for one that is not looked at."""
    found = re.match(r"ray::(syncer|learner|Syncer|Learner)", command)
    return {"s": "syncer", "l": "learner-large"}[found[1][0].lower()] if found else ""


def _private(pid: int) -> int:
    """Bytes of a process's own: not of the object store, of which it maps what it has touched."""
    words = Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()
    return int(words[0]) * 1024


def _shared() -> int:
    return int(psutil.virtual_memory().shared)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from orchestrator.planner.sizing import memory
    from orchestrator.planner.sizing.model_sizes import shapes_of
    from orchestrator.runtime import launch

    made = recipe(
        int(options.parameters), options.learners, options.rounds, options.codec, options.downlink, options.slowdown
    )
    store = emptied(options.run_dir)
    with Peaks() as peaks:
        summary = launch.run_embedded(made, store, None, lambda status: None)
    planned = memory.of_run(made, shapes_of(made), ["large"], saving=False)  # no checkpoint, no joiner
    at_the_end = sum(planned[service].store_bytes for service in ("orchestrator", "evaluator"))
    stored = options.learners * planned["learner-large"].store_bytes + planned["syncer"].store_bytes + at_the_end
    commits = [event.fact for event in read_run(store.root) if isinstance(event.fact, Committed)]
    return {
        "parameters": int(options.parameters),
        "learners": options.learners,
        "codec": options.codec,
        "downlink": options.downlink,
        "state": summary["state"],
        "participation": summary["participation"]["alive_mean"],
        "commits": len(commits),
        "step_s": summary["wall_s"] / (FRAGMENTS * options.rounds),
        "sync_s": {"median": median(each.sync_s for each in commits), "longest": max(each.sync_s for each in commits)},
        "memory": {
            kind: {"measured": measured, "planned": plan, "ratio": measured / plan}
            for kind, measured, plan in (
                *((kind, peaks.private[kind], planned[kind].host_bytes) for kind in ("learner-large", "syncer")),
                ("store", peaks.shared, stored),
            )
        },
        "wire_bytes": summary["wire_bytes"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--parameters", type=float, default=5e8)
    arguments.add_argument("--learners", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--codec", default="bf16")
    arguments.add_argument("--downlink", default="fp32")
    arguments.add_argument(
        "--slowdown", type=float, default=3.0, help="a step sleeps until it lasted so many times as long"
    )
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/large"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(
        f"{found['parameters']:,} parameters, {found['learners']} learners, {found['codec']}: {found['state']}; "
        f"participation {found['participation']:.1%}, {found['commits']} commits, {found['step_s']:.2f} s a step, "
        f"decision to durable {found['sync_s']['median']:.2f} s (longest {found['sync_s']['longest']:.2f})"
    )
    for kind, row in found["memory"].items():
        print(
            f"  {kind}: {row['measured'] / 2**30:.2f} GiB, plan {row['planned'] / 2**30:.2f} GiB ({row['ratio']:.2f})"
        )


if __name__ == "__main__":
    main()
