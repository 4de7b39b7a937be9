"""The regression gate: what the hot paths cost, as multiples of a plain computation in the same process.

The simulator's cost is in calls. The numbers after `normal` are ratios seen on an idle machine. Lower one when a change
makes its path faster; raise one only with a reason in the commit. benchmarks/ measures the same paths in seconds.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.harness import lockstep
from chaos.simulation import runner
from learners.config import DataConfig, InnerConfig
from learners.training.models.causal_lm import CausalLM
from learners.training.step import make_step, schedule, step_key, transformation
from learners.training.tree import deal
from orchestrator.analysis.checks import check
from orchestrator.eventlog.tables import part_of
from outer.config import OuterConfig, SyncConfig
from outer.numeric.parameters import GlobalParameters
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.syncer import Budget
from tests.orchestrator.histories import END, script

pytestmark = pytest.mark.full

ROWS, COLUMNS, CONTRIBUTORS, MERGES = 1024, 4096, 4, 3
STEPS, ROUND, BATCH, SEED = 24, 12, 8, 3
SEEDS = range(1, 4)
LOOP, SECONDS = 200_000, 3_000
ROUNDS = 5  # of a measurement


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the work and of its reference, the lowest of all rounds, each per unit of its own."""

    work_s: float
    reference_s: float

    @property
    def ratio(self) -> float:
        return self.work_s / self.reference_s


def measure(work: Callable[[], float], reference: Callable[[], float]) -> Cost:
    """Run both in turn, and compare the best of each. Each returns how many units it has done.

    CPU time of this process leaves out the time in which others have the cores; the minimum leaves out what they
    cost in caches; taking turns leaves out a clock that changes.
    """
    best = {work: float("inf"), reference: float("inf")}
    for function in (work, reference):
        function()  # compile, import, fill caches
    for _ in range(ROUNDS):
        for function in (work, reference):
            gc.collect()
            began = time.process_time()
            units = function()
            best[function] = min(best[function], (time.process_time() - began) / units)
    return Cost(best[work], best[reference])


def assert_at_most(name: str, cost: Cost, normal: float) -> None:
    """Fail where the work costs more than twice its normal share: a threefold regression does, a slow machine not."""
    told = f"{name}: {cost.ratio:.3g} times its reference, normally {normal:g}"
    print(told)
    assert cost.ratio <= 2.0 * normal, told


def plain_loop() -> float:
    """The reference of pure Python code: dictionary, list and attribute work. One unit is one turn."""
    table: dict[int, list[int]] = {}
    for number in range(LOOP):
        table.setdefault(number % 997, []).append(number)
        if len(table) > 990:
            table.pop(number % 31, None)
    assert table
    return LOOP


@pytest.mark.parametrize(("rule", "normal"), [("avg", 2.6), ("rda", 3.0)])
def test_a_merge_and_its_step_cost_little_more_than_copying_what_they_read(rule: str, normal: float) -> None:
    tensor = Tensor("layer.weight", (ROWS, COLUMNS), "float32")
    fragment = Fragment(0, (tensor,))
    drawn = np.random.default_rng(0)
    payloads = [drawn.standard_normal(fragment.size, np.float32) for _ in range(CONTRIBUTORS)]
    base, target = np.zeros(fragment.size, np.float32), np.empty(fragment.size, np.float32)
    held = GlobalParameters([fragment], [base], OuterConfig(granularity="row"), "fp32", {tensor.name: rule})

    def work() -> float:
        for _ in range(MERGES):
            held.propose(0, payloads, [0.1, 0.2, 0.3, 0.4])
        return MERGES

    def reference() -> float:
        for _ in range(MERGES):
            for payload in payloads:
                np.copyto(target, payload)
        return MERGES

    assert_at_most(f"merge {rule}", measure(work, reference), normal)


def test_a_synced_step_costs_little_more_than_a_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learner, syncer, reads, merges and adoptions in one process, against the compiled step alone."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    (tmp_path / "more.txt").write_text("pack my box with five dozen liquor jugs\n" * 400)
    data = DataConfig(path=str(tmp_path), held_out=0.25, sequence_length=64)
    task = CausalLM(data=data, seed=SEED, layers=2, width=64, heads=2)
    inner, sync = InnerConfig(), SyncConfig(P=6, H=ROUND, tau=2, quorum=1)

    train_step, optimizer = make_step(task, inner), transformation(task, inner)
    monkeypatch.setattr(lockstep, "make_step", lambda *_: train_step)  # compiled once, for all rounds and both sides

    def work() -> float:
        shell = lockstep.LockStep(
            task=task,
            sync=sync,
            outer_config=OuterConfig(),
            inner=inner,
            learners={"a": BATCH},
            quorum=1,
            budget=Budget(tokens=None, syncer_steps=STEPS),
            span_steps=ROUND,
            seed=SEED,
        )
        shell.run()
        return STEPS

    def reference() -> float:
        params = task.init(jax.random.key(SEED))
        moments = optimizer.init(params)
        for step in range(STEPS):
            scale, batch = np.float32(schedule(inner, step / STEPS)), task.batch(step * BATCH, BATCH)
            params, moments, loss, *_ = train_step(params, moments, batch, step_key(SEED, step * BATCH), scale)
            jax.block_until_ready(loss)
        return STEPS

    assert len(deal(task, sync)) == 6
    assert_at_most("synced step", measure(work, reference), 2.0)


def test_an_event_of_the_simulator_takes_no_more_calls_than_it_did() -> None:
    """Counted, all checks included: its time was 600 turns of a plain loop on one machine and 1,290 on another."""
    runner.run(SEEDS[:1], "mixed")  # imports
    profile = cProfile.Profile()
    events = profile.runcall(runner.run, SEEDS, "mixed")[0].events
    assert sum(entry.callcount for entry in profile.getstats()) <= 400 * events, "normally 336 calls"


def test_checking_a_log_takes_as_long_as_it_did() -> None:
    """One event of a part through all checks, against one turn of a plain loop."""
    run = script()
    for second in range(END + 1, SECONDS):
        for name in run.units:
            run.step(float(second), name)
        run.sync(second, run.units)
    part = part_of(run.events)

    def work() -> float:
        assert len(check([part])) > 30
        return part.rows

    assert_at_most("checked event", measure(work, plain_loop), 180.0)


# ------------------------------------------------------------------ the gate itself


def test_work_that_takes_three_times_as_long_fails() -> None:
    def work(times: int) -> float:
        for _ in range(times):
            plain_loop()
        return LOOP

    assert_at_most("itself", measure(partial(work, 1), plain_loop), 1.0)
    with pytest.raises(AssertionError, match="normally 1"):
        assert_at_most("three times", measure(partial(work, 3), plain_loop), 1.0)
