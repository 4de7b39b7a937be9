"""Packing: nothing is over-committed, an obvious fit is found, and who finds no place is told why and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import PoolConfig
from orchestrator.planner.fit import SERVICE_CPUS, UNIT, Placement, Service, demand, fit, services
from orchestrator.planner.nodes import Node, from_file, from_ray, from_text, this_machine
from orchestrator.problems import InputError


def learners(*pools: PoolConfig) -> dict[str, PoolConfig]:
    return {f"learner-{pool.name}-{index}": pool for pool in pools for index in range(pool.learners)}


def pool(name: str = "a", count: int = 1, **fields: Any) -> PoolConfig:
    return PoolConfig.model_validate({"name": name, "learners": count} | fields)


def packed(pools: list[PoolConfig], texts: list[str], anywhere: bool = False) -> Placement:
    return fit(learners(*pools), services(chaos=False), from_text(texts), anywhere)


# ------------------------------------------------------------------ properties

AMOUNTS = st.sampled_from([0.1, 0.5, 1.0, 1.7, 2.0, 4.0])
REGIONS = st.sampled_from([None, "eu", "us"])
NODES = st.lists(
    st.builds(
        lambda cpu, gpu, region, kind: {"CPU": cpu, "GPU": gpu, "region": region, "accelerator": kind},
        st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.9]),
        st.sampled_from([0.0, 1.0, 4.0]),
        REGIONS,
        st.sampled_from([None, "H100", "A100"]),
    ),
    min_size=1,
    max_size=5,
)
POOLS = st.lists(
    st.builds(
        lambda count, resources, region, kind: {
            "learners": count,
            "resources": resources,
            "region": region,
            "accelerator": kind,
        },
        st.integers(1, 4),
        st.dictionaries(st.sampled_from(["CPU", "GPU"]), AMOUNTS, min_size=1),
        REGIONS,
        st.sampled_from([None, None, "H100"]),
    ),
    min_size=1,
    max_size=4,
)


def built(tables: list[dict[str, Any]]) -> list[Node]:
    return [
        Node(
            f"n{index}",
            {"CPU": table["CPU"], "GPU": table["GPU"]}
            | ({f"accelerator_type:{table['accelerator']}": 1.0} if table["accelerator"] else {}),
            table["region"],
        )
        for index, table in enumerate(tables)
    ]


@given(NODES, POOLS, st.booleans())
def test_no_node_is_ever_over_committed_and_regions_bind(
    node_tables: list[dict[str, Any]], pool_tables: list[dict[str, Any]], anywhere: bool
) -> None:
    nodes = built(node_tables)
    pools = learners(*(pool(f"p{i}", table.pop("learners"), **table) for i, table in enumerate(map(dict, pool_tables))))
    wanted = services(chaos=True)
    found = fit(pools, wanted, nodes, anywhere)
    cpus = {service.name: service.cpus for service in wanted}
    for node in nodes:
        asked: dict[str, int] = {}
        for name, place in found.learners.items():
            if place == node.name:
                assert anywhere or pools[name].region in (None, node.region)
                for kind, amount in demand(pools[name]).items():
                    asked[kind] = asked.get(kind, 0) + round(amount * UNIT)
        for name, place in found.services.items():
            if place == node.name:
                asked["CPU"] = asked.get("CPU", 0) + round(cpus[name] * UNIT)
        for kind, amount in asked.items():
            assert amount <= round(node.resources.get(kind, 0.0) * UNIT)
    told = sum(one.units for one in found.shortfalls)
    assert told == len(pools) + len(wanted) - len(found.learners) - len(found.services)


@given(POOLS)
def test_a_node_made_for_each_learner_and_one_for_the_services_is_enough(pool_tables: list[dict[str, Any]]) -> None:
    pools = learners(*(pool(f"p{i}", table.pop("learners"), **table) for i, table in enumerate(map(dict, pool_tables))))
    nodes = [Node(f"for {name}", demand(one), one.region) for name, one in pools.items()]
    head = Node("head", {"CPU": sum(SERVICE_CPUS.values())})
    found = fit(pools, services(chaos=True), [head, *nodes], anywhere=False)
    assert found.shortfalls == ()
    assert len(found.learners) == len(pools)


# ------------------------------------------------------------------ choices


def test_learners_without_a_gpu_stay_off_the_gpu_nodes() -> None:
    found = packed(
        [pool("cpu", 2, resources={"CPU": 4}), pool("gpu", 1, resources={"CPU": 4, "GPU": 1})],
        ["name=gpu,CPU=8,GPU=1", "name=cpu,CPU=10"],
    )
    assert found.shortfalls == ()
    assert found.learners["learner-gpu-0"] == "gpu"


def test_what_fits_to_the_last_unit_fits_and_one_unit_less_does_not() -> None:
    tenths = [pool(count=10, resources={"CPU": 0.1})]
    assert len(packed(tenths, ["CPU=1.1", "CPU=1.0"]).learners) == 10
    assert len(packed(tenths, ["CPU=1.1", "CPU=0.9999"]).learners) == 9


def test_who_can_go_to_one_place_only_goes_first() -> None:
    pools = [pool("any", resources={"CPU": 2}), pool("eu", resources={"CPU": 2}, region="eu")]
    assert packed(pools, ["CPU=1.1", "CPU=2,region=eu", "CPU=3"]).shortfalls == ()


def test_services_make_room_for_a_learner_that_needs_a_whole_node() -> None:
    found = packed([pool(resources={"CPU": 4})], ["name=large,CPU=4", "name=small,CPU=1.1"])
    assert (found.shortfalls, found.services["syncer"]) == ((), "small")


def test_the_syncer_goes_to_the_region_that_it_is_asked_for_in() -> None:
    nodes = from_text(["name=a,CPU=4,region=us", "name=b,CPU=4,region=eu"])
    found = fit(learners(pool()), services(chaos=False, region="eu"), nodes, anywhere=False)
    assert (found.services["syncer"], found.services["evaluator"]) == ("b", "a")
    lost = fit(learners(pool()), services(chaos=False, region="asia"), nodes, anywhere=False)
    assert "there are: eu, us" in lost.shortfalls[0].reason


def test_a_local_node_takes_every_region() -> None:
    assert packed([pool(region="mars")], ["CPU=4"], anywhere=True).shortfalls == ()


@pytest.mark.parametrize(
    ("one", "texts", "field", "reason", "fix"),
    [
        (pool(region="mars"), ["CPU=8,region=eu"], "pools.0.region", "there are: eu", "--labels region=mars"),
        (
            pool(accelerator="H100"),
            ["CPU=8,GPU=1,accelerator=A100"],
            "pools.0.accelerator",
            "has the accelerator H100; there are: A100",
            "one of them",
        ),
        (
            pool(resources={"GPU": 8}),
            ["CPU=8,GPU=4,name=big"],
            "pools.0.resources.GPU",
            "asks for 8 GPU on one node; the most is 4, on big",
            "at most 4",
        ),
        (pool(resources={"TPU": 4}), ["CPU=8"], "pools.0.resources.TPU", "the most is 0", "add nodes with TPU"),
        (
            pool(resources={"CPU": 6, "GPU": 1}),
            ["CPU=8", "CPU=2,GPU=1"],
            "pools.0.resources",
            "no node has CPU=6, GPU=1 together",
            "add such a node",
        ),
        (
            pool(count=5, resources={"CPU": 2}),
            ["CPU=8"],
            "pools.0.learners",
            "room for 3 of 5; lacking: CPU on 1 of 1 nodes",
            "pools.0.learners=3, or add CPU=2 for each of 2 more",
        ),
    ],
)
def test_who_does_not_fit_is_told_why_and_what_would_help(
    one: PoolConfig, texts: list[str], field: str, reason: str, fix: str
) -> None:
    (shortfall,) = packed([one], texts).shortfalls
    assert (shortfall.who, shortfall.field) == ("a", field)
    assert reason in shortfall.reason
    assert fix in shortfall.fix


def test_a_cluster_without_cpus_has_no_place_for_the_services() -> None:
    found = fit({}, [Service("syncer", 0.5)], from_text(["GPU=4"]), anywhere=False)
    assert [one.who for one in found.shortfalls] == ["syncer"]


# ------------------------------------------------------------------ nodes


def test_nodes_are_read_from_text_json_and_toml_alike() -> None:
    text = from_text(["name=n,CPU=8,GPU=4,region=us-east,accelerator=H100,memory=64,bandwidth=10,count=2"])
    as_json = '[{"name": "n", "CPU": 8, "GPU": 4, "region": "us-east", "accelerator": "H100", "memory": 64'
    as_toml = (
        '[[nodes]]\nname="n"\nCPU=8\nGPU=4\nregion="us-east"\naccelerator="H100"\nmemory=64\nbandwidth=10\ncount=2'
    )
    assert text == from_file(as_json + ', "bandwidth": 10, "count": 2}]', "-") == from_file(as_toml, "-")
    assert [node.name for node in text] == ["n", "n-2"]
    assert text[0].memory_bytes == 64 * 2**30
    assert text[0].resources == {"CPU": 8, "GPU": 4, "accelerator_type:H100": 1}
    assert text[0].bandwidth_bits == 1e10


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("CPU", "is not KEY=VALUE", "CPU=8"),
        ("CPU=8,regoin=us", "must be a number", "did you mean region?"),
        ("CPU=-1", "must be a number from 0", "CPU=8"),
        ("CPU=nan", "must be a number from 0", "CPU=8"),
        ("CPU=8,count=1.5", "a whole number", "leave it out"),
        ("CPU=8,count=1e12", "from 1 to 10000", "leave it out"),
        ("region=us", "names no resource", "CPU=8"),
        ("CPU=8,region=3", "must be text", "region=us-east"),
    ],
)
def test_a_node_that_cannot_be_read_is_refused_with_the_fix(text: str, message: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        from_text([text])
    assert message in str(caught.value)
    assert fix in str(caught.value)


@pytest.mark.parametrize("text", ["nonsense =", "{}", "[]", "[1]", '{"nodes": 3}'])
def test_a_file_without_nodes_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"nodes\.toml"):
        from_file(text, "nodes.toml")


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
    wanted = {"CPU": 5.0, "GPU": 8.0, "license": 2.0}
    assert this_machine(wanted, tmp_path).resources == {
        "CPU": 5.0,
        "license": 2.0,
        "GPU": 2.0,
        "accelerator_type:H100": 1.0,
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert this_machine(wanted, tmp_path).resources["GPU"] == 1.0
    assert "GPU" not in this_machine(wanted, tmp_path / "nowhere").resources
