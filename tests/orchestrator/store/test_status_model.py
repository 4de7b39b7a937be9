"""The status model from what the syncer and the orchestrator know: whole before anything is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.recipe.config import BudgetConfig, PoolConfig, Recipe
from orchestrator.store.status_model import LearnerPlace, ProgressTracker, RunInfo, away, model
from orchestrator.store.status_text import changes, lines
from outer.config import SyncConfig

RECIPE = Recipe(
    name="demo",
    pools=(PoolConfig(name="east", learners=2, region="r1", batch_size=4), PoolConfig(name="west")),
    budget=BudgetConfig(syncer_steps=100),
    sync=SyncConfig(quorum=2),
)
SYNCER = {"pid": 7, "node": "n", "task": {"tokens_per_sample": 96}}
NAMES = ("learner-east-0", "learner-east-1", "learner-west-0")


def about(state: str = "running", reason: str = "") -> RunInfo:
    return RunInfo(state, reason, started_at=100.0, written_at=130.0, eval_loss=2.5, tokens=(1000, 800))


def row(name: str, **change: Any) -> dict[str, Any]:
    return {
        "name": name,
        "incarnation": 1,
        "alive": True,
        "phase": "stepping",
        "lease_age_s": 0.1,
        "step": 7,
        "step_s": 0.5,
        "tokens": 700,
        "loss": 2.2,
        "version_lag": 0,
    } | change


def view(*rows: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {
        "running_s": 20.0,
        "syncer_step": 25,
        "progress": 0.25,
        "tokens": 800,
        "epoch": 1,
        "grace_s": 0.1,
        "learners": list(rows) or [row(name) for name in NAMES],
    } | change


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["run"]["conditions"]}


def test_before_the_syncer_answers_every_field_is_there_and_unknown_ones_are_none() -> None:
    early = model(RECIPE, replace(about("starting"), tokens=None), {}, {}, {})
    assert early["learners"] == []
    assert (early["run"]["goodput"], early["run"]["tokens_per_s"], early["run"]["eta_s"]) == (None, None, None)
    assert (early["run"]["progress"], early["run"]["syncer_step"]) == (0.0, 0)
    assert (early["syncer"]["pid"], early["syncer"]["epoch"]) == (None, None)
    assert early["run"].keys() == model(RECIPE, about(), view(), {}, {})["run"].keys()
    json.dumps(early, allow_nan=False)


def test_rates_follow_from_the_counts() -> None:
    run = model(RECIPE, about(), view(), {"pid": 7, "node": "n"}, {})["run"]
    assert (run["goodput"], run["tokens_per_s"], run["eta_s"]) == (0.8, 40.0, 60.0)
    assert (run["target_syncer_steps"], run["eval_loss"]) == (100, 2.5)


def test_the_target_of_a_token_budget_counts_the_tasks_own_tokens_not_the_recipes_sequence_length() -> None:
    recipe = RECIPE.model_copy(update={"budget": BudgetConfig(tokens=10_000)})
    batch = sum(pool.batch_size for pool in recipe.learners.values())

    def target(sample: int | None, **view_: Any) -> Any:
        syncer = {} if sample is None else {"task": {"tokens_per_sample": sample}}
        return model(recipe, about(), view(**view_), syncer, {})["run"]["target_syncer_steps"]

    start = {"syncer_step": 0, "tokens": 0}
    assert target(1, **start) == -(-10_000 // batch)
    assert target(10, **start) == -(-1_000 // batch)
    assert target(None, **start) is None, "not known before the syncer has built the task"
    assert target(10, syncer_step=90, tokens=5_000) == 180, "then at the pace of the run"
    assert target(10, syncer_step=180, tokens=9_999) == 181
    assert target(10, syncer_step=180, tokens=10_400) == 180, "at the end the steps made are the target"


@pytest.mark.parametrize("change", [{"progress": 0.0}, {"running_s": None}, {"running_s": 0.0}])
def test_nothing_is_divided_by_nothing(change: dict[str, Any]) -> None:
    run = model(RECIPE, about(), view(**change), {}, {})["run"]
    assert run["eta_s"] is None
    json.dumps(run, allow_nan=False)


def test_goodput_is_of_the_whole_run_as_its_log_says_and_unknown_before() -> None:
    """The syncer's own counts begin anew with each epoch."""
    for tokens, goodput in (((2000, 1500), 0.75), ((0, 0), None), (None, None)):
        told = replace(about(), tokens=tokens)
        assert model(RECIPE, told, view(tokens=10), {}, {})["run"]["goodput"] == goodput


