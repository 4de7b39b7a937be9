"""Held-out loss of decoupled training beside data-parallel: many small runs at once as one compiled program.

    python benchmarks/harness/quality.py benchmarks/quality.toml --data runs/quality --prepare
    python benchmarks/harness/quality.py benchmarks/quality.toml --data runs/quality --out runs/quality/rows.jsonl
    python benchmarks/harness/quality.py benchmarks/quality.toml --out runs/quality/rows.jsonl --table

Trains the arms of the TOML file in its order: each at every rate of its grid with the screening seeds, then at its best
rate with the reported seeds. An arm is Decoupled DiLoCo in strict overlap, without faults, by the equations of
docs/protocol.md; tests/benchmarks/test_quality.py compares it with the machines. A finished run is a line of --out, and
is not trained again. Needs jax, optax, scipy and pydantic alone, but for --prepare.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from learners.training.models import decoder  # noqa: E402
from learners.training.models.decoder_config import DecoderConfig  # noqa: E402
from outer.numeric.optimizer import resolve  # noqa: E402
from outer.protocol.fragments import Fragment, Tensor, balanced  # noqa: E402

EVALUATED = 512  # held-out samples
COMPILERS = 6
GROUP = 128  # elements that share a scale, as in outer/numeric/grouped.py
LEAST = 2.0**-6  # the smallest number but 0 of fp4, as there
INNER_SHAPES = ("cosine", "linear", "constant")


class Program(NamedTuple):
    """What is compiled: everything of an arm but numbers that a cell gives."""

    learners: int
    batch: int  # samples of a learner's step
    fragments: int
    tau: int
    optimizer: str
    options: tuple[tuple[str, float], ...]  # numbers only
    merge: str
    codec: str
    downlink: str
    feedback: float
    absent: bool


class Ramp(NamedTuple):
    """A number over the run's progress: from start to peak in the warm-up, to end in the cool-down."""

    peak: float
    start: float
    end: float
    warmup: float  # share of the run
    cooldown: float


class Cell(NamedTuple):
    """One run of a program, as numbers."""

    corpus: int
    order: int  # row of Data.orders
    start: int  # row of Data.initial
    seed: int
    rate: float
    shape: int  # of INNER_SHAPES
    warmup: float
    final: float
    outer_lr: Ramp
    momentum: Ramp
    absent: float  # share of (learner, round) pairs whose contributions are lost


class Data(NamedTuple):
    """Tokens of the corpora, and where samples begin."""

    train: Any  # uint16[corpora, tokens], padded with zeros
    held_out: Any  # the same
    orders: Any  # int32[rows, samples]: for each corpus and seed, every window once an epoch, in an order of its own
    held_out_starts: Any  # int32[corpora, EVALUATED]
    initial: Any  # parameters [seeds, ...]


# ------------------------------------------------------------------ the algorithm


def ramped(ramp: Ramp, progress: Any) -> Any:
    """The number at progress in [0, 1]: piecewise linear."""
    rising = jnp.clip(progress / jnp.maximum(ramp.warmup, 1e-9), 0.0, 1.0)
    falling = jnp.clip((1.0 - progress) / jnp.maximum(ramp.cooldown, 1e-9), 0.0, 1.0)
    risen = ramp.start + (ramp.peak - ramp.start) * rising
    return jnp.where(progress < 1.0 - ramp.cooldown, risen, ramp.end + (ramp.peak - ramp.end) * falling)


def inner_scale(cell: Cell, progress: Any) -> Any:
    """learners/training/step.py's schedule for traced numbers."""
    rising = 0.1 + 0.9 * progress / jnp.maximum(cell.warmup, 1e-9)
    done = jnp.clip((progress - cell.warmup) / (1.0 - cell.warmup), 0.0, 1.0)
    shapes = jnp.stack([0.5 * (1.0 + jnp.cos(jnp.pi * done)), 1.0 - done, jnp.ones_like(done)])
    return jnp.where(progress < cell.warmup, rising, cell.final + (1.0 - cell.final) * shapes[cell.shape])


