"""Live device bytes of one learner through steps, a checkpoint and a joiner, against the plan.

    python benchmarks/device_memory.py [--width N] [--layers N] [--rounds N] [--json]

One learner and its syncer in one process, with the real machines and arrays, and two steps in flight. Before and after
each step is dispatched, the bytes of all JAX arrays are counted. A checkpoint and a joiner each hold the snapshot slot
for half a round. The plan's gradients are left out: they live inside the compiled step, whose temporary memory is a
column of its own, with activations. Exit code 1 if a row is further than 10 % from the plan, or if more than one model
per round went to the host.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402

from benchmarks.harness.lockstep import LockStep  # noqa: E402
from learners.config import DataConfig, InnerConfig  # noqa: E402
from learners.protocol import events_effects as unit  # noqa: E402
from learners.training.models.causal_lm import CausalLM  # noqa: E402
from learners.training.trainer import InFlight, Trainer  # noqa: E402
from learners.training.tree import inner_state_bytes, parameter_bytes  # noqa: E402
from orchestrator.planner.sizing import memory  # noqa: E402
from orchestrator.planner.sizing.model_sizes import Shapes  # noqa: E402
from outer.config import OuterConfig, SyncConfig  # noqa: E402
from outer.protocol import events_effects as outer  # noqa: E402
from outer.protocol.syncer import Budget  # noqa: E402

TOLERANCE = 0.1
BATCH = 4
SNAPSHOT = "a snapshot, for a checkpoint or a joiner"
INSIDE_THE_STEP = "gradients"


@dataclass
class Row:
    phase: str
    steps: int
    live_bytes: int  # the most
    planned_bytes: int

    @property
    def ratio(self) -> float:
        return self.live_bytes / self.planned_bytes


class Watched(LockStep):
    """Two steps in flight, as in production, and live bytes counted around each; what arrives is placed on arrival."""

    def watch(self) -> None:
        (self.unit,) = self._units.values()
        gc.collect()
        held = {id(leaf) for leaf in self.unit.trainer.state_leaves()}
        self.other_bytes = sum(array.nbytes for array in jax.live_arrays() if id(array) not in held)
        self.rows: dict[str, Row] = {}
        self.phase = "joining"
        self.steps = 0
        self.flights: deque[InFlight] = deque()
        self.bytes_to_host = 0  # of staged copies that were asked for
        host = self.unit.trainer.host

        def counted(on_device: Any) -> Any:
            theta = host(on_device)
            self.bytes_to_host += theta.nbytes
            return theta

        self.unit.trainer.host = counted

    def _round(self) -> bool:
        self._to_syncer(outer.Tick())
        each = self.unit
        if isinstance(each.next, unit.RunStep):
            run, each.next = each.next, None
            self.before_step()
            self.count()
            self.flights.append(each.trainer.dispatch(run.start, BATCH, run.progress))
            self.count()
            self.complete(1)
            self._to_learner("a", unit.Boundary(self._task.tokens(BATCH)))
        else:
            self.complete(0)
        self._settle()
        return True

    def complete(self, left: int) -> None:
        """Wait for the oldest steps in flight, until so many are left."""
        while len(self.flights) > left:
            loss, aux = self.flights.popleft().result()
            self._to_learner("a", unit.StepDone(loss, self._task.tokens(BATCH), aux))
        self._deliver()

    def before_step(self) -> None:
        """A checkpoint in the third round, a joiner in the fifth; each is packed half a round later."""
        round_, within = divmod(self.steps, self._sync.round_steps)
        half, io = self._sync.round_steps // 2, self.unit.fragment_io
        self.steps += 1
        self.phase = "steps" if round_ != 0 else "joining"
        if round_ == 2 and within < half:
            self.phase = "checkpoint"
            if within == 0:
                self.captured = io.snapshot()
        elif round_ == 4 and within < half:
            self.phase = "joiner"
            if within == 0:
                self.captured = io.capture()
        elif within == half and round_ in (2, 4):
            (self.captured.captured if round_ == 2 else self.captured).pack()

    def count(self) -> None:
        live = sum(array.nbytes for array in jax.live_arrays()) - self.other_bytes
        row = self.rows.setdefault(self.phase, Row(self.phase, 0, 0, 0))
        row.steps += 1
        row.live_bytes = max(row.live_bytes, live)

    def _perform_unit(self, name: str, effects: list[unit.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, unit.Fetch):
                index = effect.fragment
                payload = self.unit.fragment_io.receive(index, self.parameters.thetas[index])
                self._to_learner(name, unit.Fetched(index, self.parameters.versions[index], payload))
            else:
                super()._perform_unit(name, [effect])


def measured(width: int, layers: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 4000)
        task = CausalLM(DataConfig(path=corpus, sequence_length=64), 0, layers=layers, width=width, heads=4)
        sync = SyncConfig.model_validate({"P": 6, "H": 12, "tau": 2})
        inner = InnerConfig()
        run = Watched(
            task=task,
            sync=sync,
            outer_config=OuterConfig(),
            inner=inner,
            learners={"a": BATCH},
            quorum=1,
            budget=Budget(tokens=task.tokens(BATCH) * 12 * rounds, syncer_steps=None),
        )
        run.watch()
        run.run()
    shapes = Shapes(run.fragments, parameter_bytes(task, inner), inner_state_bytes(task, inner), (), {})
    parts = {
        part.what: part.bytes for part in memory.learner(sync, shapes, accelerated=True).parts if part.where == "device"
    }
    inside = parts.pop(INSIDE_THE_STEP)
    rows = [run.rows[phase] for phase in ("steps", "checkpoint", "joiner")]
    for row in rows:
        row.planned_bytes = sum(parts.values()) - (parts[SNAPSHOT] if row.phase == "steps" else 0)
    round_bytes = run.bytes_to_host * sync.round_steps / run.committed_step
    model_bytes = 4 * shapes.elements
    return {
        "platform": jax.default_backend(),
        "parameters": shapes.elements,
        "rows": [vars(row) | {"ratio": round(row.ratio, 3)} for row in rows],
        "gradients_planned_bytes": inside,
        "step_temporary_bytes": temporary_bytes(run.unit.trainer),
        "host_bytes_per_round": round(round_bytes),
        "models_per_round": round(round_bytes / model_bytes, 3),
        "ok": all(abs(row.ratio - 1.0) <= TOLERANCE for row in rows)
        and round_bytes <= (1.0 + TOLERANCE / 2) * model_bytes,
    }


def temporary_bytes(trainer: Trainer) -> int | None:
    """Of the compiled step: gradients and activations."""
    batch, key = trainer._batch(0, BATCH)
    step: Any = trainer._train_step
    analysis = step.lower(trainer.params, trainer.opt_state, batch, key, 1.0).compile().memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measured(options.width, options.layers, options.rounds)
    if options.json:
        print(json.dumps(found))
    else:
        for row in found["rows"]:
            print(
                f"{row['phase']:12} live {row['live_bytes']:>12,}  plan {row['planned_bytes']:>12,}  {row['ratio']:.3f}"
            )
        print(f"to the host per round: {found['host_bytes_per_round']:,} bytes, {found['models_per_round']} models")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