@pytest.mark.parametrize(
    ("change", "state", "rate"),
    [
        ({}, "stepping", 4 * 96 / 0.5),
        ({"phase": "joining", "step_s": 0.0}, "joining", None),
        ({"alive": False}, "silent", None),
        ({"alive": False, "phase": ""}, "down", None),
    ],
)
def test_a_learners_state_is_its_phase_or_why_it_has_none(
    change: dict[str, Any], state: str, rate: float | None
) -> None:
    placed = {NAMES[0]: LearnerPlace(11, "node-1", "killed")}
    [shown] = model(RECIPE, about(), view(row(NAMES[0], **change)), SYNCER, placed)["learners"]
    assert (shown["state"], shown["tokens_per_s"]) == (state, rate)
    assert (shown["pool"], shown["region"], shown["pid"], shown["last_fault"]) == ("east", "r1", 11, "killed")


def test_auxiliary_values_are_shown_of_each_learner_and_as_their_mean() -> None:
    rows = [
        row(NAMES[0], aux={"accuracy": 0.5, "norm": 2.0}),
        row(NAMES[1], aux={"accuracy": 0.75, "norm": float("nan")}),
        row(NAMES[2], aux=None),
    ]
    status = model(RECIPE, about(), view(*rows), {}, {})
    assert status["run"]["aux"] == {"accuracy": 0.625, "norm": None}
    assert [each["aux"] for each in status["learners"]] == [rows[0]["aux"], {"accuracy": 0.75, "norm": None}, {}]
    json.dumps(status, allow_nan=False)
    assert "auxiliary values: accuracy 0.625, norm -" in lines(status)
    over = model(RECIPE, about("finished"), view(row(NAMES[0], alive=False, aux={"accuracy": 0.5})), {}, {})
    assert over["run"]["aux"] == {"accuracy": 0.5}, "the last ones, at the end"
    assert not any("auxiliary" in line for line in lines(model(RECIPE, about(), view(), {}, {})))


def test_conditions_tell_whether_all_live_and_whether_the_quorum_is_met() -> None:
    dead = {"alive": False}
    for rows, all_live, quorum in (
        ([row(name) for name in NAMES], "True", "True"),
        ([row(NAMES[0]), row(NAMES[1]), row(NAMES[2], **dead)], "False", "True"),
        ([row(NAMES[0]), row(NAMES[1], phase="joining"), row(NAMES[2], **dead)], "False", "False"),
    ):
        told = conditions(model(RECIPE, about(), view(*rows), {}, {}))
        assert (told["AllLearnersLive"][0], told["QuorumMet"][0]) == (all_live, quorum)


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_an_ended_run_has_one_condition_its_end_and_why(state: str) -> None:
    status = model(RECIPE, about(state, "because"), view(), {}, {})
    assert conditions(status) == {"Ended": ("True", state.capitalize())}
    assert status["run"]["conditions"][0]["message"] == "because"