def average(gradients: jax.Array, weights: jax.Array) -> jax.Array:
    # No matrix product: on a GPU its numbers would be rounded to TF32.
    return jnp.sum(gradients * weights.reshape(-1, *[1] * (gradients.ndim - 1)), axis=0)


def radial_directional(gradients: jax.Array, weights: jax.Array) -> jax.Array:
    """outer/numeric/rules.py's RDA of [M, ...] with one vector a tensor."""
    norms = jnp.sqrt(jnp.sum(gradients**2, axis=range(1, gradients.ndim)))
    directions = jnp.where(norms > 0.0, weights / jnp.where(norms > 0.0, norms, 1.0), 0.0)
    along = average(gradients, directions)
    length = jnp.linalg.norm(along)
    agree = length >= 0.5 * jnp.sqrt(jnp.sum(weights**2)) / jnp.sum(weights)
    radius = jnp.sum(norms * weights)
    return jnp.where(agree, along * radius / jnp.where(agree, length, 1.0), average(gradients, weights))


MERGES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "avg": average,
    "rda": radial_directional,
}


def drawn(index: jax.Array, low: Any, high: Any) -> jax.Array:
    """32 random bits for elements uint32[n]: outer/numeric/grouped.py's hash, which compiles fast."""
    x: jax.Array = index * jnp.uint32(0x9E3779B9) ^ jnp.uint32(low)
    x = (x ^ x >> 16) * jnp.uint32(0x7FEB352D) ^ jnp.uint32(high)
    x = (x ^ x >> 15) * jnp.uint32(0x846CA68B)
    return jnp.bitwise_xor(x, x >> 16)


