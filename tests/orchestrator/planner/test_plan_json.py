"""The keys of `diloco plan --json`."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.planner.plan import as_json
from tests.orchestrator.planner.test_planner import planned, recipe


def keys(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {f"{path}.{key}".strip(".") for key in value} | {
            inner for key, part in value.items() for inner in keys(part, f"{path}.{key}")
        }
    return {inner for part in value for inner in keys(part, f"{path}[]")} if isinstance(value, list) else set()


def test_the_keys_of_the_json_are_these() -> None:
    """Scripts rely on them: a change here is a change for users."""
    one = recipe(pools=[{"name": "a", "learners": 1, "max": 2}])
    told = json.loads(json.dumps(as_json(planned(one), ["x"]), allow_nan=False))
    assert set(told) == {
        *(
            "name",
            "config_hash",
            "ok",
            "recipe",
            "placement",
            "model",
            "fragments",
            "pace",
            "traffic",
            "durability",
            "upkeep",
            "memory",
        ),
        *("fleet", "rates", "links", "expected", "survives", "forecast", "cost"),
        *("limits", "warnings", "commands"),
    }
    assert set(told["placement"]) == {"source", "nodes", "learners", "services", "unplaced", "at_max"}
    assert told["placement"]["at_max"] == {
        "learners": {"learner-a-0": "east", "learner-a-1": "east"},
        "unplaced": [],
    }
    assert set(told["placement"]["nodes"][0]) == {
        *("name", "resources", "labels", "region", "memory_bytes", "accelerator_bytes", "bandwidth_bits", "free")
    }
    assert set(told["model"]) == {"tensors", "elements", "parameter_bytes", "largest_to_smallest"}
    assert keys(told["fragments"]) == {
        f"[].{key}" for key in ("fragment", "tensors", "elements", "share", "up_bytes", "down_bytes", "due")
    }
    assert keys(told["pace"]) - {"learner_tokens.a"} == {
        *("syncer_steps", "rounds", "step_tokens", "learner_tokens", "step_s", "run_s")
    }
    flow = ("per_round_bytes", "per_step_bytes", "peak_bytes", "per_second_bits", "peak_second_bits")
    ways = ("learner_up", "learner_down", "regions[].up", "regions[].down")
    assert keys(told["traffic"]) == {
        *("learner_up", "learner_down", "regions", "data_parallel"),
        *("joining_bytes", "donation_bytes", "evaluation_bytes", "run_up_bytes", "run_down_bytes"),
        *(f"regions[].{key}" for key in ("region", "syncer_region", "learners", "up", "down")),
        *(f"data_parallel.{key}" for key in ("each_way_bytes", "ratio")),
        *(f"{way}.{key}" for way in ways for key in flow),
    }
    assert set(told["upkeep"]) == {
        *("log_day_bytes", "log_run_bytes", "failover_s", "failover_silent_s", "end_s", "check_core_s"),
        *("syncer_bytes", "orchestrator_bytes", "constants"),
    }
    assert {frozenset(constant) for constant in told["upkeep"]["constants"].values()} == {
        frozenset({"value", "unit", "source"})
    }
    assert set(told["memory"]) == {"learner-a", "syncer", "evaluator", "orchestrator"}
    assert keys(told["memory"]["syncer"]) == {
        *("host_bytes", "store_bytes", "device_bytes", "parts", "parts[].what", "parts[].bytes", "parts[].where")
    }
    problem = {"field", "value", "message", "fix"}
    assert all(set(one) == problem for one in (*told["limits"], *told["warnings"]))
