"""What a pool asks of the cluster, what is refused before anything starts, and what is said when it has no place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.accelerators import tpu as ray_tpu
from ray.util.accelerators import accelerators as ray_accelerators
from ray.util.tpu import get_tpu_version_from_type

from orchestrator.recipe import resources
from orchestrator.recipe.config import PoolConfig
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.resources import (
    GPUS,
    LOCAL_STORE,
    LiveNode,
    Shape,
    local_store_bytes,
    memory_settings,
    refusals,
    shape,
    unschedulable_reason,
)
from orchestrator.recipe.toml_text import load
from orchestrator.recipe.tpu_slices import CHIP_COUNTS, GENERATIONS, chips, is_topology
from orchestrator.runtime.placement import control, inside
from tests.orchestrator.recipe.test_toml_text import LOCAL


def pool(**fields: Any) -> PoolConfig:
    return PoolConfig(name="p", **fields)


def v6e(**fields: Any) -> PoolConfig:
    return pool(**{"resources": {"TPU": 8}, "accelerator": "TPU-V6E", "topology": "2x4"} | fields)


def refused(asked: PoolConfig) -> dict[str, Problem]:
    return {problem.field: problem for problem in refusals(asked, "pools.0")}


# ------------------------------------------------------------------ what is asked for


def test_a_unit_asks_for_its_resources_and_for_nodes_by_label_an_island_for_as_much_on_each_of_its_hosts() -> None:
    asked = shape(pool(resources={"CPU": 8, "GPU": 2}, accelerator="H100", region="us-east"))
    assert asked == Shape({"CPU": 8, "GPU": 2}, {"region": "us-east", "ray.io/accelerator-type": "H100"})
    assert shape(pool()) == Shape({"CPU": 1}, {})
    asked = shape(pool(resources={"CPU": 8, "GPU": 2}, processes=4, hosts=2, region="us-east"))
    assert (asked.resources, asked.labels, asked.nodes) == ({"CPU": 16, "GPU": 4}, {"region": "us-east"}, 2)
    made = pool(accelerator="TPU-V5P", topology="2x2x2")  # a slice: a process on each host with its chips
    assert (made.hosts, made.processes, made.resources, made.slice_hosts) == (2, 2, {"TPU": 4}, 2)
    assert (shape(made).resources, shape(made).labels["ray.io/tpu-pod-type"]) == ({"TPU": 4}, "v5p-16")
    assert (v6e().hosts, v6e().processes, v6e().slice_hosts) == (1, 1, 0)


def test_on_a_cluster_of_one_local_node_labels_are_not_asked_for() -> None:
    here = shape(pool(resources={"CPU": 1}, processes=4, hosts=2), anywhere=True)
    assert (here.resources, here.nodes) == ({"CPU": 4}, 1)
    assert shape(v6e(region="us-east"), anywhere=True) == Shape({"TPU": 8}, {})
    assert control({"role": "control"}, anywhere=True) == {}
    assert control({"role": "control"}, anywhere=False) == {"label_selector": {"role": "control"}}
    assert control({}, anywhere=False) == {}


def test_learners_that_share_a_gpu_leave_each_other_room_and_what_the_user_has_set_stays() -> None:
    for share, fraction in ((0.25, "0.225"), (0.5, "0.450"), (1 / 3, "0.300"), (1, "0.900"), (8, "0.850")):
        asked = pool(resources={"CPU": 1, "GPU": share})
        assert memory_settings(asked, {}) == {"XLA_CLIENT_MEM_FRACTION": fraction}
        assert float(fraction) * max(1, round(1 / share)) < 0.91
        assert inside(None, asked, {})["runtime_env"] == {"env_vars": {"XLA_CLIENT_MEM_FRACTION": fraction}}
    for name in ("CLIENT_MEM_FRACTION", "PYTHON_CLIENT_MEM_FRACTION", "PYTHON_CLIENT_PREALLOCATE"):
        assert memory_settings(asked, {f"XLA_{name}": "0.3"}) == {}, "XLA refuses both names of the fraction"
    for other in ({"CPU": 1}, {"TPU": 4}):
        assert memory_settings(pool(resources=other), {}) == {}
        assert "runtime_env" not in inside(None, pool(resources=other), {})


# ------------------------------------------------------------------ slices, against Ray's own tables


@pytest.mark.parametrize("accelerator", GENERATIONS)
def test_slices_have_the_hosts_and_names_that_ray_gives_them(accelerator: str) -> None:
    generation = GENERATIONS[accelerator]
    assert get_tpu_version_from_type(accelerator) == generation.name
    known = ray_tpu.VALID_TPU_TOPOLOGY[generation.name]
    assert set(generation.one_host) <= known
    assert not any(generation.has(other) for other in ("3x4", "4x4x4x4", "2x2x3", "4x", "1", ""))
    for topology in known:
        per_host = ray_tpu.get_chips_per_host(topology, generation.name)
        assert is_topology(topology) and generation.has(topology)
        assert generation.hosts(topology) == max(1, chips(topology) // per_host), topology
        assert (topology in generation.one_host) == (chips(topology) <= per_host), topology
        assert generation.pod_type(topology) == ray_tpu.infer_tpu_pod_type_from_topology(topology, accelerator)


def test_the_names_we_know_are_rays() -> None:
    rays = {value for name, value in vars(ray_accelerators).items() if name.isupper()}
    assert set(GPUS) <= rays
    assert set(GENERATIONS) == {name for name in rays if name.startswith("TPU-")}
    assert CHIP_COUNTS == ray_tpu.TPU_VALID_CHIP_OPTIONS


# ------------------------------------------------------------------ what no cluster can give


SLICE = {"resources": {"TPU": 8}, "accelerator": "TPU-V6E", "topology": "2x4"}


@pytest.mark.parametrize(
    ("fields", "field", "message", "fix"),
    [
        ({"processes": 4, "hosts": 3}, "hosts", "does not divide the 4 processes", ""),
        ({"processes": 2, "standby": 1}, "standby", "are made for learners of one process", ""),
        ({"processes": 2, "resources": {"GPU": 0.5}}, "resources.GPU", "cannot meet on one GPU", ""),
        ({"resources": {}}, "resources", "has no place", "CPU = 1"),
        ({"resources": {"memory": 1e9}}, "resources.memory", "cannot be asked for", "leave it out"),
        ({"resources": {"GPU": 1, "TPU": 4}}, "resources", "no node has both", "two pools"),
        ({"resources": {"GPU": 1.5}}, "resources.GPU", "whole number", "GPU = 1"),
        ({"resources": {"TPU": 3}}, "resources.TPU", "1, 2, 4, 8", "one of 1, 2, 4, 8"),
        ({"resources": {"GPU": 1}, "accelerator": "h100"}, "accelerator", "letter by letter", '"H100"'),
        ({"resources": {"TPU": 4}, "accelerator": "TPU-V6"}, "accelerator", "no TPU generation", '"TPU-V6E"'),
        ({"resources": {"TPU": 4}, "accelerator": "H100"}, "accelerator", "TPUs", "GPUs"),
        ({"resources": {"CPU": 4}, "accelerator": "H100"}, "accelerator", "no GPU", "resources"),
        ({"resources": {"CPU": 4}, "accelerator": "TPU-V6E"}, "accelerator", "no TPU", "resources"),
        ({"resources": {"TPU": 4}, "topology": "2x2"}, "topology", "names no TPU", "TPU-V6E"),
        (SLICE | {"topology": "4x4"}, "topology", "has 4 chips on each of 4 hosts", "resources.TPU = 4"),
        (
            SLICE | {"topology": "4x4", "resources": {"TPU": 4}, "processes": 2},
            "topology",
            "not 2 processes on 4",
            "leave hosts and",
        ),
        (
            SLICE | {"topology": "4x4", "resources": {"TPU": 4}, "hosts": 2},
            "topology",
            "not 4 processes on 2",
            "write 4 for both",
        ),
        (SLICE | {"accelerator": "TPU-V5P"}, "topology", "is no topology of v5p", "use one of 2x2x1, 2x2x2"),
        (SLICE | {"topology": "4x4x4"}, "topology", "is no topology of v6e", "use one of 1x1"),
        (SLICE | {"resources": {"TPU": 4}}, "topology", "has 8 chips", "resources.TPU = 8"),
        (SLICE | {"resources": {"neuron": 4}}, "topology", "ask for TPU = 0", "resources.TPU = 8"),
    ],
)
def test_what_cannot_be_is_refused_with_its_fix(fields: dict[str, Any], field: str, message: str, fix: str) -> None:
    problem = refused(pool(**fields))[f"pools.0.{field}"]
    assert message in problem.message and fix in problem.fix


def test_sound_pools_are_not_complained_of() -> None:
    for sound in (
        {},
        {"processes": 4, "hosts": 2},
        {"resources": {"GPU": 0.25}, "accelerator": "H100"},
        {"resources": {"GPU": 8, "CPU": 32}, "accelerator": "A100-80G", "region": "eu.west_4"},
        {"resources": {"TPU": 4}, "accelerator": "TPU-V4"},
        {"resources": {"TPU": 1}, "accelerator": "TPU-V5LITEPOD", "topology": "1x1"},
        SLICE,
        {"resources": {"neuron_cores": 2}, "accelerator": "aws-neuron-core"},
        {"accelerator": "TPU-V6E", "topology": "4x4"},
        {"accelerator": "TPU-V5P", "topology": "8x8x16", "resources": {"TPU": 4, "CPU": 100}},
    ):
        assert refused(pool(**sound)) == {}


def test_a_recipes_hardware_and_labels_are_checked_with_the_rest() -> None:
    with pytest.raises(InputError) as caught:
        load(LOCAL, ["pools.0.region=us east", "run.control={role = '-'}"])
    assert {problem.field for problem in caught.value.problems} == {"pools.0.region", "run.control.role"}
    assert all("letters, digits" in problem.message for problem in caught.value.problems)
    recipe = load(LOCAL, ["pools.0.resources={TPU = 8}", "pools.0.accelerator=TPU-V6E", "pools.0.topology=3x3"])
    from orchestrator.recipe.validation import problems

    assert [problem.field for problem in problems(recipe)] == ["pools.0.topology"]


# ------------------------------------------------------------------ what this cluster cannot give

HEAD = LiveNode({"region": "us-east"}, {"CPU": 8})
H100 = LiveNode({"region": "us-east", "ray.io/accelerator-type": "H100"}, {"CPU": 96, "GPU": 8})
A100 = LiveNode({"region": "us-west", "ray.io/accelerator-type": "A100"}, {"CPU": 12, "GPU": 1})


@pytest.mark.parametrize(
    ("claim", "nodes", "says"),
    [
        (
            Shape({"GPU": 1}, {"region": "us-west", "ray.io/accelerator-type": "H100"}),
            [HEAD, H100, A100],
            "no living node has the labels region = us-west, ray.io/accelerator-type = H100; "
            "there, region is us-east, us-west; ray.io/accelerator-type is A100, H100",
        ),
        (
            Shape({"TPU": 8}, {"ray.io/tpu-pod-type": "v6e-8"}),
            [HEAD],
            "no living node has the label ray.io/tpu-pod-type = v6e-8; there, no node has a label ray.io/tpu-pod-type",
        ),
        (
            Shape({"CPU": 1, "GPU": 16}, {"region": "us-east"}),
            [HEAD, H100, A100],
            "of 2 living nodes with the label region = us-east none has 16 GPU: the largest has 8",
        ),
        (
            Shape({"CPU": 50, "GPU": 8}, {}),
            [LiveNode({}, {"CPU": 64}), LiveNode({}, {"CPU": 8, "GPU": 8})],
            "of 2 living nodes none has 50 CPU, 8 GPU together",
        ),
        (
            Shape({"GPU": 8}, {"region": "us-east"}),
            [HEAD, H100],
            "of 2 living nodes with the label region = us-east some have 8 GPU, but others are using them",
        ),
        (
            Shape({"GPU": 8}, {}, 3),
            [HEAD, H100, A100],
            "of 3 living nodes only 1 with 8 GPU, and a learner is spread over 3",
        ),
        (Shape({"CPU": 1}, {}), [], "no node is alive"),
    ],
)
def test_a_claim_without_a_place_is_told_why(claim: Shape, nodes: list[LiveNode], says: str) -> None:
    assert unschedulable_reason(claim, nodes) == says


def test_a_local_object_store_grows_with_the_machine_and_stays_within_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk, memory = SimpleNamespace(free=100 * 2**30), SimpleNamespace(total=64 * 2**30)
    monkeypatch.setattr(resources, "psutil", SimpleNamespace(disk_usage=lambda _: disk, virtual_memory=lambda: memory))
    monkeypatch.setattr(resources, "CONTAINER", str(tmp_path / "memory.max"))
    assert local_store_bytes() == int(0.3 * 64 * 2**30)
    (tmp_path / "memory.max").write_text("max")
    assert local_store_bytes() == int(0.3 * 64 * 2**30)
    (tmp_path / "memory.max").write_text(str(8 * 2**30))
    assert local_store_bytes() == int(0.3 * 8 * 2**30)
    disk.free = 2**30
    assert local_store_bytes() == int(0.9 * 2**30)
    disk.free = 64 * 2**20
    assert local_store_bytes() == LOCAL_STORE