def fraction(bits: jax.Array) -> jax.Array:
    """float32 in [0, 1) of random bits."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def rounded(codec: str, numbers: jax.Array, low: Any, high: Any) -> jax.Array:
    """What arrives of float32[n] sent in a format of outer/numeric/formats.py; `low`, `high`: seed the rounding."""
    if codec == "fp32":
        return numbers
    if codec == "bf16":
        return numbers.astype(jnp.bfloat16).astype(jnp.float32)
    groups = jnp.pad(numbers, (0, -numbers.size % GROUP)).reshape(-1, GROUP)
    scale = jnp.max(jnp.abs(groups), axis=1, keepdims=True) / (127.0 if codec == "int8" else 1.0)
    x = groups / jnp.where(scale > 0.0, scale, 1.0)
    bits = drawn(jnp.arange(x.size, dtype=jnp.uint32), low, high).reshape(x.shape)
    if codec == "int8":
        codes = jnp.clip(jnp.floor(x + fraction(bits)), -127.0, 127.0)
    else:
        assert codec == "fp4", codec
        size = jnp.abs(x)
        up = jax.lax.bitcast_convert_type(size, jnp.uint32) + (bits & 0x7FFFFF)  # carries into the exponent at random
        power = jnp.minimum(jax.lax.bitcast_convert_type(up & 0x7F800000, jnp.float32), 1.0)
        little = jnp.where(size > fraction(bits) * LEAST, LEAST, 0.0)
        codes = jnp.sign(x) * jnp.where(size >= LEAST, power, little)
    return (codes * scale).reshape(-1)[: numbers.size]


def optimizer_of(program: Program) -> optax.GradientTransformation:
    """At rate 1: a step multiplies its updates."""
    made = resolve("inner", program.optimizer, 1.0, dict(program.options))
    return optax.chain(optax.clip_by_global_norm(1.0), made)


class Task(NamedTuple):
    """What is trained. `loss`: (parameters, samples) -> nats."""

    init: Callable[[Cell, Any], Any]  # (cell, data) -> parameters
    shapes: Any  # of the parameters
    loss: Callable[[Any, Any], jax.Array]
    batch: Callable[[Cell, Any, Any], Any]  # (cell, data, sample numbers int32[n]) -> samples
    held_out: Callable[[Cell, Any, Any], Any]


def simulate(program: Program, task: Task, round_steps: int) -> Callable[..., dict[str, jax.Array]]:
    """(cell, data, rounds) -> held-out loss of the outer parameters, and these.

    Learner m takes samples [m batch, (m + 1) batch) of each step's. After syncer step s the fragment due is merged
    from the learners' parameters, and is adopted after step s + tau.
    """
    shapes, structure = jax.tree.flatten_with_path(task.shapes)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in shapes]
    tensors = [Tensor(name, leaf.shape, "float32") for name, (_, leaf) in zip(names, shapes, strict=True)]
    parts = balanced(tensors, program.fragments)
    part_of = {tensor.name: part.index for part in parts for tensor in part.tensors}
    of_leaf = [part_of[name] for name in names]
    rules = [
        average if "embed" in name or len(leaf.shape) <= 1 else MERGES[program.merge]
        for name, (_, leaf) in zip(names, shapes, strict=True)
    ]
    due = np.full(round_steps, len(parts))
    due[[part.index * round_steps // len(parts) for part in parts]] = np.arange(len(parts))
    optimizer, count = optimizer_of(program), program.learners
    exact = program.codec == "fp32"

    def merge_of(part: Fragment) -> Callable[..., Any]:
        """Merge a fragment: changes its leaves of theta, velocity, published values and residuals."""
        members = [names.index(tensor.name) for tensor in part.tensors]
        edges = np.cumsum([tensor.size for tensor in part.tensors])[:-1]

        def flat(leaves: Sequence[Any], axes: int) -> jax.Array:
            return jnp.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], axis=-1)

        def parted(given: jax.Array, like: Sequence[Any]) -> list[jax.Array]:
            return [each.reshape(leaf.shape) for each, leaf in zip(jnp.split(given, edges, -1), like, strict=True)]

        def merge(params: Any, outer: Any, lr: Any, momentum: Any, weights: Any, low: Any, high: Any) -> Any:
            theta, velocity, published, residuals = (list(each) for each in outer)
            gradients = [published[leaf] - params[leaf] for leaf in members]
            if not exact:
                if program.feedback:
                    gradients = [new + residuals[leaf] for new, leaf in zip(gradients, members, strict=True)]
                lows = low + 1 + jnp.arange(count, dtype=jnp.uint32)
                encode = jax.vmap(partial(rounded, program.codec), (0, 0, None))
                sent = parted(encode(flat(gradients, 1), lows, high), gradients)
                for place, leaf in enumerate(members if program.feedback else ()):
                    residuals[leaf] = program.feedback * (gradients[place] - sent[place])
                gradients = sent
            for leaf, each in zip(members, gradients, strict=True):
                merged = rules[leaf](each, weights) if count > 1 else each[0]
                velocity[leaf] = merged + momentum * velocity[leaf]
                theta[leaf] = theta[leaf] - lr * (merged + momentum * velocity[leaf])
            moved = [theta[leaf] - published[leaf] for leaf in members]
            if program.downlink != "fp32":
                moved = parted(rounded(program.downlink, flat(moved, 0), low, high), moved)
            for leaf, each in zip(members, moved, strict=True):
                published[leaf] = theta[leaf] if program.downlink == "fp32" else published[leaf] + each
            return theta, velocity, published, residuals

        return merge

    merges = [merge_of(part) for part in parts] + [lambda params, outer, *_: outer]
    tree = partial(jax.tree.unflatten, structure)

    def run(cell: Cell, data: Any, rounds: Any) -> dict[str, jax.Array]:
        steps = rounds * round_steps
        theta = jax.tree.leaves(task.init(cell, data))
        params = [jnp.broadcast_to(leaf, (count, *leaf.shape)) for leaf in theta]
        zeros = [jnp.zeros_like(leaf) for leaf in theta]
        residuals = [jnp.zeros_like(leaf) for leaf in params] if program.feedback else []
        outer = theta, zeros, theta, residuals
        gradient = jax.vmap(jax.grad(task.loss))

        def step(number: Any, state: Any) -> Any:
            params, moments, outer = state
            samples = number * count * program.batch + jnp.arange(count * program.batch)
            batch = task.batch(cell, data, samples)
            batch = batch.reshape(count, program.batch, *batch.shape[1:])
            gradients = gradient(tree(params), batch)
            updates, moments = jax.vmap(optimizer.update)(gradients, moments, tree(params))
            rate = cell.rate * inner_scale(cell, number / steps)
            params = [old + rate * new for old, new in zip(params, jax.tree.leaves(updates), strict=True)]
            done = number + 1
            progress = done / steps
            here = fraction(drawn(jnp.arange(count, dtype=jnp.uint32), done // round_steps, cell.seed))
            present = (here >= cell.absent) | (here == here.max()) if program.absent else jnp.ones(count)
            outer = jax.lax.switch(
                jnp.asarray(due)[done % round_steps], merges, params, outer, ramped(cell.outer_lr, progress),
                ramped(cell.momentum, progress), present / jnp.sum(present), jnp.uint32(done * 256),
                jnp.uint32(cell.seed),
            )  # fmt: skip
            adopted = jnp.where(done > program.tau, jnp.asarray(due)[(done - program.tau) % round_steps], -1)
            params = [
                jnp.where(adopted == part, new, old) for part, new, old in zip(of_leaf, outer[2], params, strict=True)
            ]
            return params, moments, outer

        begun = (params, jax.vmap(optimizer.init)(tree(params)), outer)
        _, _, outer = jax.lax.fori_loop(0, steps, step, begun)
        numbers, published = jnp.arange(EVALUATED).reshape(-1, 32), tree(outer[2])
        loss = jnp.mean(jax.lax.map(lambda each: task.loss(published, task.held_out(cell, data, each)), numbers))
        return {"loss": loss, "theta": outer[2]}

    return run


def language(model: Mapping[str, Any], length: int) -> Task:
    """The decoder on tokens."""
    config = DecoderConfig(**model)

    def batch(cell: Cell, data: Data, numbers: jax.Array) -> jax.Array:
        return read(data.train, cell.corpus, data.orders[cell.order, numbers])

    def held_out(cell: Cell, data: Data, numbers: jax.Array) -> jax.Array:
        return read(data.held_out, cell.corpus, data.held_out_starts[cell.corpus, numbers])

    def read(tokens: jax.Array, corpus: Any, starts: jax.Array) -> jax.Array:
        return tokens[corpus, starts[:, None] + jnp.arange(length + 1)].astype(jnp.int32)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        return decoder.loss(params, tokens, config)

    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), config, config.vocabulary))
    return Task(
        lambda cell, data: jax.tree.map(lambda leaf: leaf[cell.start], data.initial), shapes, loss, batch, held_out
    )


def initial(model: Mapping[str, Any], seeds: Sequence[int]) -> Any:
    """The parameters that each seed begins with, [seeds, ...]."""
    config = DecoderConfig(**model)
    return jax.jit(jax.vmap(lambda seed: decoder.init(jax.random.key(seed), config, config.vocabulary)))(
        jnp.array(seeds)
    )


# ------------------------------------------------------------------ arms and jobs


class Run(NamedTuple):
    """One cell with what names it in a row."""

    arm: str
    corpus: str
    rounds: int
    rate: float
    seed: int


@dataclass(frozen=True)
class Job:
    """Cells of one program and length, from one stage of the file."""

    program: Program
    rounds: int
    arms: tuple[Mapping[str, Any], ...]
    reported: bool  # else screening


def program_of(arm: Mapping[str, Any]) -> Program:
    table = {name: arm[name] for name in Program._fields}
    return Program(**table | {"options": tuple(arm["options"].items()), "absent": arm["absent"] > 0.0})


def arms_of(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arms, with what [common] says where they do not."""
    return [plan["common"] | arm for arm in plan["arms"]]


