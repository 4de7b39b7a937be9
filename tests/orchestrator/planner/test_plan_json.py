"""The keys of `diloco plan --json`."""

from __future__ import annotations

import json

from orchestrator.planner.plan import as_json
from tests.orchestrator.planner.test_planner import planned, recipe


def test_the_keys_of_the_json_are_these() -> None:
    """Scripts rely on them: a change here is a change for users."""
    one = recipe(pools=[{"name": "a", "learners": 1, "max": 2}])
    told = json.loads(json.dumps(as_json(planned(one), ["x"]), allow_nan=False))
    assert set(told) == {
        *("name", "config_hash", "ok", "recipe", "source", "nodes", "placement", "at_max", "model", "fragments"),
        *("pace", "traffic", "storage", "upkeep", "memory", "constants", "links", "expected"),
        *("fault_outcomes", "forecast", "cost", "limits", "warnings", "commands"),
    }
    assert set(told["placement"]) == {"learners", "services", "shortfalls"}
    assert told["at_max"]["learners"] == {"learner-a-0": ["east"], "learner-a-1": ["east"]}
    assert set(told["nodes"][0]) == {
        *("name", "resources", "labels", "memory_bytes", "accelerator_bytes", "bandwidth_bits")
    }
    flow = {"per_round_bytes", "per_step_bytes", "peak_bytes", "per_second_bits"}
    assert set(told["traffic"]["learner_up"]) == flow
    assert set(told["memory"]) == {"learner-a", "syncer", "evaluator", "orchestrator"}
    assert set(told["memory"]["syncer"]) == {"host_bytes", "store_bytes", "device_bytes", "parts"}
    problem = {"field", "value", "message", "fix"}
    assert all(set(found) == problem for found in (*told["limits"], *told["warnings"]))
