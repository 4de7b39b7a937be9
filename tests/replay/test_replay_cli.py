"""`diloco replay`: what it says and with which exit code; the learners are repeated in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from learners.protocol.facts import StepFinished
from orchestrator.cli.app import build
from orchestrator.cli.replay import _told
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunStarted
from orchestrator.eventlog.reader import SEAL_FILE, seal
from orchestrator.recipe.toml_text import dump
from outer.protocol.facts import Committed
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.histories import altered, is_a
from tests.replay.shaken import Shaken

TASK = ("--task", "tests.replay.shaken:Points")


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(build(), ["replay", *map(str, arguments)], catch_exceptions=False)


def folder(place: Path, run: Shaken, events: Iterable[Event]) -> Path:
    """What such a run leaves."""
    place.mkdir()
    (place / "config.toml").write_text(dump(run.recipe))
    write_log(place, list(events))
    return place


@pytest.fixture(scope="module")
def run(shaken_run: Callable[..., Shaken]) -> Shaken:
    return shaken_run()


@pytest.fixture(scope="module")
def recorded(run: Shaken, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("runs") / "shaken", run, run.events)


def test_another_process_gets_the_same_bits(run: Shaken, recorded: Path) -> None:
    done = invoke(recorded, *TASK, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["bit_equal"] is True and told["difference"] is None
    assert told["equal"] == told["compared"] and told["compared"]["final"] == 1
    assert told["digest"] == run.parameters.digest()
    assert told["tokens"] == max(
        event.fact.tokens_committed for event in run.events if isinstance(event.fact, Committed)
    )


def test_a_difference_is_named_with_a_hint_and_exit_code_5(run: Shaken, tmp_path: Path) -> None:
    other = altered(run.events, is_a(StepFinished, step=3), progress=0.5)
    done = invoke(folder(tmp_path / "other", run, other), *TASK, "--until", "12")
    assert done.exit_code == 5, done.output
    assert "bit-equal       no" in done.stdout
    assert "first difference: syncer step " in done.stdout and "in its step 4: recorded" in done.stdout
    assert "commits up to syncer step 12 replayed" in done.stdout
    assert "final           none" in done.stdout, "the end is not reached"


OUTCOME: dict[str, Any] = {
    "name": "run", "commits": 1, "syncer_step": 1, "steps": 2, "seconds": 0.1, "digest": "ab",
    "computed": {"commit": 3, "loss": 3}, "compared": {}, "equal": {}, "bit_equal": None,
    "processes": 1, "difference": None, "hints": [],
}  # fmt: skip
SOME = {"compared": {"loss": 2}, "equal": {"loss": 2}}


def test_what_was_not_all_recorded_is_neither_called_equal_nor_taken_for_it() -> None:
    lines = _told(OUTCOME | SOME)
    assert "  bit-equal       unknown: not all was recorded" in lines
    assert {"  commit          not recorded", "  loss            2 of 2 equal, 1 not recorded"} <= set(lines)
    assert "  state           none" in lines


def test_a_log_that_was_changed_since_it_was_sealed_is_refused_and_one_without_a_seal_is_told_of(
    run: Shaken, recorded: Path, tmp_path: Path
) -> None:
    place = tmp_path / "sealed"
    ends = write_log(place, run.events)
    (place / "config.toml").write_text(dump(run.recipe))
    (place / SEAL_FILE).write_text(json.dumps(seal(ends)))
    assert "not sealed" not in invoke(place).stderr
    assert f"{recorded}: not sealed: it may have been cut\n" in invoke(recorded).stderr
    (place / SEAL_FILE).write_text(json.dumps(seal(ends | {"syncer": replace(ends["syncer"], rows=9)})))
    done = invoke(place, *TASK)
    assert done.exit_code == 2 and "cannot be replayed: log.seal: " in done.stderr


def test_wrong_input_is_told_before_anything_is_computed(run: Shaken, recorded: Path, tmp_path: Path) -> None:
    def refused(words: str, *arguments: str | Path) -> None:
        done = invoke(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr

    refused("is no run's folder", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    refused("is no run's folder", tmp_path / "empty")
    damaged = folder(tmp_path / "damaged", run, run.events)
    segment = damaged / segment_key("syncer", 0)
    segment.write_bytes(segment.read_bytes().replace(b"syncer", b"broken", 1))
    refused("cannot be replayed: log.readable: segment 0 of syncer", damaged)
    refused("--task: is required: the run names tests.replay.shaken:Points", recorded)
    older = altered(run.events, is_a(StepFinished, step=3), progress=None)
    refused("its step 3 has no progress", folder(tmp_path / "older", run, older), *TASK)
    said = next(event for event in run.events if is_a(Committed)(event))
    twice = [*run.events, replace(said, fact=replace(said.fact, digest="0" * 64))]
    refused("log.sequence: ", folder(tmp_path / "twice", run, twice), *TASK)
    heavy = altered(run.events, is_a(Committed, syncer_step=said.fact.syncer_step), participants=(
        replace(said.fact.participants[0], weight=2.0), *said.fact.participants[1:]))  # fmt: skip
    refused("merges.weights: ", folder(tmp_path / "heavy", run, heavy), *TASK)
    faster = folder(tmp_path / "faster", run, run.events)
    (faster / "config.toml").write_text(dump(run.recipe).replace("lr = 0.05", "lr = 0.5"))
    refused(f"the run was begun with {run.recipe.config_hash}", faster, *TASK)
    other = run.recipe.model_copy(update={"outer": run.recipe.outer.model_copy(update={"merge": "no.such:rule"})})
    ruled = folder(tmp_path / "ruled", run, altered(run.events, is_a(RunStarted), config_hash=other.config_hash))
    (ruled / "config.toml").write_text(dump(other))
    refused("add --rule no.such:rule", ruled, *TASK)
    refused("is not the rule of this run, no.such:rule", ruled, *TASK, "--rule", "my_rules:damped")


def test_a_task_that_cannot_be_built_is_the_users_problem(run: Shaken, tmp_path: Path) -> None:
    other = run.recipe.model_copy(update={"task": "no.such.module:Task"})
    begun = altered(run.events, is_a(RunStarted), config_hash=other.config_hash)
    place = folder(tmp_path / "unbuilt", run, begun)
    (place / "config.toml").write_text(dump(other))
    done = invoke(place, "--task", "no.such.module:Task", "--json")
    assert done.exit_code == 2
    (problem,) = json.loads(done.stdout)["error"]["problems"]
    assert problem["field"] == "task" and "does not import" in problem["message"]