def jobs_of(plan: Mapping[str, Any]) -> list[Job]:
    """In order of stages; screening, at an arm's least rounds, before what is reported; arms in the file's order."""
    found: dict[tuple[int, bool, int, Program], list[Mapping[str, Any]]] = {}
    for arm in arms_of(plan):
        wanted = [(False, arm["rounds"][0]), *((True, rounds) for rounds in arm["rounds"] if arm["report"])]
        for reported, rounds in wanted:
            found.setdefault((arm["stage"], reported, rounds, program_of(arm)), []).append(arm)
    keys = sorted(found, key=lambda key: key[:3])
    return [Job(key[3], key[2], tuple(found[key]), key[1]) for key in keys]


def ramp_of(given: float | Mapping[str, float]) -> Ramp:
    table = given if isinstance(given, Mapping) else {"peak": given}
    peak = table["peak"]
    assert set(table) <= set(Ramp._fields), table
    return Ramp(*(float(table.get(key, peak if key in ("start", "end") else 0.0)) for key in Ramp._fields))


class Study:
    """The rows of --out, and what is left to do."""

    def __init__(self, plan: Mapping[str, Any], out: Path) -> None:
        self.plan, self.arms, self._out = plan, arms_of(plan), out
        assert {arm["against"] for arm in self.arms} <= {arm["name"] for arm in self.arms}
        lines = out.read_text().splitlines() if out.exists() else []
        self.rows: dict[Run, dict[str, Any]] = {}
        for row in map(json.loads, lines):
            self.rows[Run(*(row[name] for name in Run._fields))] = row
        self._seeds = [*plan["screening"], *plan["seeds"]]

    def runs(self, job: Job) -> list[tuple[Mapping[str, Any], Run]]:
        """What is left of a job. Without screening of an arm its middle rate is the best."""
        found = []
        for arm in job.arms:
            for corpus in self.plan["corpora"]:
                rates = [self.best(arm, corpus)] if job.reported else arm["rates"]
                seeds = self.plan["seeds"] if job.reported else self.plan["screening"]
                found += [(arm, Run(arm["name"], corpus, job.rounds, rate, seed)) for seed in seeds for rate in rates]
        return [(arm, run) for arm, run in found if run not in self.rows]

    def best(self, arm: Mapping[str, Any], corpus: str) -> float:
        """The rate with the least mean loss of the screening seeds, which train for the arm's least rounds."""
        means = {}
        for rate in arm["rates"]:
            runs = [Run(arm["name"], corpus, arm["rounds"][0], rate, seed) for seed in self.plan["screening"]]
            losses = [self.rows[run]["loss"] for run in runs if run in self.rows]
            if losses and all(map(math.isfinite, losses)):
                means[rate] = sum(losses) / len(losses)
        return float(min(means, key=means.__getitem__) if means else arm["rates"][len(arm["rates"]) // 2])

    def cell(self, arm: Mapping[str, Any], run: Run) -> Cell:
        inner, outer = arm["inner"], arm["outer"]
        corpus = self.plan["corpora"].index(run.corpus)
        order = corpus * len(self._seeds) + self._seeds.index(run.seed)
        shape = INNER_SHAPES.index(inner["schedule"])
        ramps = ramp_of(outer["lr"]), ramp_of(outer["momentum"])
        start = self._seeds.index(run.seed)
        return Cell(
            corpus, order, start, run.seed, run.rate, shape, inner["warmup"], inner["final"], *ramps, arm["absent"]
        )

    def add(self, run: Run, found: Mapping[str, Any]) -> None:
        self.rows[run] = row = run._asdict() | dict(found)
        with self._out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def data(self, folder: Path, jobs: Sequence[Job]) -> Data:
        """The prepared tokens, and the order of samples, as many as the longest job takes."""
        plan, length = self.plan, self.plan["length"]
        files = [np.load(folder / f"{corpus}.npz") for corpus in plan["corpora"]]
        train, held_out = ([file[part] for file in files] for part in ("train", "held_out"))
        samples = plan["round_steps"] * max(job.rounds * job.program.learners * job.program.batch for job in jobs)
        orders = [order(len(each), length, samples, seed) for each in train for seed in self._seeds]
        windows = [(len(each) - 1) // length for each in held_out]
        starts = [np.arange(EVALUATED) * (count // EVALUATED) * length for count in windows]
        assert min(windows) >= EVALUATED, "the held-out text is too short"
        begun = initial(plan["model"], self._seeds)
        return Data(padded(train), padded(held_out), np.array(orders, np.int32), np.array(starts, np.int32), begun)


def order(tokens: int, length: int, samples: int, seed: int) -> NDArray[np.int64]:
    """Where samples begin, as learners/training/data/token_corpus.py: each epoch at its own phase, in its own order."""
    windows, drawn = (tokens - length) // length, np.random.default_rng([seed, tokens])
    epochs = [drawn.integers(length) + length * drawn.permutation(windows) for _ in range(-(-samples // windows))]
    return np.concatenate(epochs)[:samples]


def padded(arrays: Sequence[NDArray[np.uint16]]) -> NDArray[np.uint16]:
    most = max(map(len, arrays))
    return np.stack([np.pad(each, (0, most - len(each))) for each in arrays])


# ------------------------------------------------------------------ running them


class Runner:
    """Compiles programs ahead in threads, and runs cells many at a time until the time is over."""

    def __init__(self, study: Study, data: Data, lanes: int, compilers: int) -> None:
        """`lanes`: cells of one call."""
        self._study, self._lanes = study, lanes
        self._data = jax.device_put(data)
        self._task = language(study.plan["model"], study.plan["length"])
        shapes = jax.tree.leaves(self._task.shapes)
        self.parameters = sum(leaf.size for leaf in shapes)
        self._pool = ThreadPoolExecutor(compilers)
        self._compiled: dict[Program, Future[Any]] = {}
        self._speeds: dict[Program, float] = {}  # tokens a second

    def expect(self, job: Job) -> None:
        """Begin to compile what a job needs."""
        if self._study.runs(job):
            self._program(job.program)

    def _program(self, program: Program) -> Future[Any]:
        if program not in self._compiled:
            self._compiled[program] = self._pool.submit(self._compile, program)
        return self._compiled[program]

    def _compile(self, program: Program) -> tuple[Any, float]:
        begun = time.monotonic()
        run = simulate(program, self._task, self._study.plan["round_steps"])
        none = Ramp(0.0, 0.0, 0.0, 0.0, 0.0)
        cell = Cell(0, 0, 0, 0, 1.0, 0, 0.0, 0.0, none, none, 0.0)
        every = jax.jit(jax.vmap(lambda *given: {**run(*given), "theta": None}, in_axes=(0, None, None)))
        compiled = every.lower(stacked([cell] * self._lanes), self._data, np.int32(1)).compile()
        return compiled, time.monotonic() - begun

    def run(self, job: Job, until: float) -> bool:
        """Run what is left of a job. Returns whether the time allows more."""
        left = self._study.runs(job)
        if not left:
            return True
        lanes = self._lanes
        compiled, compile_s = self._program(job.program).result(max(0.1, until - time.monotonic()))
        tokens = job.rounds * self._study.plan["round_steps"] * job.program.learners * job.program.batch
        tokens *= self._study.plan["length"] * lanes
        for first in range(0, len(left), lanes):
            some = left[first : first + lanes]
            given = [self._study.cell(*each) for each in some]
            cells = stacked([*given, *[given[-1]] * (lanes - len(some))])
            if job.program not in self._speeds:
                self._speeds[job.program] = self._speed(compiled, cells, tokens / job.rounds)
            needed = tokens / self._speeds[job.program]
            if time.monotonic() + needed > until:
                print(f"{needed:.0f} s for {len(some)} runs of {job.program} are not left", flush=True)
                return False
            begun = time.monotonic()
            found = jax.device_get(compiled(cells, self._data, np.int32(job.rounds)))
            seconds = time.monotonic() - begun
            self._speeds[job.program] = tokens / seconds
            for place, (_, run) in enumerate(some):
                self._study.add(run, {"loss": float(found["loss"][place])})
            flops = 6 * self.parameters * tokens / seconds
            print(
                f"{len(some)} {'reported' if job.reported else 'screening'}, {job.rounds} rounds: {seconds:.1f} s, "
                f"{tokens / seconds / 1e6:.2f} M tokens/s, {flops / 1e12:.2f} TFLOP/s; compiled in {compile_s:.0f} s; "
                f"{lanes} lanes of {job.program}",
                flush=True,
            )
        return True

    def _speed(self, compiled: Any, cells: Cell, tokens: float) -> float:
        """Tokens a second, from five rounds and from one, which have `tokens` each: the rest is evaluation."""
        seconds = []
        for rounds in (1, 1, 5):
            begun = time.monotonic()
            jax.device_get(compiled(cells, self._data, np.int32(rounds)))
            seconds.append(time.monotonic() - begun)
        return 4 * tokens / max(seconds[2] - seconds[1], 1e-3)


def stacked(cells: Sequence[Cell]) -> Cell:
    wide: Cell = jax.tree.map(
        lambda *each: np.array(each, np.int32 if isinstance(each[0], int) else np.float32), *cells
    )
    return wide


def train(study: Study, folder: Path, minutes: float, lanes: int, part: tuple[int, int]) -> None:
    """All jobs, in their order; one that fails is told, and the next one begun."""
    until = time.monotonic() + 60.0 * minutes
    jobs = jobs_of(study.plan)
    gpu = jax.default_backend() != "cpu"
    runner = Runner(study, study.data(folder, jobs), lanes, COMPILERS if gpu else 1)
    programs = list(dict.fromkeys(job.program for job in jobs))  # an arm's jobs are of one process
    mine = [job for job in jobs if programs.index(job.program) % part[1] == part[0]]
    print(f"{jax.devices()}; {runner.parameters:,} parameters; {len(mine)} jobs", flush=True)
    for job in mine:
        runner.expect(job)
    for job in mine:
        try:
            done = runner.run(job, until)
        except Exception as error:
            print(f"failed: {job.program}: {type(error).__name__}: {str(error)[:500]}", flush=True)
            continue
        for arm in job.arms if done else ():
            for corpus in study.plan["corpora"]:
                print(line(study, arm, corpus, job.rounds, job.reported), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a compilation that nobody waits for would go on


# ------------------------------------------------------------------ what was found


def gaps(study: Study, arm: Mapping[str, Any], corpus: str, rounds: int, reported: bool) -> list[float]:
    """Of each seed the loss over that of the arm in `against`, each at its own best rate, in per cent."""
    against = {each["name"]: each for each in study.arms}[arm["against"]]
    seeds, found = study.plan["seeds" if reported else "screening"], []
    for seed in seeds:
        rows = [
            study.rows.get(Run(each["name"], corpus, rounds, study.best(each, corpus), seed)) for each in (arm, against)
        ]
        if rows[0] and rows[1]:
            found.append(100.0 * (rows[0]["loss"] / rows[1]["loss"] - 1.0))
    return found


def interval(samples: Sequence[float]) -> str:
    """The mean with half of Student's 95 % interval."""
    if len(samples) < 2:
        return f"{samples[0]:+.2f}" if samples else "-"
    half = float(stdtrit(len(samples) - 1, 0.975)) * statistics.stdev(samples) / math.sqrt(len(samples))
    return f"{statistics.fmean(samples):+.2f} ± {half:.2f}"


def line(study: Study, arm: Mapping[str, Any], corpus: str, rounds: int, reported: bool) -> str:
    """A row of the table: arm, corpus, rounds, rate, loss, and gap in per cent."""
    best = study.best(arm, corpus)
    edge = "*" if best in (arm["rates"][0], arm["rates"][-1]) else ""
    seeds = study.plan["seeds" if reported else "screening"]
    rows = [study.rows.get(Run(arm["name"], corpus, rounds, best, seed)) for seed in seeds]
    losses = [row["loss"] for row in rows if row]
    mean = f"{statistics.fmean(losses):.4f}" if losses else "-"
    gap = interval(gaps(study, arm, corpus, rounds, reported))
    return " | ".join(["", arm["name"], corpus, str(rounds), f"{best:g}{edge}", mean, gap, str(len(losses)), ""])


def table(study: Study) -> str:
    """Every arm that has rows, in Markdown; a rate with a star is at the edge of its grid."""
    head = ["arm", "corpus", "rounds", "rate", "loss", "gap, %", "seeds"]
    lines = [" | ".join(["", *head, ""]), "|---" * len(head) + "|"]
    for reported in (False, True):
        for arm in study.arms:
            for rounds in arm["rounds"]:
                for corpus in study.plan["corpora"]:
                    made = line(study, arm, corpus, rounds, reported)
                    lines += [made] * (" | - | - " not in made)
        lines.append("")
    return "\n".join(each.strip(" ") for each in lines)


# ------------------------------------------------------------------ the corpora


def sources() -> dict[str, list[str]]:
    """Texts by corpus: Python's standard library; docstrings of installed packages, without code, and READMEs."""
    import sysconfig

    library, site = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    own = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    prose: dict[str, None] = {}
    for path in sorted(site.rglob("*.py")):
        try:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        except (SyntaxError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        prose |= dict.fromkeys(ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds))
    readmes = [path for end in ("*.md", "*.rst", "METADATA") for path in sorted(site.rglob(end))]
    prose |= dict.fromkeys(path.read_text(encoding="utf-8", errors="replace") for path in readmes)
    plain = dict.fromkeys(
        "\n".join(row for row in text.splitlines() if not row.lstrip().startswith((">>>", "..."))) for text in prose
    )
    return {
        "python": [path.read_text(encoding="utf-8", errors="replace") for path in own],
        "prose": [text for text in plain if len(text) >= 200],
    }


def prepare_corpora(folder: Path, vocabulary: int) -> None:
    """Tokenize the corpora with `diloco data prepare`, each with a BPE of its own, into arrays of uint16."""
    from learners.config import DataConfig
    from learners.training.data.token_corpus import TokenCorpus
    from orchestrator.prepare.preparation import PrepareOptions, prepare

    for corpus, texts in sources().items():
        given, made = folder / f"{corpus}.jsonl", folder / f"{corpus}-tokens"
        folder.mkdir(parents=True, exist_ok=True)
        given.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        told = prepare(
            PrepareOptions((str(given),), made, train_bpe=vocabulary, held_out=0.05), lambda stage, done, total: None
        )
        found = TokenCorpus(DataConfig(kind="tokens", path=str(made)), 0)
        parts = {"train": found.train, "held_out": found.held_out}
        arrays = {part: stream.read(np.zeros(1, np.int64), stream.tokens)[0] for part, stream in parts.items()}
        np.savez_compressed(folder / f"{corpus}.npz", **arrays)
        print(corpus, {key: told[key] for key in ("vocabulary", "tokens", "tokens_held_out", "documents", "bytes")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, help="the TOML file of arms")
    parser.add_argument("--data", type=Path, help="the folder of the prepared corpora")
    parser.add_argument("--prepare", action="store_true", help="prepare the corpora, and end")
    parser.add_argument("--out", type=Path, help="rows of finished runs, one JSON object a line")
    parser.add_argument("--table", action="store_true", help="print the table of --out, and end")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing that would take longer")
    parser.add_argument("--lanes", type=int, default=0, help="runs of one call [GPU 10, CPU 2]")
    parser.add_argument("--part", type=int, nargs=2, metavar=("I", "N"), help="programs I, I + N, ... alone")
    given = parser.parse_args()
    plan = tomllib.loads(given.plan.read_text())
    if given.prepare:
        prepare_corpora(given.data, plan["model"]["vocabulary"])
    elif given.table:
        print(table(Study(plan, given.out)))
    elif jax.default_backend() == "cpu" and given.part is None and (cores := os.cpu_count() or 1) > 1:
        parts = [[sys.executable, *sys.argv, "--part", str(part), str(cores)] for part in range(cores)]
        sys.exit(max(each.wait() for each in [subprocess.Popen(part) for part in parts]))
    else:
        lanes = given.lanes or (2 if jax.default_backend() == "cpu" else 10)
        train(Study(plan, given.out), given.data, given.minutes, lanes, tuple(given.part or (0, 1)))


if __name__ == "__main__":
    main()
