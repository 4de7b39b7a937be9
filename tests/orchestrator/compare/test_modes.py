"""The modes of `diloco compare`: each changed recipe is valid, and its run does what the mode's name says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from learners.protocol.facts import Adopted, StepFinished
from learners.training.step import make_step, schedule, step_key, transformation
from learners.training.tree import initial_parameters
from orchestrator.compare.modes import MODES, chosen, reference, transformed
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.store.export import of_run
from orchestrator.store.run_store import RunStore
from orchestrator.study.seed_run import SeedRun
from outer.protocol.facts import Committed
from tests.replay.shaken import Points, recipe

STEPS = 20
ALL = recipe(STEPS)  # two learners with batches of 2 and one of 4; five fragments in a round of six
ALIKE = Recipe.model_validate(ALL.canonical() | {"pools": [{"name": "a", "learners": 3, "batch_size": 4}]})
BOTH = pytest.mark.parametrize("harness", [True, False], ids=["harness", "real"])


def trained(folder: Path, mode: str) -> list[Any]:
    wanted = transformed(ALL, MODES[mode], harness=True)
    row = SeedRun(wanted, folder, False).train(lambda news: None)
    assert row["ok"]
    return list(read_run(folder))


def facts(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event.fact for event in events if isinstance(event.fact, kind)]


@BOTH
@pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
def test_every_mode_keeps_the_model_the_data_and_the_inner_optimizer(mode: Any, harness: bool) -> None:
    made = transformed(ALIKE, mode, harness)  # valid, or it raises
    for table in ("task", "model", "data", "inner", "seed", "eval", "name"):
        assert getattr(made, table) == getattr(ALIKE, table)
    assert made.target_syncer_steps == ALIKE.target_syncer_steps
    total = sum(pool.batch_size for pool in ALIKE.learners.values())
    batches = sum(pool.batch_size for pool in made.learners.values())
    assert batches == (total if mode.whole_budget else ALIKE.pools[0].batch_size)
    cpus = sum(pool.resources["CPU"] for pool in made.learners.values())
    assert harness or cpus == (3 if mode.whole_budget else 1)


def test_a_token_budget_is_the_same_for_all_but_a_single_learner_which_has_its_share() -> None:
    given = Recipe.model_validate(ALL.canonical() | {"budget": {"tokens": 8000}})
    budgets = {name: transformed(given, mode, True).budget.tokens for name, mode in MODES.items()}
    assert budgets.pop("single") == 8000 * 2 // 8
    assert set(budgets.values()) == {8000}


@pytest.mark.parametrize(("mode", "batch"), [("data_parallel", 8), ("single", 2)])
def test_a_learner_without_outer_optimizer_is_plain_training_to_the_bit(tmp_path: Path, mode: str, batch: int) -> None:
    trained(tmp_path, mode)
    task = Points(ALL.data, ALL.seed)
    params = jax.jit(task.init)(jax.random.key(ALL.seed))
    moments, step = transformation(task, ALL.inner).init(params), make_step(task, ALL.inner)
    for number in range(STEPS):
        start, scale = number * batch, np.float32(schedule(ALL.inner, number / STEPS))
        params, moments, *_ = step(params, moments, task.batch(start, batch), step_key(ALL.seed, start), scale)
    found = of_run(RunStore(tmp_path)).tensors
    assert found.keys() == params.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(found[name].reshape(value.shape), value)


def test_diloco_merges_the_whole_model_of_all_learners_every_round_and_all_wait_for_it(tmp_path: Path) -> None:
    events = trained(tmp_path, "diloco")
    commits = facts(events, Committed)
    assert [commit.syncer_step for commit in commits] == [6, 12, 18]
    assert {commit.fragment for commit in commits} == {0}
    for commit in commits:
        assert {(each.learner, each.step) for each in commit.participants} == {
            (name, commit.syncer_step) for name in ALL.learners
        }
    adopted = [fact for fact in facts(events, Adopted) if fact.version]
    assert len(adopted) == 9 and all(fact.after_step == fact.version for fact in adopted), "before the next step"


def test_streaming_merges_each_fragment_of_all_and_adopts_it_tau_steps_later(tmp_path: Path) -> None:
    events = trained(tmp_path, "streaming")
    commits = facts(events, Committed)
    assert {commit.fragment for commit in commits} == set(range(5))
    assert all({each.step for each in commit.participants} == {commit.syncer_step} for commit in commits)
    assert all(len(commit.participants) == 3 for commit in commits)
    adopted = [fact for fact in facts(events, Adopted) if fact.version]
    assert adopted and {fact.after_step - fact.version for fact in adopted} == {2}


def test_one_learner_with_the_outer_optimizer_steps_on_the_batch_of_all(tmp_path: Path) -> None:
    events = trained(tmp_path, "one_outer")
    assert {fact.tokens for fact in facts(events, StepFinished)} == {4 * 8}
    made = transformed(ALL, MODES["one_outer"], harness=True)
    assert (made.outer, made.sync.fragments, made.quorum) == (ALL.outer, 5, 1)
    task = Points(ALL.data, ALL.seed)
    start = initial_parameters(task, (), ALL.seed)
    assert start == [], "nothing but fragments is sent"


def test_the_slowest_learner_sets_the_pace_of_all_hardware() -> None:
    pools = [{"name": "a", "batch_size": 2}, {"name": "b", "batch_size": 2, "slowdown": 2.5}]
    given = Recipe.model_validate(ALL.canonical() | {"pools": pools})
    assert transformed(given, MODES["data_parallel"], True).pools[0].slowdown == 2.5


# ------------------------------------------------------------------ what a recipe cannot have


def test_a_mode_that_a_recipe_cannot_have_is_named_with_the_reason() -> None:
    waits = Recipe.model_validate(ALL.canonical() | {"sync": ALL.canonical()["sync"] | {"overlap": "strict"}})
    with pytest.raises(InputError, match=r'decoupled.*its learners wait: sync.overlap = "strict"'):
        transformed(waits, MODES["decoupled"], True)
    with pytest.raises(InputError, match="hardware of 2 pools"):
        transformed(ALL, MODES["one_outer"], False)
    odd = Recipe.model_validate(ALL.canonical() | {"pools": [{"name": "a", "batch_size": 2}, {"name": "b"}]})
    assert transformed(odd, MODES["data_parallel"], False).learners.keys() == odd.learners.keys()
    odd = Recipe.model_validate(
        ALL.canonical() | {"pools": [{"name": "a", "batch_size": 2}, {"name": "b", "batch_size": 3}]}
    )
    with pytest.raises(InputError, match="5 samples cannot be shared equally by 2 workers"):
        transformed(odd, MODES["data_parallel"], False)


def test_modes_that_wait_do_not_have_a_plan_that_strikes_the_syncer() -> None:
    plan = ChaosConfig.model_validate({"faults": [{"kind": "kill", "learner": "syncer", "at_s": 3.0}]})
    assert transformed(ALIKE, MODES["decoupled"], False, plan).chaos == plan
    for mode in ("diloco", "streaming", "single", "data_parallel"):
        with pytest.raises(InputError, match="syncer"):
            transformed(ALIKE, MODES[mode], False, plan)


def test_ranks_of_ray_train_have_no_gpus_and_no_faults_but_kills_and_freezes() -> None:
    pool = {"name": "a", "learners": 2, "batch_size": 2, "resources": {"CPU": 1, "GPU": 1}}
    gpus = Recipe.model_validate(ALL.canonical() | {"pools": [pool]})
    with pytest.raises(InputError, match=r"pool a has GPUs[^\n]*\n.*use --harness"):
        transformed(gpus, MODES["data_parallel"], False)
    faults = [{"kind": kind, "learner": "any", "at_s": 3.0} for kind in ("kill", "slow", "link")]
    plan = ChaosConfig.model_validate({"faults": faults, "mtbf_s": 9.0, "kinds": ["freeze", "corrupt"]})
    with pytest.raises(InputError, match=r"ranks \(corrupt, link, slow\)"):
        transformed(ALIKE, MODES["data_parallel"], False, plan)
    able = ChaosConfig.model_validate({"faults": faults[:1], "kinds": ["corrupt"]})
    assert transformed(ALIKE, MODES["data_parallel"], False, able).chaos == able, "no random faults, no kinds"


def test_faults_strike_the_one_learner_and_a_single_one_has_its_own_alone() -> None:
    faults = [{"kind": "kill", "learner": f"learner-a-{index}", "at_s": 3.0} for index in range(3)]
    plan = ChaosConfig.model_validate({"faults": faults, "mtbf_s": 60.0})
    one = transformed(ALIKE, MODES["one_outer"], False, plan).chaos
    assert [fault.learner for fault in one.faults] == ["learner-a-0"] * 3 and one.mtbf_s == 60.0
    alone = transformed(ALIKE, MODES["single"], False, plan).chaos
    assert [fault.learner for fault in alone.faults] == ["learner-a-0"] and alone.mtbf_s == 180.0
    own = Recipe.model_validate(ALIKE.canonical() | {"chaos": plan.model_dump(mode="json", exclude_none=True)})
    assert not transformed(own, MODES["decoupled"], False).chaos.active, "the recipe's own faults are not in it"


def test_modes_are_chosen_by_name_and_a_wrong_one_is_told_the_nearest() -> None:
    assert [mode.name for mode in chosen("single, decoupled,single")] == ["single", "decoupled"]
    with pytest.raises(InputError) as error:
        chosen("decopled,nonsense")
    assert [problem.fix for problem in error.value.problems] == ["did you mean decoupled?", "choose among them"]
    asked = chosen("single,data_parallel")
    assert reference(asked, None).name == "data_parallel" and reference(asked, "single").name == "single"
    assert reference(chosen("single"), None).name == "single"
    with pytest.raises(InputError, match="is not compared"):
        reference(asked, "diloco")
