"""Does training lose anything to bfloat16? Held-out loss at equal tokens, and what rounding does to small progress.

    python benchmarks/precision.py [--seeds 5] [--steps 150] [--learners 2] [--json]

Three arms of a byte model on Python's own sources, in lock-step, with the same seeds and samples: float32; a loss in
bfloat16 with float32 master parameters and moments; and all of it in bfloat16, where small updates are rounded away.
Each row has the held-out losses in nats per byte, computed in float32, and the mean difference to float32 with twice
its standard error over the pairs. Two more rows for each codec train nothing, with bfloat16 leaves: one learner of four
drifts by a unit a round, and nobody does anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.lockstep import LockStep  # noqa: E402
from learners.config import DataConfig, InnerConfig  # noqa: E402
from learners.fragment_io import FragmentIO  # noqa: E402
from learners.protocol.events_effects import Apply  # noqa: E402
from learners.training.evaluator import Evaluator  # noqa: E402
from learners.training.models.language import ByteLanguageModel  # noqa: E402
from learners.training.trainer import Trainer  # noqa: E402
from learners.training.tree import deal  # noqa: E402
from outer.config import OuterConfig, SyncConfig  # noqa: E402
from outer.numeric.parameters import GlobalParameters  # noqa: E402
from outer.protocol.messages import Contribution, FragmentCounters  # noqa: E402
from outer.protocol.syncer import Budget  # noqa: E402

ARMS: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16 compute, float32 masters": {"parameters": "float32", "compute": "bfloat16"},
    "bfloat16 throughout": {"parameters": "bfloat16", "compute": "bfloat16"},
}
MODEL = {"layers": 2, "width": 64, "heads": 4}
SYNC = {"P": 6, "H": 6, "tau": 1, "quorum": "all", "overlap": "strict"}
LENGTH, BATCH, HELD_OUT = 64, 8, 128
ULP, ROUNDS = 2.0**-7, 60  # the unit of a bfloat16 in [1, 2)


def trained(arm: str, seed: int, steps: int, learners: int) -> float:
    """The held-out loss after `steps` steps of each learner."""
    task = ByteLanguageModel(DataConfig(sequence_length=LENGTH), seed, **MODEL)
    run = LockStep(
        task=task,
        sync=SyncConfig.model_validate(SYNC),
        outer_config=OuterConfig(),
        inner=InnerConfig.model_validate({"lr": 3e-3, **ARMS[arm]}),
        learners={f"learner-{index}": BATCH for index in range(learners)},
        quorum=learners,
        budget=Budget(tokens=None, syncer_steps=steps),
        seed=seed,
    )
    return Evaluator(task, run.fragments, HELD_OUT).loss(run.run().thetas)


def rounds(initial: NDArray[np.float32], moved: float, codec: str) -> NDArray[np.float32]:
    """The global value after ROUNDS rounds in which the first of four learners with bfloat16 leaves adds `moved`."""
    task = _Vector(len(initial))
    sync = SyncConfig.model_validate({"P": 1, "codec": codec})
    fragments = deal(task, sync)
    outer = OuterConfig(lr=0.7, momentum=0.0)
    held = GlobalParameters(fragments, [initial], outer, codec, {"w": "avg"})
    trainers = [Trainer(task, fragments, InnerConfig(), 0) for _ in range(4)]
    learners = [FragmentIO(trainer, sync, 1) for trainer in trainers]
    for version in range(ROUNDS + 1):
        for learner in learners:
            learner.apply(Apply(0, version, held.thetas[0], "overwrite" if version else "bootstrap"))
        if moved:
            trainers[0].load(0, trainers[0].read(0) + np.float32(moved))
        payloads = []
        for learner in learners if version < ROUNDS else ():
            counters = FragmentCounters(version, 0, 1, 1)
            asked = Contribution("a", 1, 1, version, 0, 1, version, 1, counters, learner.stage([0])[0], "")
            payloads.append(learner.encode(asked).payload)
        if payloads:
            held.install(held.propose(0, payloads, [0.25] * 4), version + 1)
    return held.thetas[0]


class _Vector(ByteLanguageModel):
    """A bfloat16 vector that is never trained."""

    def __init__(self, size: int) -> None:
        super().__init__(DataConfig(), 0)
        self._size = size

    def init(self, rng: jax.Array) -> Any:
        return {"w": jax.numpy.zeros(self._size, jax.numpy.bfloat16)}


def training_rows(seeds: int, steps: int, learners: int) -> list[dict[str, Any]]:
    losses: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    for arm in ARMS:
        begun = time.perf_counter()
        losses[arm] = [trained(arm, seed, steps, learners) for seed in range(seeds)]
        seconds[arm] = time.perf_counter() - begun
    return [
        {
            "row": arm,
            "seeds": seeds,
            "tokens": steps * learners * BATCH * LENGTH,
            "held_out": [round(loss, 4) for loss in losses[arm]],
            "difference": round(float(np.mean(paired)), 5),
            "two_errors": round(_two_errors(paired), 5),
            "seconds": round(seconds[arm], 1),
        }
        for arm in ARMS
        for paired in [np.subtract(losses[arm], losses["float32"])]
    ]


def _two_errors(values: Sequence[float] | NDArray[np.float64]) -> float:
    return 0.0 if len(values) < 2 else float(2 * np.std(values, ddof=1) / np.sqrt(len(values)))


def rounding_rows() -> list[dict[str, Any]]:
    rows = []
    initial = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    for codec in ("fp32", "bf16"):
        arrived = (rounds(np.ones(8, np.float32), ULP, codec) - 1.0) / ULP
        units = {"sent": 0.25 * 0.7 * ROUNDS, "arrived": round(float(arrived.mean()), 3)}
        rows.append({"row": f"drift, {codec}", "rounds": ROUNDS, **units})
        changed = int((rounds(initial, 0.0, codec).view(np.uint32) != initial.view(np.uint32)).sum())
        rows.append({"row": f"idle, {codec}", "rounds": ROUNDS, "elements": len(initial), "changed": changed})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150, help="of each learner")
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="diloco-precision-") as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # a step is compiled once for all seeds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        rows = rounding_rows() + training_rows(asked.seeds, asked.steps, asked.learners)
    if asked.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
