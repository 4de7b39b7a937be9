"""The lock-step shell: slow learners, learners that step together, and a run that another process continues."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learners import lockstep, lockstep_state
from learners.config import DataConfig, InnerConfig
from learners.lockstep import LockStep, Stacked
from learners.protocol.facts import StepFinished
from learners.training.models.language import ByteLanguageModel
from learners.training.step import make_step
from outer.config import OuterConfig, SyncConfig
from outer.protocol.syncer import Budget
from tests.orchestrator.checkers.test_lockstep_log import INNER, TASK

LEARNERS = {"a": 2, "b": 4, "c": 4}
STACKED_BOUND = 1e-5  # of what losses and parameters differ by: a language model's by 1e-6 and 1.2e-7 in 105 steps


@pytest.fixture(autouse=True, scope="module")
def one_compilation() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        step = make_step(TASK, INNER)
        patch.setattr(lockstep, "make_step", lambda task, inner: step)
        yield


def shell(overlap: str = "free", adopt: str = "overwrite", downlink: str = "fp32", **settings: Any) -> LockStep:
    sync = SyncConfig.model_validate(
        {"P": 3, "H": 6, "tau": 2, "overlap": overlap, "adopt": adopt, "downlink": downlink}
    )
    budget = Budget(tokens=None, syncer_steps=18)
    learners: dict[str, Any] = {"learners": LEARNERS, "quorum": 2, "span_steps": 4}
    return LockStep(
        task=TASK, sync=sync, outer_config=OuterConfig(), inner=INNER, budget=budget, **(learners | settings)
    )


@pytest.mark.parametrize("way", [("free", "rebase"), ("strict", "overwrite"), ("free", "overwrite", "int8")], ids=str)
def test_a_run_that_another_process_continues_has_the_same_facts_and_bits(way: tuple[str, ...]) -> None:
    whole = shell(*way, slowdowns={"b": 1.5})
    whole.run()
    for units in (1, 9):
        first = shell(*way, slowdowns={"b": 1.5})
        first.begin()
        for _ in range(units):
            first.advance()
        second = shell(*way, slowdowns={"b": 1.5})
        lockstep_state.restore(second, lockstep_state.pack(first))
        while not second.over:
            second.advance()
        assert repr(second.facts) == repr(whole.facts)
        assert second.parameters.digest() == whole.parameters.digest()


def test_a_damaged_state_or_one_of_other_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match="magic"):
        lockstep_state.restore(shell(), pickle.dumps(print))
    with pytest.raises(ValueError, match="checksum"):
        lockstep_state.restore(shell(), lockstep_state.pack(shell())[:-20])
    with pytest.raises(ValueError, match="cannot be read"):
        lockstep_state.restore(shell(learners={"other": 2}, quorum=1), lockstep_state.pack(shell()))


def test_a_slow_learner_steps_as_often_as_its_slowdown_says() -> None:
    one = shell(slowdowns={"b": 2.0, "c": 1.5})
    one.run()
    steps = Counter(said.writer for said in one.facts if isinstance(said.fact, StepFinished) and said.at <= 12.0)
    assert steps == {"a": 12, "b": 6, "c": 8}


def test_learners_that_step_together_stay_within_a_bound_of_those_that_step_alone() -> None:
    alone, together = shell(), shell(stepper=Stacked(TASK, INNER, LEARNERS.values()))
    for one in (alone, together):
        one.run()
    assert [(said.at, said.writer, type(said.fact)) for said in together.facts] == [
        (said.at, said.writer, type(said.fact)) for said in alone.facts
    ]
    for ours, theirs in zip(together.parameters.thetas, alone.parameters.thetas, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=STACKED_BOUND)


@pytest.mark.full
def test_a_language_models_learners_that_step_together_stay_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockstep, "make_step", make_step)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"the {number} quick brown foxes jump over lazy dogs\n" * 60)
    data, inner = DataConfig(path=str(tmp_path), held_out=0.25, sequence_length=16), InnerConfig()
    task, sizes = ByteLanguageModel(data=data, seed=3, layers=1, width=16, heads=2), dict.fromkeys("abc", 2)
    runs = []
    for stepper in (lockstep.single, Stacked(task, inner, sizes.values())):
        sync, budget = SyncConfig(P=4, H=6, tau=2, quorum=2), Budget(tokens=None, syncer_steps=36)
        settings: dict[str, Any] = {"learners": sizes, "quorum": 2, "span_steps": 4, "seed": 3, "stepper": stepper}
        one = LockStep(task=task, sync=sync, outer_config=OuterConfig(), inner=inner, budget=budget, **settings)
        one.run()
        losses = [said.fact.loss for said in one.facts if isinstance(said.fact, StepFinished)]
        runs.append(np.concatenate([losses, *one.parameters.thetas]))
    np.testing.assert_allclose(*runs, rtol=0.0, atol=STACKED_BOUND)
