"""`diloco chaos`: what it asks of the running job, and what it refuses before it asks."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from chaos.cli import KINDS, app
from orchestrator.recipe.config import FaultKind
from orchestrator.store.run_store import RunStore

RECIPE = """
name = "small"
[[pools]]
name = "p"
learners = 2
[budget]
syncer_steps = 10
"""
Invoke = Callable[..., Any]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run in a folder, and chaos.actor replaced by a record of the calls; `told` is what it answers."""
    monkeypatch.chdir(tmp_path)
    store = RunStore.named("small")
    store.create()
    store.write_text("config.toml", RECIPE)
    store.write_json("status.json", {"learners": [{"name": "learner-p-0"}, {"name": "learner-p-7"}]})
    world: dict[str, Any] = {"told": "injected it", "calls": []}

    def inject(store: RunStore, *call: Any) -> str:
        world["calls"].append(call)
        return str(world["told"])

    actor = types.ModuleType("chaos.actor")
    vars(actor).update(inject=inject)
    monkeypatch.setitem(sys.modules, "chaos.actor", actor)
    return world


@pytest.fixture
def invoke(world: dict[str, Any]) -> Invoke:
    return lambda *arguments: CliRunner().invoke(app, ["inject", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["kill"], ("kill", 0.0, 0.0)),
        (["freeze", "--seconds", "3"], ("freeze", 3.0, 0.0)),
        (["slow", "--seconds", "4", "--delay", "0.5"], ("slow", 4.0, 0.5)),
        (["slow"], ("slow", 10.0, 0.2)),
        (["straggle", "--delay", "1"], ("straggle", 10.0, 1.0)),
        (["link", "--seconds", "7"], ("link", 7.0, 0.0)),
        (["corrupt"], ("corrupt", 5.0, 0.0)),
        (["non_finite"], ("non_finite", 0.0, 0.0)),
        (["wrong_config"], ("wrong_config", 0.0, 0.0)),
    ],
)
def test_each_kind_asks_for_its_fault(
    invoke: Invoke, world: dict[str, Any], arguments: list[str], call: tuple[str, float, float]
) -> None:
    kind, seconds, delay_s = call
    kind_word, *options = arguments
    done = invoke(kind_word, "learner-p-1", *options)
    assert (done.exit_code, done.stdout) == (0, "injected it\n")
    assert json.loads(invoke(kind_word, "learner-p-1", *options, "--json").stdout) == {"result": "injected it"}
    assert world["calls"] == [(kind, "learner-p-1", seconds, delay_s)] * 2


def test_the_syncer_and_a_learner_that_joined_later_can_be_struck_too(invoke: Invoke, world: dict[str, Any]) -> None:
    for kind, target in (("kill", "learner-p-7"), ("kill", "syncer"), ("freeze", "syncer")):
        assert invoke(kind, target).exit_code == 0
        assert world["calls"][-1][:2] == (kind, target)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["slow", "learner-q-1"], 'did you mean "learner-p-1"?'),
        (["link", "nobody"], "its learners are learner-p-0, learner-p-1, learner-p-7"),
        (["slow", "learner-p-1", "--seconds", "0"], "0.1"),
        (["slow", "learner-p-1", "--delay", "-1"], "0.001"),
        (["slwo", "learner-p-1"], 'did you mean "slow"?'),
        (["kill", "learner-p-1", "--seconds", "3"], "leave it out: kill has none"),
        (["freeze", "learner-p-1", "--delay", "1"], "belongs to slow, straggle"),
        (["slow", "syncer"], "cannot be struck by slow"),
        (["kill", "learner-p-1/1"], 'did you mean "learner-p-1"?'),
    ],
)
def test_wrong_input_is_refused_before_anything_is_asked(
    invoke: Invoke, world: dict[str, Any], arguments: list[str], says: str
) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert world["calls"] == []


def test_a_fault_that_found_no_target_is_exit_code_2(invoke: Invoke, world: dict[str, Any]) -> None:
    world["told"] = "skipped kill of learner-p-1: it is not running"
    done = invoke("kill", "learner-p-1")
    assert (done.exit_code, done.stdout.strip()) == (2, world["told"])


def test_every_kind_of_fault_of_a_recipe_can_be_injected() -> None:
    assert set(KINDS) == set(get_args(FaultKind))
