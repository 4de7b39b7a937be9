"""The lock-step shell: learners of several speeds."""

from __future__ import annotations

from collections import Counter

from benchmarks.harness.lockstep import LockStep
from learners.protocol.facts import StepFinished
from outer.config import OuterConfig, SyncConfig
from outer.protocol.syncer import Budget
from tests.orchestrator.checkers.test_lockstep_log import INNER, TASK


def test_a_slow_learner_steps_as_often_as_its_slowdown_says() -> None:
    one = LockStep(
        task=TASK,
        sync=SyncConfig(P=3, H=6, tau=2),
        outer_config=OuterConfig(),
        inner=INNER,
        learners={"a": 2, "b": 4, "c": 4},
        quorum=2,
        budget=Budget(tokens=None, syncer_steps=18),
        span_steps=4,
        slowdowns={"b": 2.0, "c": 1.5},
    )
    one.run()
    steps = Counter(said.writer for said in one.facts if isinstance(said.fact, StepFinished) and said.at <= 12.0)
    assert steps == {"a": 12, "b": 6, "c": 8}
