"""A recipe in lock-step: a run folder that every tool takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.lockstep import LockStep
from benchmarks.harness.seed_run import SeedRun
from learners.protocol.facts import StepFinished
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog.reader import read_run
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import record
from outer.protocol.schedule import Budget
from tests.replay.shaken import OneProcess, Points, recipe

WANTED = recipe(30)


@pytest.mark.parametrize("sync", [{}, {"adopt": "rebase"}, {"overlap": "strict"}], ids=str)
def test_a_seeds_folder_passes_every_check_and_is_replayed_to_the_bit(tmp_path: Path, sync: dict[str, Any]) -> None:
    wanted = recipe(30, **sync)
    row = SeedRun(wanted, tmp_path).train()
    assert {verdict.name for verdict in check_run(tmp_path) if verdict.status in ("violated", "unknown")} == set()
    assert row["ok"] and row["eval_loss"] == row["evaluations"][-1][1] < row["evaluations"][0][1]
    tape, points = record(read_run(tmp_path)), Points(wanted.data, wanted.seed)
    replayer = Replayer(tape, wanted, points, OneProcess(tape, wanted, points))
    list(replayer.play())
    assert replayer.finish() == row["digest"] and replayer.tally.bit_equal is True


def test_a_slow_learner_steps_as_often_as_its_slowdown_says() -> None:
    one = LockStep(
        task=Points(WANTED.data, WANTED.seed),
        sync=WANTED.sync,
        outer_config=WANTED.outer,
        inner=WANTED.inner,
        learners={"a": 2, "b": 4, "c": 4},
        quorum=2,
        budget=Budget(tokens=None, syncer_steps=18),
        span_steps=4,
        slowdowns={"b": 2.0, "c": 1.5},
    )
    one.run()
    steps = Counter(said.writer for said in one.facts if isinstance(said.fact, StepFinished) and said.at <= 12.0)
    assert steps == {"a": 12, "b": 6, "c": 8}
