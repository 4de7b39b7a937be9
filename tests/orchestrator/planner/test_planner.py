"""The plan's figures against sums done by hand, and each warning and limit: that it comes, and that it goes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learners.training import state_arrays as state
from learners.training import task
from learners.training.trainer import Trainer
from learners.training.tree import deal
from orchestrator.analysis.summary import ELEMENT_BYTES
from orchestrator.cli.plan import _wanted
from orchestrator.planner.make import make
from orchestrator.planner.plan import Plan, PlanContext, as_json
from orchestrator.planner.sizing import capacity, memory
from orchestrator.planner.sizing.model_sizes import Shapes, shapes_of
from orchestrator.planner.sizing.nodes import from_text
from orchestrator.planner.sizing.traffic import DOWN_BYTES, table, traffic
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import load
from orchestrator.recipe.validation import resolve
from orchestrator.runtime import actor, launch, metrics_actor, placement, ray_processes
from outer.bulk import SHARD_CPUS
from outer.config import SyncConfig
from outer.protocol.fragments import Fragment, Tensor

RECIPES = Path(__file__).parents[3] / "deploy" / "recipes"
SPACIOUS = ["name=west,CPU=100,GPU=8,region=west", "name=east,CPU=100,region=east"]

# A plan of this has nothing to say. 4 learners in two pools, 4 fragments of 100, 100, 100 and 50 elements.
SOUND: dict[str, Any] = {
    "name": "sound",
    "sync": {"P": 4, "H": 12, "tau": 2, "quorum": 2, "codec": "bf16"},
    "pools": [{"name": "a", "learners": 2}, {"name": "b", "learners": 2}],
    "budget": {"syncer_steps": 1200},
    "run": {"metrics": False},  # 1.1 CPU of services
}


def recipe(**sections: Any) -> Recipe:
    raw = dict(SOUND)
    for name, value in sections.items():
        old = raw.get(name)
        raw[name] = old | value if isinstance(old, dict) and "tokens" not in value else value
    return Recipe.model_validate(raw)


def shapes(*sizes: int, parameter_bytes: int = 4 * 350, step_tokens: int = 768) -> Shapes:
    sizes = sizes or (100, 100, 100, 50)
    fragments = tuple(Fragment(index, (Tensor(f"t{index}", (size,), "float32"),)) for index, size in enumerate(sizes))
    return Shapes(
        fragments, parameter_bytes, 2 * parameter_bytes, tuple(4 * n for n in sizes), dict.fromkeys("ab", step_tokens)
    )


def planned(
    wanted: Recipe | None = None, of: Shapes | None = None, nodes: list[str] | None = None, **setting: Any
) -> Plan:
    base = PlanContext(from_text(nodes or SPACIOUS), "declared", store="/shared/run", shared_store=True, forecast=False)
    return make(wanted or recipe(), of or shapes(), replace(base, **setting))


STEP_2S = {"step_s": 2.0}


# ------------------------------------------------------------------ figures


def test_traffic_is_what_one_computes_by_hand() -> None:
    sync = SyncConfig.model_validate({"P": 4, "H": 12, "codec": "bf16"})
    rows = table(shapes().fragments, sync)
    assert [(row.up_bytes, row.down_bytes, row.due) for row in rows] == [
        (200, 400, 0),
        (200, 400, 3),
        (200, 400, 6),
        (100, 200, 9),
    ]
    found = traffic(rows, sync, {"x": "eu", "y": "us", "z": "us"}, "us", 30, 1200, inner_state_bytes=2404, step_s=0.5)
    assert found.learner_up.per_round_bytes == 700
    assert found.learner_up.per_step_bytes == pytest.approx(700 / 12)
    assert found.learner_up.peak_bytes == 200
    assert found.learner_up.per_second_bits == pytest.approx(8 * 700 / 12 / 0.5)
    # T = 30: due at 12, 24 / 3, 15, 27 / 6, 18, 30 / 9, 21.
    assert found.run_up_bytes == 3 * (2 * 200 + 3 * 200 + 3 * 200 + 2 * 100)
    assert found.run_down_bytes == 3 * (1400 + 2 * 400 + 3 * 400 + 3 * 400 + 2 * 200)
    # Ring all-reduce of 1200 bytes among 3: 2 * 2 / 3 * 1200 each way.
    assert found.data_parallel_bytes == 1600
    assert (found.joining_bytes, found.donation_bytes) == (1400, 1200 + 2404)
    assert found.data_parallel_ratio == pytest.approx(3200 / (2100 / 12))


def test_versions_come_down_as_differences_and_first_ones_whole() -> None:
    sync = SyncConfig.model_validate({"P": 4, "H": 12, "codec": "bf16", "downlink": "int8"})
    rows = table(shapes().fragments, sync)
    assert [row.down_bytes for row in rows] == [104, 104, 104, 54], "a byte each, and a scale"
    found = traffic(rows, sync, {"x": "eu", "y": "us"}, "us", 24, 1200, 2404, 0.5)
    assert (found.learner_down.per_round_bytes, found.learner_down.peak_bytes) == (366, 104)
    assert found.joining_bytes == 1400
    assert found.run_down_bytes == 2 * (1400 + 2 * 366)
    small = SyncConfig.model_validate({"P": 1, "H": 12, "downlink": "int8"})
    assert table(shapes(1).fragments, small)[0].down_bytes == 4, "the whole version is smaller"


def test_without_a_step_time_nothing_is_said_per_second_and_one_learner_is_compared_with_nothing() -> None:
    sync = SyncConfig.model_validate({"P": 4, "H": 12})
    found = traffic(table(shapes().fragments, sync), sync, {"x": None}, None, 24, 1400, 2800, step_s=None)
    assert found.learner_up.per_second_bits is None
    assert found.data_parallel_ratio is None
    assert found.data_parallel_bytes == 0


def test_memory_of_a_learner_and_the_syncer_by_hand() -> None:
    found = planned().memory
    learner = {part.what: part.bytes for part in found["learner-a"].parts}
    assert learner["parameters"] == learner["gradients"] == 1400
    assert learner["inner optimizer state"] == 2800
    assert learner["versions last received"] == 1400
    # Fragments are due every third step, so of any two steps at most one stages one: the largest, float32, twice.
    assert learner["staged fragments, and the ones they replace"] == 2 * 400
    assert learner["a snapshot, for a checkpoint or a joiner"] == 1400 + 2800
    assert learner["contributions on their way up"] == 100 * 2, "of tau = 2 steps at most one has a fragment"
    syncer = {part.what: part.bytes for part in found["syncer"].parts}
    assert syncer["global parameters"] == syncer["outer optimizer state"] == 1400
    assert syncer["payloads of the open steps"] == 4 * 100 * 2
    assert syncer["one outer step, float64"] == 0
    other = planned(recipe(outer={"optimizer": "adam"})).memory
    syncer = {part.what: part.bytes for part in other["syncer"].parts}
    assert syncer["one outer step, float64"] == 5 * 100 * 8 + 4 * 100 + 4 * 400
    assert found["learner-a"].device_bytes == 0


def test_shards_divide_what_the_syncer_holds_and_have_a_place_each() -> None:
    model, durable = shapes(200, 500, 100, 100), {"durability": {"mode": "journal"}}
    one = planned(recipe(**durable), of=model)
    two = planned(recipe(run={"shards": 2}, **durable), of=model)
    whole, shard = ({part.what: part.bytes for part in two.memory[who].parts} for who in ("syncer", "shard"))
    assert list(whole) == ["the process itself"]
    assert shard["global parameters"] == shard["outer optimizer state"] == 4 * 600  # fragments 1 and 3
    both = {part.what: part.bytes for part in one.memory["syncer"].parts}
    assert both["global parameters"] == 4 * 900 and "shard" not in one.memory
    assert shard["payloads of the open steps"] == both["payloads of the open steps"], "of the largest fragment"
    assert {"shard-0", "shard-1"} <= two.placement.services.keys()
    spread = planned(recipe(run={"shards": 2}, **durable), nodes=["CPU=8", "CPU=8"], of=model).placement.services
    assert spread["shard-0"] != spread["shard-1"]


def test_parameters_and_optimizer_state_of_a_learner_with_gpus_are_on_the_device() -> None:
    on_gpu = memory.learner(SyncConfig(), shapes(), accelerated=True)
    state, staged = 1400 + 2800, memory.staged_bytes(SyncConfig(), shapes())
    assert on_gpu.device_bytes == state + 1400 + 2 * staged + 400 + state
    on_cpu = memory.learner(SyncConfig(), shapes(), accelerated=False)
    # On the host are what was asked for, and the packed snapshot, which a CPU reads where they are.
    kept = next(part.bytes for part in on_cpu.parts if part.what == "freed blocks that the heap keeps")
    assert kept == int(memory.HEAP_KEPT * on_gpu.device_bytes)
    assert on_gpu.host_bytes == on_cpu.host_bytes - on_gpu.device_bytes - kept + staged + state


def test_standbys_rebasing_and_links_that_change_their_format_take_memory_of_their_own() -> None:
    def part(wanted: Recipe, who: str, what: str) -> int:
        return next(part.bytes for part in planned(wanted).memory[who].parts if part.what == what)

    pools = [{"name": "a", "learners": 1, "standby": 2}, {"name": "b", "resources": {"GPU": 1}, "standby": 1}]
    process = memory.PROCESS_BYTES["learner"]
    told = [part(recipe(pools=pools), f"learner-{name}", "standbys") for name in ("a", "b")]
    assert told == [2 * (process + 1400 + 2800), process]
    what = "payloads of several formats, float32"
    copies = [part(recipe(sync=sync), "syncer", what) for sync in ({}, {"adaptive": True})]
    assert copies == [0, 5 * 100 * 4]
    rebase = SyncConfig.model_validate({"adopt": "rebase"})
    extra = memory.learner(rebase, shapes(), True).host_bytes - memory.learner(SyncConfig(), shapes(), True).host_bytes
    assert extra == 1400, "what was read is kept as well"


def test_pace_of_a_token_budget_counts_every_learner_once_a_step() -> None:
    slow = [{"name": "a", "learners": 1}, {"name": "b", "learners": 2, "slowdown": 3.0}]
    found = planned(recipe(budget={"tokens": 230_401}, pools=slow, fleet={"step_s": 0.5})).pace
    assert found.syncer_steps == 101  # 3 * 768 tokens a step
    assert found.rounds == pytest.approx(101 / 12)
    assert found.step_s == 1.5  # the median learner's
    assert found.run_s == pytest.approx(151.5)


def test_shapes_of_the_demo_are_those_of_its_task() -> None:
    found = shapes_of(resolve(load(RECIPES / "demo.toml")))
    assert found.elements == 357_024
    assert found.parameter_bytes == 4 * 357_024
    # Muon's momentum of matrices; of the rest, 25,248 elements, Adam's two moments; and counts.
    assert 4 * (357_024 + 25_248) <= found.inner_state_bytes <= 4 * (357_024 + 25_248) + 32
    assert sum(found.outer_state_bytes) == 4 * 357_024
    assert found.step_tokens == {"local": 768}


def test_memory_counts_the_copy_for_the_loss_and_the_sums_over_microbatches() -> None:
    settings = ["inner.compute=bfloat16", "inner.microbatches=2"]
    found = shapes_of(resolve(load(RECIPES / "demo.toml", settings)))
    assert found.parameter_bytes == found.summed_bytes == 4 * 357_024
    assert found.compute_bytes == 2 * 357_024
    parts = {part.what: part for part in memory.learner(SyncConfig(), found, accelerated=True).parts}
    copy, sums = parts["parameters in the loss's dtype"], parts["gradients summed over microbatches"]
    assert (copy.bytes, sums.bytes) == (found.compute_bytes, found.summed_bytes)
    assert copy.where == sums.where == "device"


def test_leaves_of_other_kinds_have_no_gradients_and_those_not_sent_are_not_placed() -> None:
    model = replace(shapes(), parameter_bytes=10_000 + 1400, unstepped_bytes=10_000 + 40, unsent_bytes=10_000)
    found = {part.what: part.bytes for part in memory.learner(SyncConfig(), model, accelerated=True).parts}
    plain = {part.what: part.bytes for part in memory.learner(SyncConfig(), shapes(), accelerated=True).parts}
    assert (found["parameters"], found["gradients"]) == (11_400, 1360)
    placed = "a version that came, placed for a step's end"
    assert found[placed] == plain[placed]


def test_constants_are_those_of_the_code_that_runs() -> None:
    from chaos.actor import CPUS

    assert capacity.SERVICE_CPUS == {
        "orchestrator": actor.ORCHESTRATOR_CPUS,
        "syncer": ray_processes.SYNCER_CPUS,
        "metrics": metrics_actor.CPUS,
        "chaos": CPUS,
    }
    assert capacity.AGENT_CPUS == placement.AGENT_CPUS
    assert capacity.SHARD_CPUS == SHARD_CPUS
    assert DOWN_BYTES == ELEMENT_BYTES


@pytest.mark.parametrize("overrides", [[], ["pools.0.max=5"], ["pools.0.resources={CPU=2, license=3}"]])
def test_this_machine_is_planned_with_the_room_that_a_local_ray_gets(overrides: list[str]) -> None:
    wanted = load(RECIPES / "local.toml", overrides)
    room = _wanted(wanted)
    assert math.ceil(room.pop("CPU")) == launch.logical_cpus(wanted)
    assert room == launch._other_resources(wanted)


# ------------------------------------------------------------------ warnings

SPREAD = [{"name": "a", "learners": 3, "region": "west"}, {"name": "b", "learners": 1, "region": "east"}]
FULL = {"codec": "fp32", "quorum": 1}
LOCKSTEP = {"grace": "infinite", "overlap": "strict", "quorum": "all"}
SPLIT = {"split": True}
BY_TENSOR = {"split": True, "fragmentation": "tensor"}
UNEVEN = shapes(500, 100, 100, 100)
HERE = {"nodes": ["CPU=100"], "source": "this machine"}
WARNINGS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [  # (recipe, setting, the one field warned of, words)
    ({"sync": {"quorum": "all"}}, {}, "sync.quorum", "every one of 4"),
    ({"sync": {"quorum": 3}}, {}, "sync.quorum", "without pool a (2 of 4"),
    ({"sync": {"grace": "infinite"}}, {}, "sync.grace", "slowest live learner"),
    ({"outer": {"momentum": 0.96}}, {}, "outer.momentum", "about 125"),
    ({"sync": {"tau": 3}}, {}, "sync.tau", "25%"),
    ({}, {}, "", ""),
    ({"sync": LOCKSTEP}, {}, "", "on purpose"),
    ({"sync": {"tau": 3, "adopt": "rebase"}}, {}, "", "what was not read is kept"),
    ({"outer": {"momentum": 0.95}}, {}, "", "100 rounds do"),
    ({"outer": {"optimizer": "adam"}}, {}, "", ""),
    ({"pools": [{"name": "a", "learners": 1}], "sync": {"quorum": 1, "grace": "infinite"}}, {}, "", ""),
    ({"outer": {"momentum": 0.0}, "budget": {"tokens": 11 * 4 * 768}}, {}, "budget.tokens", "round"),
    ({"outer": {"momentum": 0.0}, "budget": {"tokens": 12 * 4 * 768}}, {}, "", "a whole one"),
    ({}, {"of": UNEVEN}, "sync.split", "give true, which cuts it by rows, or P = 2"),
    ({}, {"of": shapes(150, 100, 100, 100)}, "", "within four thirds of the mean"),
    ({"sync": SPLIT}, {"of": UNEVEN}, "sync.P", "give 1 or less"),  # it cannot be cut
    ({"sync": BY_TENSOR}, {"of": UNEVEN}, "sync.fragmentation", "give balanced"),
    ({"pools": SPREAD, "sync": FULL}, {}, "sync.codec", "fp32"),
    ({"sync": FULL}, {"nodes": ["CPU=100,region=west"]}, "", "in one region"),
    ({"pools": SPREAD, "sync": FULL}, HERE, "", "on one machine"),
    ({}, {"shared_store": False}, "run.folder", "/shared/run"),
    ({}, {"shared_store": False, "nodes": ["CPU=100"]}, "", "one host"),
]


@pytest.mark.parametrize(("sections", "setting", "field", "says"), WARNINGS)
def test_a_doubtful_setting_is_warned_of_once_and_by_its_field_and_what_is_as_meant_is_not(
    sections: dict[str, Any], setting: dict[str, Any], field: str, says: str
) -> None:
    plan = planned(recipe(**sections | {"fleet": {"step_s": 1.0} | sections.get("fleet", {})}), **setting)
    assert [warning.field for warning in plan.warnings] == [field] * bool(field) and plan.ok
    for warning in plan.warnings:
        assert says in f"{warning.message} {warning.value} {warning.fix}" and warning.fix


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("sections", "nodes", "field"),
    [
        ({"pools": [{"name": "a", "learners": 5}]}, ["CPU=4"], "pools.0"),
        ({"pools": [{"name": "a", "accelerator": "H100"}]}, ["CPU=9,GPU=1"], "pools.0"),
        ({}, ["CPU=9,memory=2.1,name=n"], "n memory"),
        (
            {"pools": [{"name": "a", "resources": {"GPU": 1}}]},
            ["CPU=9,GPU=1,accelerator_memory=0.000001,name=n"],
            "n accelerator_memory",
        ),
    ],
)
def test_what_cannot_work_is_a_limit(sections: dict[str, Any], nodes: list[str], field: str) -> None:
    wanted = recipe(**({"sync": {"quorum": 1}} | sections))
    plan = planned(wanted, nodes=nodes)
    assert not plan.ok
    assert plan.limits[0].field == field


def test_devices_hold_the_parameters_whole_unless_the_task_may_cut_them_in_the_part_that_xla_takes() -> None:
    def fits(gpus: int, gib: float, of: Shapes) -> bool:
        wanted = recipe(pools=[{"name": "a", "resources": {"GPU": gpus}}], sync={"quorum": 1})
        limits = planned(wanted, of, [f"CPU=9,GPU={gpus},accelerator_memory={gib},name=n"]).limits
        assert [limit.field for limit in limits] in ([], ["n accelerator_memory"])
        return not limits

    needed = memory.learner(recipe(sync={"quorum": 1}).sync, shapes(), accelerated=True).device_bytes / 2**30
    short = needed - 2.0**-30
    assert not fits(2, short, shapes()) and fits(2, short, replace(shapes(), shardable=True))
    assert fits(1, needed / 0.89, shapes()) and not fits(1, needed / 0.95, shapes())


# ------------------------------------------------------------------ learners that come and go

ELASTIC = [{"name": "a", "learners": 3, "min": 2, "max": 5}, {"name": "b", "learners": 2, "min": 1, "max": 2}]


REGIONS = [pool | {"region": region} for pool, region in zip(ELASTIC, ("west", "east"), strict=True)]
SPOT = [{"name": "a", "learners": 2, "min": 2}, {"name": "b", "learners": 4}]


@pytest.mark.parametrize(
    ("pools", "quorum", "says"),
    [
        (ELASTIC, 1, []),
        (ELASTIC, 2, ["with its pools at their min without pool a (2 of 3 learners) only 1 are left"]),
        (ELASTIC, 3, ["with its pools at their min only 3 learners are left"]),
        (ELASTIC, 4, ["with its pools at their min only 3 learners are left"]),
        (ELASTIC, 5, ["is every one of 5 learners"]),
        (REGIONS, 2, ["pool a (2 of 3", "region west (2 of 3"]),
        (SPOT, 2, ["only 2 learners are left"]),  # a pool that may go altogether counts as gone
        (SPOT[1:], 2, []),  # no min at all: as they start
    ],
)
def test_the_quorum_is_held_against_the_fewest_learners_that_scaling_leaves(
    pools: list[dict[str, Any]], quorum: int, says: list[str]
) -> None:
    found = [warning.message for warning in planned(recipe(pools=pools, sync={"quorum": quorum})).warnings]
    assert len(found) == len(says) and all(words in each for words, each in zip(says, found, strict=True))


@pytest.mark.full
def test_a_peer_gives_a_joiner_what_its_trainer_holds() -> None:
    resolved = resolve(load(RECIPES / "demo.toml"))
    built = task.load(resolved.task, resolved.data, resolved.seed, dict(resolved.model))
    held = state.pack(Trainer(built, deal(built, resolved.sync), resolved.inner, seed=0).state_leaves())
    assert planned(resolved, shapes_of(resolved)).traffic.donation_bytes == state.size(held)


@pytest.mark.parametrize("sync", [{"recover": "syncer"}, {"overlap": "strict", "quorum": "all"}])
def test_who_starts_from_the_syncer_is_given_nothing_by_a_peer(sync: dict[str, Any]) -> None:
    assert planned(recipe(sync=sync)).traffic.donation_bytes is None


def test_an_opportunistic_pool_needs_a_place_for_its_min_alone() -> None:
    spot = {"name": "b", "learners": 2, "max": 8, "opportunistic": True}
    pools = [{"name": "a", "learners": 3, "min": 3}, spot]
    found = planned(recipe(pools=pools, sync={"quorum": 1}), nodes=["CPU=4.2"])
    assert found.ok
    needed = planned(recipe(pools=[pools[0], spot | {"min": 1}], sync={"quorum": 1}), nodes=["CPU=4.2"])
    assert [limit.message.partition(":")[0] for limit in needed.limits] == ["b"]


# ------------------------------------------------------------------ JSON


def test_the_keys_of_the_json_are_these() -> None:
    """Scripts rely on them: a change here is a change for users."""
    one = recipe(pools=[{"name": "a", "learners": 1, "max": 2}])
    told = json.loads(json.dumps(as_json(planned(one), ["x"]), allow_nan=False))
    assert set(told) == {
        *("name", "config_hash", "ok", "recipe", "source", "nodes", "placement", "model", "fragments"),
        *("pace", "round_steps", "traffic", "memory", "constants", "links", "expected"),
        *("fault_outcomes", "forecast", "cost", "limits", "warnings", "commands"),
    }
    assert set(told["placement"]) == {"learners", "services", "shortfalls"}
    assert set(told["nodes"][0]) == {*("name", "resources", "labels", "memory_bytes", "accelerator_bytes")}
    flow = {"per_round_bytes", "per_step_bytes", "peak_bytes", "per_second_bits"}
    assert set(told["traffic"]["learner_up"]) == flow
    assert set(told["memory"]) == {"learner-a", "syncer", "evaluator", "orchestrator"}
    assert set(told["memory"]["syncer"]) == {"host_bytes", "store_bytes", "device_bytes", "parts"}
    problem = {"field", "value", "message", "fix"}
    assert all(set(found) == problem for found in (*told["limits"], *told["warnings"]))
