"""Capacity: nothing is over-committed, an obvious fit is found, and the plan says what finds no place and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner.sizing.capacity import UNIT, Placement, Service, claim, place, services
from orchestrator.planner.sizing.nodes import from_ray, from_text, this_machine
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.resources import ACCELERATOR, bears
from orchestrator.recipe.toml_text import load

RECIPES = Path(__file__).parents[3] / "deploy" / "recipes"


def learners(*pools: PoolConfig) -> dict[str, PoolConfig]:
    return {f"learner-{pool.name}-{index}": pool for pool in pools for index in range(pool.learners)}


def pool(name: str = "a", count: int = 1, **fields: Any) -> PoolConfig:
    return PoolConfig.model_validate({"name": name, "learners": count} | fields)


def wanted(chaos: bool = False, region: str | None = None, **run: Any) -> list[Service]:
    """The services of a recipe, without the metrics unless asked for."""
    raw = {"name": "r", "pools": [{"name": "a"}], "budget": {"tokens": 1}, "run": {"metrics": False} | run}
    return services(Recipe.model_validate(raw | {"chaos": {"mtbf_s": 9} if chaos else {}}), False, region)


def packed(pools: list[PoolConfig], texts: list[str], anywhere: bool = False) -> Placement:
    return place(learners(*pools), wanted(), from_text(texts), anywhere)


# ------------------------------------------------------------------ properties

AMOUNTS = st.sampled_from([0.1, 0.5, 1.0, 1.7, 2.0, 4.0])
NODES = st.lists(
    st.builds(
        "CPU={},GPU={}{}{}".format,
        st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.9]),
        st.sampled_from([0.0, 1.0, 4.0]),
        st.sampled_from(["", ",region=eu", ",region=us"]),
        st.sampled_from(["", ",accelerator=H100", ",accelerator=A100"]),
    ),
    min_size=1,
    max_size=5,
)
POOL = {
    "learners": st.integers(1, 4),
    "resources": st.dictionaries(st.sampled_from(["CPU", "GPU"]), AMOUNTS, min_size=1),
    "region": st.sampled_from([None, "eu", "us"]),
    "accelerator": st.sampled_from([None, None, "H100"]),
}
POOLS = st.lists(st.fixed_dictionaries(POOL), min_size=1, max_size=4)


@given(NODES, POOLS, st.booleans())
def test_no_node_is_ever_over_committed_and_labels_bind(
    texts: list[str], pool_tables: list[dict[str, Any]], anywhere: bool
) -> None:
    nodes = from_text(texts)
    pools = learners(*(pool(f"p{i}", table.pop("learners"), **table) for i, table in enumerate(map(dict, pool_tables))))
    also = wanted(chaos=True, metrics=True)
    found = place(pools, also, nodes, anywhere)
    cpus = {service.name: service.asked.resources["CPU"] for service in also}
    for node in nodes:
        asked: dict[str, int] = {}
        for name, places in found.learners.items():
            if node.name in places:
                assert anywhere or pools[name].region in (None, node.region)
                assert bears(node, claim(pools[name], anywhere).labels)
                for kind, amount in pools[name].resources.items():
                    asked[kind] = asked.get(kind, 0) + round(amount * UNIT)
        for name, at in found.services.items():
            if at == node.name:
                asked["CPU"] = asked.get("CPU", 0) + round(cpus[name] * UNIT)
        for kind, amount in asked.items():
            assert amount <= round(node.resources.get(kind, 0.0) * UNIT)
    told = sum(one.units for one in found.shortfalls)
    assert told == len(pools) + len(also) - len(found.learners) - len(found.services)


# ------------------------------------------------------------------ choices


@pytest.mark.parametrize(
    ("pools", "texts"),
    [
        # Learners without a GPU stay off the GPU nodes.
        (
            [pool("cpu", 2, resources={"CPU": 4}), pool("gpu", 1, resources={"CPU": 4, "GPU": 1})],
            ["name=gpu,CPU=8,GPU=1", "name=cpu,CPU=10"],
        ),
        # Who can go to one place only goes first.
        (
            [pool("any", resources={"CPU": 2}), pool("eu", resources={"CPU": 2}, region="eu")],
            ["CPU=1.1", "CPU=2,region=eu", "CPU=3"],
        ),
        # Services make room for a learner that needs a whole node.
        ([pool(resources={"CPU": 4})], ["name=large,CPU=4", "name=small,CPU=1.1"]),
    ],
)
def test_everything_finds_a_place_where_there_is_an_obvious_one(pools: list[PoolConfig], texts: list[str]) -> None:
    assert packed(pools, texts).shortfalls == ()


def test_what_fits_to_the_last_unit_fits_and_one_unit_less_does_not() -> None:
    tenths = [pool(count=10, resources={"CPU": 0.1})]
    assert len(packed(tenths, ["CPU=1.1", "CPU=1.0"]).learners) == 10
    assert len(packed(tenths, ["CPU=1.1", "CPU=0.9999"]).learners) == 9


def test_an_island_has_its_part_on_each_of_its_nodes_or_no_place() -> None:
    island = [pool("i", 2, resources={"CPU": 2}, processes=4, hosts=2)]
    found = packed(island, ["CPU=1.1", "name=a,CPU=4", "name=b,CPU=8", "name=c,CPU=4"])
    places = sorted(sorted(places) for places in found.learners.values())
    assert (found.shortfalls, places) == ((), [["a", "b"], ["b", "c"]])
    (lost,) = packed(island, ["CPU=1.1", "name=a,CPU=16"]).shortfalls
    assert "room for 0 of 2" in lost.reason and "a learner is spread over 2" in lost.reason


def test_the_syncer_goes_to_the_region_that_it_is_asked_for_in() -> None:
    nodes = from_text(["name=a,CPU=4,region=us", "name=b,CPU=4,region=eu"])
    found = place(learners(pool()), wanted(region="eu"), nodes, anywhere=False)
    assert (found.services["orchestrator"], found.services["syncer"]) == ("a", "b")
    (lost,) = place(learners(pool()), wanted(region="asia"), nodes, anywhere=False).shortfalls
    assert (lost.who, lost.field) == ("syncer", "fleet.syncer_region")
    assert "region is eu, us" in lost.reason


def test_services_keep_to_the_control_nodes_except_those_that_may_be_anywhere() -> None:
    nodes = from_text(["name=a,CPU=4", "name=b,CPU=4,labels.role=control"])
    asked = wanted(chaos=True, metrics=True, control={"role": "control"})
    found = place(learners(pool()), asked, nodes, anywhere=False)
    assert {found.services[name] for name in ("orchestrator", "syncer", "evaluator")} == {"b"}
    lost = place(learners(pool()), asked, nodes[:1], anywhere=False).shortfalls
    assert [(one.who, one.field) for one in lost] == [
        (name, "run.control") for name in ("orchestrator", "syncer", "evaluator")
    ]


def test_a_local_node_takes_every_region_but_not_every_accelerator() -> None:
    assert packed([pool(region="mars")], ["CPU=4"], anywhere=True).shortfalls == ()
    gpu = pool(region="mars", accelerator="H100", resources={"GPU": 1})
    assert packed([gpu], ["CPU=4,GPU=1,accelerator=H100"], anywhere=True).shortfalls == ()
    (lost,) = packed([gpu], ["CPU=4,GPU=1,accelerator=A100"], anywhere=True).shortfalls
    assert lost.field == "pools.0" and ACCELERATOR in lost.reason


# ------------------------------------------------------------------ accelerators, by their labels

CONTROL = "CPU=4,region=us-east,labels.role=control"
V6E = "TPU=8,CPU=180,region=us-east,accelerator=TPU-V6E,topology=2x4"
V5P = "TPU=4,CPU=208,region=us-west,accelerator=TPU-V5P,topology=2x2x1"


def tpus(*texts: str) -> list[str]:
    """Pools and services of the shipped TPU recipe that find no place."""
    recipe = load(RECIPES / "tpu-two-generations.toml")
    found = place(recipe.learners, services(recipe, anywhere=False), from_text([CONTROL, *texts]), anywhere=False)
    return [one.who for one in found.shortfalls]


def test_each_learner_of_the_tpu_recipe_takes_a_slice_of_its_own_and_of_its_size() -> None:
    assert tpus(f"{V6E},count=2", f"{V5P},count=2") == []
    assert tpus(V6E, f"{V5P},count=2") == ["v6e"]
    two_in_one = V6E.replace("TPU=8", "TPU=16").replace(",topology=2x4", "")
    assert tpus(two_in_one, f"{V5P},count=2") == ["v6e"], "nobody says that it is such a slice"
    larger = V6E.replace("TPU=8", "TPU=4").replace("2x4", "4x4") + ",count=4"
    assert tpus(larger, f"{V5P},count=2") == ["v6e"]


def test_an_accelerator_that_was_named_by_hand_is_had_by_its_label() -> None:
    corrected = pool(accelerator="A100-80G", resources={"GPU": 1})
    row = {"Alive": True, "NodeID": "ab", "Resources": {"CPU": 12.0, "GPU": 1.0, "accelerator_type:A100": 1.0}}
    by_hand = from_ray([row | {"Labels": {ACCELERATOR: "A100-80G"}}])
    assert place(learners(corrected), wanted(), by_hand, anywhere=False).shortfalls == ()
    assert packed([corrected], ["CPU=12,GPU=1,accelerator=A100-80G"]).shortfalls == ()
    assert packed([corrected], [f"CPU=12,GPU=1,labels.{ACCELERATOR}=A100-80G"]).shortfalls == ()
    (lost,) = place(learners(corrected), wanted(), from_ray([row]), anywhere=False).shortfalls
    assert lost.field == "pools.0" and ACCELERATOR in lost.reason


@pytest.mark.parametrize(
    ("one", "texts", "reason", "fix"),
    [
        (pool(region="mars"), ["CPU=8,region=eu"], "the label region = mars; there, region is eu", "region=mars"),
        (
            pool(accelerator="H100"),
            ["CPU=8,GPU=1,accelerator=A100"],
            "ray.io/accelerator-type = H100; there, ray.io/accelerator-type is A100",
            "add 1 times CPU=1, ray.io/accelerator-type=H100",
        ),
        (pool(resources={"GPU": 8}), ["CPU=8,GPU=4"], "none has 8 GPU: the largest has 4", "GPU=8"),
        (pool(resources={"TPU": 4}), ["CPU=8"], "none has 4 TPU: the largest has 0", "add 1 times TPU=4"),
        (pool(resources={"CPU": 6, "GPU": 1}), ["CPU=8", "CPU=2,GPU=1"], "none has 6 CPU, 1 GPU together", "GPU=1"),
        (
            pool(count=5, resources={"CPU": 2}),
            ["CPU=8"],
            "room for 3 of 5: of 1 living nodes some have 2 CPU, but others are using them",
            "add 2 times CPU=2, or set pools.0.learners=3",
        ),
    ],
)
def test_a_pool_that_does_not_fit_is_told_why_and_what_would_help(
    one: PoolConfig, texts: list[str], reason: str, fix: str
) -> None:
    shortfall = packed([one], texts).shortfalls[0]
    assert (shortfall.who, shortfall.field) == ("a", "pools.0")
    assert reason in shortfall.reason
    assert fix in shortfall.fix


# ------------------------------------------------------------------ nodes


def test_nodes_are_read_from_text() -> None:
    text = from_text(["name=n,CPU=8,GPU=4,region=us-east,accelerator=H100,memory=64,count=2,labels.rack=7"])
    assert [node.name for node in text] == ["n", "n-2"]
    assert text[0].memory_bytes == 64 * 2**30
    assert text[0].resources == {"CPU": 8, "GPU": 4}
    assert text[0].labels == {"region": "us-east", "ray.io/accelerator-type": "H100", "rack": "7"}


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("CPU", "is not KEY=VALUE", "CPU=8"),
        ("CPU=8,regoin=us", "should be a valid number", "did you mean region?"),
        ("CPU=-1", "greater than or equal to 0", "CPU=8"),
        ("CPU=nan", "a finite number", "CPU=8"),
        ("CPU=8,count=1.5", "a valid integer", "CPU=8"),
        ("CPU=8,count=20000", "less than or equal to 10000", "CPU=8"),
        ("region=us", "names no resource", "CPU=8"),
        ("CPU=8,labels=3", "should be a valid dictionary", "labels.role=control"),
        ("TPU=8,topology=2x4", "is no slice of a TPU", "accelerator=TPU-V6E"),
        ("TPU=8,accelerator=TPU-V6E,topology=2by4", "is no slice of TPU-V6E", "topology=2x4"),
    ],
)
def test_a_node_that_cannot_be_read_is_refused_with_the_fix(text: str, message: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        from_text([text])
    assert message in str(caught.value)
    assert fix in str(caught.value)


def test_rays_nodes_keep_labels_and_resources_and_the_dead_are_left_out() -> None:
    row = {
        "Alive": True,
        "NodeID": "ab",
        "NodeManagerHostname": "host",
        "Resources": {"CPU": 4.0, "memory": 1e9, "object_store_memory": 5.0, "node:10.0.0.1": 1.0},
        "Labels": {"region": "eu"},
    }
    found = from_ray([row, row, row | {"Alive": False}])
    assert [node.name for node in found] == ["host", "host-2"]
    assert found[0].resources == {"CPU": 4.0, "memory": 1e9}
    assert (found[0].region, found[0].memory_bytes) == ("eu", 10**9)


def test_this_machines_gpus_are_those_that_the_driver_lists(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for number in range(2):
        (tmp_path / f"driver/nvidia/gpus/{number}").mkdir(parents=True)
        (tmp_path / f"driver/nvidia/gpus/{number}/information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 9\n"
        )
    asked = {"CPU": 5.0, "GPU": 8.0, "license": 2.0}
    assert this_machine(asked, tmp_path).resources == {"CPU": 5.0, "license": 2.0, "GPU": 2.0}
    assert this_machine(asked, tmp_path).labels == {"ray.io/accelerator-type": "H100"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert this_machine(asked, tmp_path).resources["GPU"] == 1.0
    assert "GPU" not in this_machine(asked, tmp_path / "nowhere").resources


def test_an_evaluator_with_a_gpu_goes_where_one_is_whatever_the_control_nodes_are() -> None:
    nodes = from_text(["name=a,CPU=4,labels.role=control", "name=b,CPU=4,GPU=1"])
    raw = {"name": "r", "pools": [{"name": "a"}], "budget": {"tokens": 1}, "eval": {"resources": {"GPU": 1}}}
    recipe = Recipe.model_validate(raw | {"run": {"control": {"role": "control"}}})
    found = place(learners(pool()), services(recipe, anywhere=False), nodes, anywhere=False)
    assert (found.services["syncer"], found.services["evaluator"]) == ("a", "b")
    (lost,) = place(learners(pool()), services(recipe, anywhere=False), nodes[:1], anywhere=False).shortfalls
    assert (lost.who, lost.reason) == (
        "evaluator",
        "1 GPU are asked for, and no node that it may be on has so much left",
    )
    assert "eval.resources" in lost.fix