def test_over_the_epochs_of_a_syncer_time_and_pace_are_those_of_the_run() -> None:
    now = [50.0]
    overall = ProgressTracker(lambda: now[0])
    before = {"tokens": 1000, "progress": 0.1, "running_s": None}
    assert overall.of(before)["running_s"] is None
    now[0] = 60.0
    assert overall.of(before | {"running_s": 2.0})["running_s"] == 2.0
    now[0] = 78.0
    later = overall.of({"tokens": 3000, "progress": 0.3, "running_s": None})
    assert later["running_s"] == 20.0, "a new epoch does not know of any"
    status = model(RECIPE, about(), view() | later, {"pid": 7, "node": "n"}, {})
    assert status["run"]["tokens_per_s"] == 100.0, "what was there before the run was resumed does not count"
    assert status["run"]["eta_s"] == pytest.approx(20.0 * 0.7 / 0.2)


def test_conditions_say_that_nothing_is_being_made_durable_and_why() -> None:
    def durable(**journal: Any) -> dict[str, str]:
        status = model(RECIPE, about(), view() | {"journal": {"waiting_s": 0.0, "trouble": "", **journal}}, {}, {})
        return next(each for each in status["run"]["conditions"] if each["type"] == "Durable")

    assert durable()["status"] == "True" and durable(trouble="no segment")["status"] == "True"
    full = durable(waiting_s=12.0, trouble="OSError: [Errno 28] No space left on device")
    assert (full["status"], full["reason"]) == ("False", "StoreAway")
    assert "the run waits for it" in full["message"] and "No space left" in full["message"]
    assert durable(waiting_s=3.0)["status"] == "False"
    assert durable(damage=["group 7: it is missing"])["message"].endswith("group 7: it is missing")


def test_a_store_that_is_away_is_told_by_whoever_waits_for_it() -> None:
    def durable(status: dict[str, Any]) -> list[str]:
        return [each["message"] for each in status["run"]["conditions"] if each["reason"] == "StoreAway"]

    waits = "the store is away, and the run waits for it: "
    shard = view() | {"shards": [{"trouble": ""}, {"trouble": "OSError: full"}]}
    assert durable(model(RECIPE, about(), shard, {}, {})) == [f"{waits}OSError: full"]
    for state in ("running", "ending"):
        status = model(RECIPE, replace(about(), state=state, away="OSError: 503"), view(), {}, {})
        assert durable(status) == [f"{waits}OSError: 503"]
    assert durable(model(RECIPE, about(), view(), {}, {})) == []
    found = away(model(RECIPE, about(), view(), {}, {}), "no status was written")
    assert durable(found) == [f"{waits}no status was written"]
    assert changes({}, found)[0] == f"{waits}no status was written" and changes(found, found) == []
    assert changes(found, model(RECIPE, about(), view(), {}, {})) == ["the store is back"]


def test_conditions_say_that_a_syncer_is_on_its_way() -> None:
    status = model(RECIPE, about(), view(), {"epoch": 3, "down_s": 4.0}, {})
    serving = next(each for each in status["run"]["conditions"] if each["type"] == "SyncerServes")
    assert (serving["status"], serving["message"]) == ("False", "epoch 3 has been starting for 4.0 s")


def test_a_pool_without_a_place_is_told_with_the_quorum_that_is_impossible_without_it() -> None:
    why = "no node is alive"
    placed = {
        NAMES[0]: LearnerPlace(None, None, None, why),
        NAMES[1]: LearnerPlace(1, "n", None),
        NAMES[2]: LearnerPlace(2, "n", None),
    }
    run = model(RECIPE, about(), view(), {}, placed)["run"]
    assert conditions({"run": run})["LearnersPlaced"] == ("False", "NoPlace")
    assert conditions({"run": run})["QuorumMet"] == ("True", "Met")
    messages = {each["type"]: each["message"] for each in run["conditions"]}
    assert messages["LearnersPlaced"] == f"pool east: 1 of 2 learners wait for a place: {why}"
    short = model(RECIPE, about(), view(), {}, placed | {NAMES[2]: LearnerPlace(None, None, None, why)})
    assert conditions(short)["QuorumMet"] == ("False", "NoPlace")
    assert conditions(model(RECIPE, about(), view(), {}, {}))["LearnersPlaced"] == ("True", "Placed")
