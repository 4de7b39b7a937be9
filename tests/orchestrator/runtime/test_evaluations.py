"""An evaluation that raises or hangs is told, with why, and the next one is made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator.analysis.summary import summarise
from orchestrator.eventlog.facts import Evaluated, EvaluationFailed
from orchestrator.recipe.config import EvalConfig, Recipe
from orchestrator.runtime import evaluator
from orchestrator.runtime.evaluator import Evaluations
from orchestrator.store.status_text import changes
from tests.orchestrator.histories import history, is_a

RECIPE = Recipe.model_validate(
    {"name": "r", "pools": [{"name": "p"}], "budget": {"syncer_steps": 9}, "eval": {"timeout_s": 0.01}}
)
FOUND = Evaluated(4, 2.5, 10)


async def raises() -> Evaluated:
    raise ray.exceptions.RayError("Traceback\nValueError: no held-out data on this host")


async def hangs() -> Evaluated:
    await asyncio.Event().wait()
    return FOUND


async def answers() -> Evaluated:
    return FOUND


def test_why_an_evaluation_failed_is_a_fact_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    anything: Any = SimpleNamespace()
    made = Evaluations(RECIPE, anything, anything, "code", said.append)
    monkeypatch.setattr(evaluator.ray, "kill", lambda actor: None)
    for method, pid, why in (
        (raises, 7, "no held-out data on this host"),
        (hangs, 7, "longer than eval.timeout_s"),
        (hangs, 0, "found no place within eval.timeout_s = 0.01: ask for less than eval.resources = {'CPU': 0.5}, or"),
        (answers, 7, ""),
    ):
        monkeypatch.setattr(ray._private.state.state, "actor_table", lambda actor, pid=pid: {"Pid": pid})
        actor = SimpleNamespace(current=SimpleNamespace(remote=method), _actor_id=ray.ActorID.nil())
        monkeypatch.setattr(made, "_create", lambda syncer, actor=actor: actor)
        asyncio.run(made.finish(None, FOUND.syncer_step))
        assert why in made.fault and bool(made.fault) == bool(why)
    asyncio.run(made.finish(None, FOUND.syncer_step))  # which has just been evaluated
    assert [type(fact) for fact in said] == [*[EvaluationFailed] * 3, Evaluated] and made.loss == 2.5


def test_those_that_come_due_while_another_is_made_are_counted_as_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    anything: Any = SimpleNamespace()
    made = Evaluations(RECIPE.model_copy(update={"eval": EvalConfig(every=10)}), anything, anything, "code", print)
    of: list[str] = []

    def method(name: str) -> Any:
        return SimpleNamespace(remote=lambda: (of.append(name), answers())[1])

    actor = SimpleNamespace(initial=method("initial"), current=method("current"))
    monkeypatch.setattr(made, "_create", lambda syncer: actor)

    async def story() -> None:
        for step in (1, 9, 10, 19, 47, 49, 50):
            made.start_if_due(None, step, True)
            assert made._task is not None
            await made._task

    asyncio.run(story())
    assert of == ["initial", *["current"] * 3] and made.counts == {"finite": 4, "skipped": 2}, "at 20 and 30"
    status = {"run": {"evaluations": dict(made.counts)}}
    assert "skipped" in changes({}, status)[-1] and not changes(status, status)


def test_the_summary_says_why_the_last_evaluation_failed() -> None:
    events = history()
    [*_, last] = [event for event in events if is_a(Evaluated)(event)]
    failed = [*events, *[type(last)(last.writer, last.incarnation, 10**6, last.at + 99.0, EvaluationFailed("slow"))]]
    assert summarise(failed, RECIPE, [])["eval_fault"] == "slow"
    assert summarise(events, RECIPE, [])["eval_fault"] is None
