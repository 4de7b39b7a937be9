"""What `plan` says that a learner and the syncer hold, beside what their objects do hold: in processes of their own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device_memory import TOLERANCE, measured
from orchestrator.planner.sizing import memory
from orchestrator.planner.sizing.model_sizes import shapes_of
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.validation import resolve
from outer.heap import ONE_HEAP

ROOT = Path(__file__).resolve().parents[3]
PARAMETERS = 48_000_000  # 48 tensors in 24 fragments
LAYERS, WIDTH = 48, 1024
NEAR = 0.2  # of what plan says


class Large:
    """48 bfloat16 matrices; the loss pulls the first row of each towards zero, which costs next to nothing."""

    def __init__(self, data: Any, seed: int, parameters: int) -> None:
        self._rows = parameters // (LAYERS * WIDTH)

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


def recipe() -> Recipe:
    inner = {"optimizer": "sgd", "lr": 0.1, "clip_norm": 0.0, "schedule": "constant", "warmup": 0.0}
    return resolve(
        Recipe.model_validate(
            {
                "name": "large",
                "task": f"{__name__}:Large",
                "model": {"parameters": PARAMETERS},
                "inner": inner,
                "sync": {"P": 24, "H": 24, "tau": 2, "quorum": 1, "codec": "bf16", "downlink": "fp32"},
                "pools": [{"name": "large", "learners": 2, "batch_size": 1}],
                "budget": {"syncer_steps": 24},
                "eval": {"every": 0, "sequences": 1},
            }
        )
    )


BEGIN = """
import json
from pathlib import Path
from tests.orchestrator.planner.test_memory_in_use import recipe
from learners.training.devices.device import fit
from learners.training import task, tree
from learners.training.initial_state import InitialState
from outer import heap

def own():
    return 1024 * int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

made = recipe()
rounds = 3
"""

LEARNER = """
fit(None, "cpu")
import jax, numpy as np
from learners.fragment_io import FragmentIO
from learners.protocol.events_effects import Apply
from learners.training.trainer import Trainer

jax.jit(lambda x: x + 1)(np.ones(3)).block_until_ready()
built = task.load(made.task, made.data, made.seed, dict(made.model))
fragments = tree.deal(built, made.sync)
before, held = own(), 0
trainer = Trainer(built, fragments, made.inner, made.seed)
trainer.warm_up(1)
moves = FragmentIO(trainer, made.sync, len(fragments))
came = np.ones(max(each.size for each in fragments), np.float32)  # in Ray's store, when it is a real run
before += came.nbytes
for fragment in fragments:
    moves.apply(Apply(fragment.index, 0, moves.receive(fragment.index, came[: fragment.size]), "bootstrap", None))
number, captured = 0, None
for _ in range(rounds):
    for fragment in fragments:
        number += 1
        flight = trainer.dispatch(number, 1, 0.0)
        staged = moves.stage([fragment.index, (fragment.index + 1) % len(fragments)])
        for each in staged.values():
            each.theta.host()
        placed = moves.receive(fragment.index, came[: fragment.size])
        if fragment.index == 8:
            captured = moves.capture()
        if fragment.index == 20:
            captured.pack(); captured = None
        flight.result()
        held = max(held, own())
        moves.apply(Apply(fragment.index, number, placed, "overwrite", None))
print(json.dumps(held - before))
"""

SYNCER = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
heap.keep_small()
import jax, numpy as np
from outer.numeric import codec
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules

jax.jit(lambda x: x + 1)(np.ones(3)).block_until_ready()
make = InitialState(made.task, dict(made.model), made.data, made.seed, made.sync)
before, held = own(), 0
fragments, thetas, patterns, _ = make(lambda fragment: True)
merge = rules([tensor for fragment in fragments for tensor in fragment.tensors], made.outer.merge, patterns)
parameters = GlobalParameters(fragments, thetas, made.outer, made.sync.codec, merge)
del thetas
parameters.warm_up()
payload = [codec.encode("bf16", parameters.thetas[0], parameters.thetas[0])] * 2
before += payload[0].nbytes  # in Ray's store, when it is a real run
for number in range(rounds):
    cut = list(parameters.thetas), list(parameters.states)  # as outer/snapshots.py has it
    for fragment in fragments:
        version = number * len(fragments) + fragment.index + 1
        proposals = [parameters.propose(fragment.index, payload, [0.5, 0.5], version) for _ in range(2)]
        held = max(held, own())
        parameters.install(proposals[0], version)
    del cut
print(json.dumps(held - before))
"""


@pytest.mark.full
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap is another one")
@pytest.mark.parametrize(("process", "does"), [("learner-large", LEARNER), ("syncer", SYNCER)])
def test_a_process_holds_what_plan_says(process: str, does: str) -> None:
    environ = os.environ | ONE_HEAP | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + does], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    made = recipe()
    planned = memory.of_run(made, shapes_of(made), ["large"])[process]
    held = planned.host_bytes - memory.PROCESS_BYTES[process.split("-")[0]]
    assert json.loads(found.stdout) == pytest.approx(held, rel=NEAR)


@pytest.mark.full
def test_live_bytes_are_flat_but_for_the_slot_and_as_planned() -> None:
    found = measured(width=64, layers=2, rounds=6)
    steps, checkpoint, joiner = (row["live_bytes"] for row in found["rows"])
    slot = found["rows"][1]["planned_bytes"] - found["rows"][0]["planned_bytes"]
    assert checkpoint == joiner
    assert steps + 0.9 * slot <= checkpoint <= steps + slot, "and fewer fragments may be staged in half a round"
    assert all(abs(row["ratio"] - 1.0) <= TOLERANCE for row in found["rows"])
    assert found["models_per_round"] <= 1.05
