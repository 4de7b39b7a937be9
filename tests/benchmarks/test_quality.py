"""The quality study's compiled program is the algorithm of the machines, and its rows are what it says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.harness.lockstep import LockStep
from benchmarks.harness.quality import EVALUATED, Cell, Program, Ramp, Task, rounded, simulate
from learners.config import DataConfig, InnerConfig
from learners.protocol.facts import StepFinished
from learners.training.tree import ParameterTree
from outer.config import OuterConfig, SyncConfig
from outer.numeric.formats import named
from outer.protocol.schedule import Budget

H, ROUNDS, RATE = 6, 4, 0.03
CONSTANT = {"shape": 2, "warmup": 0.0, "final": 1.0}


class Matrices:
    """A small network on made-up samples."""

    def __init__(self, data: DataConfig | None = None, seed: int = 0) -> None:
        pass

    def init(self, rng: jax.Array) -> dict[str, jax.Array]:
        sizes = {"embed": (4, 3), "one": (3, 5), "bias": (5,), "two": (5, 2)}
        return {name: jnp.sin(jnp.arange(np.prod(size)) + len(name)).reshape(size) for name, size in sizes.items()}

    def loss(self, params: Any, batch: Any, rng: Any = None) -> Any:
        inside = jnp.tanh(batch @ params["embed"] @ params["one"] + params["bias"])
        return jnp.mean((inside @ params["two"] - batch[:, :2]) ** 2), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adamw(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        return np.asarray(samples(np.arange(start, start + count)))

    held_out = batch

    def tokens(self, count: int) -> int:
        return count


def samples(numbers: Any) -> Any:
    return jnp.sin(jnp.asarray(numbers, jnp.float32)[:, None] * jnp.asarray([0.7, 1.1, 1.7, 2.3]))


def cell(momentum: float) -> Cell:
    plain = Cell(0, 0, 0, 0, RATE, 0, 0.0, 0.0, Ramp(0.7, 0.7, 0.7, 0, 0), Ramp(*[momentum] * 3, 0, 0), 0.0)
    return plain._replace(**CONSTANT)


@pytest.mark.parametrize(
    ("fragments", "tau", "merge", "learners"), [(3, 2, "rda", 4), (4, 0, "avg", 3), (1, 0, "rda", 2), (1, 0, "avg", 1)]
)
def test_the_program_gives_the_parameters_of_the_machines(fragments: int, tau: int, merge: str, learners: int) -> None:
    machines = LockStep(
        task=Matrices(),
        sync=SyncConfig(P=fragments, H=H, tau=tau, overlap="strict", quorum="all", grace="infinite"),
        outer_config=OuterConfig(lr=0.7, momentum=0.5, merge=merge),
        inner=InnerConfig(lr=RATE, schedule="constant", warmup=0.0),
        learners=dict.fromkeys("abcd"[:learners], 2),
        quorum=learners,
        budget=Budget(None, ROUNDS * H),
    )
    machines.run()
    starts = np.zeros((2 * ROUNDS * H, learners), np.int32)
    for said in machines.facts:
        if isinstance(said.fact, StepFinished) and said.fact.step <= len(starts):
            starts[said.fact.step - 1, "abcd".index(said.writer)] = said.fact.position

    def batch(_: Any, data: Any, numbers: Any) -> Any:
        return samples(jnp.asarray(data).reshape(-1)[numbers // 2] + numbers % 2)

    begun = Matrices().init(jax.random.key(0))
    task = Task(lambda *_: begun, begun, lambda params, given: Matrices().loss(params, given)[0], batch, batch)
    program = Program(learners, 2, fragments, tau, "adamw", (), merge, "fp32", "fp32", 0.0, False)
    found = jax.jit(simulate(program, task, H))(cell(0.5), np.resize(starts, EVALUATED), ROUNDS)
    tree = ParameterTree.of(Matrices())
    for part, theta in zip(machines.fragments, machines.parameters.thetas, strict=True):
        np.testing.assert_allclose(tree.read(found["theta"], part), theta, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("codec", ["bf16", "int8", "fp4"])
def test_a_format_rounds_as_the_learners_do(codec: str) -> None:
    sizes = np.geomspace(1e-6, 1.0, 1000)
    numbers = (np.random.default_rng(0).normal(size=1000) * sizes).astype(np.float32)
    sent = named(codec).decode(named(codec).encode(numbers, 7 + (11 << 32)), numbers.size)
    found = np.asarray(rounded(codec, jnp.asarray(numbers), np.uint32(7), np.uint32(11)))
    np.testing.assert_allclose(found, sent, rtol=1e-6)
