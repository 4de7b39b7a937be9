"""The modes of `diloco compare`: each changed recipe is valid, and its run does what the mode's name says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.seed_run import SeedRun
from learners.protocol.facts import Adopted
from orchestrator.compare.modes import MODES, chosen, reference, transformed
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.recipe.problems import InputError
from outer.protocol.facts import Committed
from tests.replay.shaken import recipe

STEPS = 20
ALL = recipe(STEPS)  # two learners with batches of 2 and one of 4; five fragments in a round of six
ALIKE = Recipe.model_validate(ALL.canonical() | {"pools": [{"name": "a", "learners": 3, "batch_size": 4}]})


def trained(folder: Path, mode: str) -> list[Any]:
    row = SeedRun(transformed(ALL, MODES[mode]), folder).train()
    assert row["ok"]
    return list(read_run(folder))


def facts(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event.fact for event in events if isinstance(event.fact, kind)]


@pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
def test_every_mode_keeps_the_model_the_data_the_inner_optimizer_and_the_hardware(mode: Any) -> None:
    made = transformed(ALIKE, mode)  # valid, or it raises
    for table in ("task", "model", "data", "inner", "seed", "eval", "name", "budget"):
        assert getattr(made, table) == getattr(ALIKE, table)
    assert made.learners.keys() == ALIKE.learners.keys()
    assert all(pool.batch_size == 4 and pool.resources["CPU"] == 1 for pool in made.learners.values())


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


# ------------------------------------------------------------------ what a recipe cannot have


def test_a_mode_that_a_recipe_cannot_have_is_named_with_the_reason() -> None:
    waits = Recipe.model_validate(ALL.canonical() | {"sync": ALL.canonical()["sync"] | {"overlap": "strict"}})
    with pytest.raises(InputError, match=r'decoupled.*its learners wait: sync.overlap = "strict"'):
        transformed(waits, MODES["decoupled"])
    odd = Recipe.model_validate(ALL.canonical() | {"pools": [{"name": "a", "batch_size": 2}, {"name": "b"}]})
    assert transformed(odd, MODES["data_parallel"]).learners.keys() == odd.learners.keys()
    odd = Recipe.model_validate(
        ALL.canonical() | {"pools": [{"name": "a", "batch_size": 2}, {"name": "b", "batch_size": 3}]}
    )
    with pytest.raises(InputError, match="5 samples cannot be shared equally by 2 workers"):
        transformed(odd, MODES["data_parallel"])


def test_modes_that_wait_do_not_have_a_plan_that_strikes_the_syncer() -> None:
    plan = ChaosConfig.model_validate({"faults": [{"kind": "kill", "learner": "syncer", "at_s": 3.0}]})
    assert transformed(ALIKE, MODES["decoupled"], plan).chaos == plan
    own = Recipe.model_validate(ALIKE.canonical() | {"chaos": {"mtbf_s": 9.0}})
    assert not transformed(own, MODES["decoupled"]).chaos.active, "the recipe's own faults are in no mode"
    for mode in ("diloco", "streaming", "data_parallel"):
        with pytest.raises(InputError, match="syncer"):
            transformed(ALIKE, MODES[mode], plan)


def test_ranks_of_ray_train_have_no_gpus_and_no_faults_but_kills_and_freezes() -> None:
    pool = {"name": "a", "learners": 2, "batch_size": 2, "resources": {"CPU": 1, "GPU": 1}}
    gpus = Recipe.model_validate(ALL.canonical() | {"pools": [pool]})
    with pytest.raises(InputError, match=r"pool a has GPUs"):
        transformed(gpus, MODES["data_parallel"])
    faults = [{"kind": kind, "learner": "any", "at_s": 3.0} for kind in ("kill", "slow", "link")]
    plan = ChaosConfig.model_validate({"faults": faults, "mtbf_s": 9.0, "kinds": ["freeze", "corrupt"]})
    with pytest.raises(InputError, match=r"ranks \(corrupt, link, slow\)"):
        transformed(ALIKE, MODES["data_parallel"], plan)
    able = ChaosConfig.model_validate({"faults": faults[:1], "kinds": ["corrupt"]})
    assert transformed(ALIKE, MODES["data_parallel"], able).chaos == able, "no random faults, no kinds"


def test_ranks_of_ray_train_are_in_one_cluster() -> None:
    far = ALIKE.canonical()["pools"][0] | {"name": "far", "region": "far", "joined": True}
    joined = {"pools": [*ALIKE.canonical()["pools"], far], "durability": {"store": "kept"}}
    with pytest.raises(InputError, match="pool far is in a cluster of its own"):
        transformed(Recipe.model_validate(ALIKE.canonical() | joined), MODES["data_parallel"])


def test_modes_are_chosen_by_name_and_a_wrong_one_is_told_the_nearest() -> None:
    assert [mode.name for mode in chosen("diloco, decoupled,diloco")] == ["diloco", "decoupled"]
    with pytest.raises(InputError) as error:
        chosen("decopled,nonsense")
    assert [problem.fix for problem in error.value.problems] == ["did you mean decoupled?", "choose among them"]
    asked = chosen("diloco,data_parallel")
    assert (reference(asked).name, reference(chosen("diloco")).name) == ("data_parallel", "diloco")
