"""A cluster of several fake nodes on this host, and one run on it: where everything was put, as JSON on stdout.

A process of its own, since Ray connects a process to one cluster only. The nodes have labels and amounts of
accelerators, as Ray finds them on real ones, but no hardware. Argument: a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "JAX_PLATFORMS": "cpu"}
os.environ["DILOCO_PLATFORM"] = "cpu"  # its accelerators are fake

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table, remove_placement_group

from chaos.actor import start
from orchestrator.eventlog.facts import LearnerLost, LearnerStarted, NodePreempted, RunFinished
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.validation import resolve, validate
from orchestrator.runtime import placement
from orchestrator.runtime.launch import start_and_wait
from orchestrator.runtime.placement import RunPlacement
from orchestrator.store.compile_cache import compilation_cache
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import LearnerFenced
from tests.runtime.clusters import preemption
from tests.waiting import DEADLINE_S

TYPE, POD, TOPOLOGY = "ray.io/accelerator-type", "ray.io/tpu-pod-type", "ray.io/tpu-topology"
SLICE, WORKER = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
PART = {"region": "west", TYPE: "TPU-V5P", POD: "v5p-16", TOPOLOGY: "2x2x2"}  # of a slice of two hosts
NODES: list[dict[str, Any]] = [
    {"labels": {"region": "east"}},  # where the driver is: what is bound to nothing else comes up here
    {"labels": {"region": "east", TYPE: "H100"}, "num_gpus": 2},
    {"labels": {"region": "west", TYPE: "A100"}, "num_gpus": 2},
    {"labels": {"region": "west", TYPE: "A100"}, "num_gpus": 2},  # one of the two is going to be taken away
    {
        "labels": {"region": "east", "role": "control", TYPE: "TPU-V6E", POD: "v6e-8", TOPOLOGY: "2x4"},
        "resources": {"TPU": 8, "TPU-v6e-8-head": 1},
        "num_cpus": 4,
    },
    {
        "labels": {"region": "west", TYPE: "TPU-V5P", POD: "v5p-8", TOPOLOGY: "2x2x1"},
        "resources": {"TPU": 4, "TPU-v5p-8-head": 1},
        "num_cpus": 1,
    },
    # Hosts of two slices: one has lost its second, so only the other is whole.
    {"labels": PART | {SLICE: "broken", WORKER: "0"}, "resources": {"TPU": 4, "TPU-v5p-16-head": 1}, "num_cpus": 1},
    {"labels": PART | {SLICE: "whole", WORKER: "1"}, "resources": {"TPU": 4}, "num_cpus": 1},
    {"labels": PART | {SLICE: "whole", WORKER: "0"}, "resources": {"TPU": 4, "TPU-v5p-16-head": 1}, "num_cpus": 1},
]
POOLS: list[dict[str, Any]] = [
    {"name": "h100", "region": "east", "accelerator": "H100", "resources": {"CPU": 1, "GPU": 0.5}},
    {"name": "gpu-west", "region": "west", "resources": {"CPU": 1, "GPU": 2}},
    {"name": "v6e", "accelerator": "TPU-V6E", "topology": "2x4", "resources": {"TPU": 8}},
    {"name": "v5p", "accelerator": "TPU-V5P", "topology": "2x2x1", "resources": {"TPU": 4}},
    {"name": "slice", "accelerator": "TPU-V5P", "topology": "2x2x2", "devices": 1},
    # The node that could be this one's has four chips of another generation: it waits, and the run goes on.
    {"name": "none", "region": "west", "accelerator": "TPU-V6E", "topology": "2x2", "resources": {"TPU": 4}},
]
BOUND = ("syncer.1", "orchestrator", "chaos", "metrics")  # to run.control

MOVES = "learner-gpu-west-0"  # its node is taken away


def recipe(folder: Path) -> Recipe:
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"line {number} of a text that small models learn by heart\n" * 200)
    tables = {
        "name": "islands",
        "model": {"layers": 1, "width": 16, "heads": 2},
        "data": {"path": str(corpus), "sequence_length": 16, "held_out": 0.25},
        "sync": {"P": 4, "H": 4, "tau": 2, "quorum": 1},
        "pools": [{"batch_size": 8, "slowdown": 20.0} | pool for pool in POOLS],
        "budget": {"syncer_steps": 1_000_000},
        "eval": {"every": 0, "sequences": 8},
        "chaos": {"faults": [{"kind": "kill", "learner": "learner-h100-0", "at_step": 1_000_000}]},
        "run": {"start_s": 600.0, "hang_s": 120.0, "syncer_lease_s": 60.0, "control": {"role": "control"}},
    }
    wanted = resolve(Recipe.model_validate(tables))
    validate(wanted)
    return wanted


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    cache = compilation_cache(folder)
    os.environ |= cache
    nodes = Cluster()
    try:
        for node in NODES:
            nodes.add_node(
                wait=False,
                object_store_memory=80 * 2**20,
                include_dashboard=False,
                **{"num_gpus": 0, "num_cpus": 2} | node,  # as many workers are started at once
            )
        nodes.wait_for_nodes()
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


def groups() -> dict[str, str]:
    """Placement groups that are there or waited for: their names and states."""
    states = {entry["name"]: entry["state"] for entry in placement_group_table().values()}
    return {name: state for name, state in states.items() if state != "REMOVED"}


def refusal(labels: dict[str, str]) -> str:
    try:
        placement.admit(labels)
    except InputError as error:
        return str(error)
    return ""


def settings_of_a_learner(pool: PoolConfig) -> dict[str, str]:
    """What the process of a learner of this pool finds in its environment."""

    class Probe:
        def settings(self) -> dict[str, str]:
            from learners.island import granted_gpus
            from learners.training.devices.device import visible_devices

            kept = {name: value for name, value in os.environ.items() if name in ("XLA_CLIENT_MEM_FRACTION", "JOB")}
            return kept | {"visible devices": visible_devices(os.environ, granted_gpus()).status}

    group = placement.reserve("probe", pool, anywhere=False)
    try:
        actor = ray.remote(Probe).options(**placement.inside(group, pool, {})).remote()
        settings: dict[str, str] = ray.get(actor.settings.remote(), timeout=DEADLINE_S)
        return settings
    finally:
        remove_placement_group(group)


def run(wanted: Recipe, folder: Path, address: str) -> dict[str, Any]:
    """Train until the pool without a place is reported and all the others have stepped; then take a node away.

    The run stops once that node's learner steps elsewhere.
    """
    store = RunStore(folder / "run")
    store.create()
    seen: dict[str, Any] = {"groups": {}, "bound": {}, "preempted": None, "stopped": False, "waits": {}}
    deadline = time.monotonic() + DEADLINE_S / 2

    def watch(status: Any) -> None:
        rows = {row["name"]: row for row in status["learners"]}
        for each in status["run"]["conditions"]:
            if each["reason"] == "NoPlace":
                seen["waits"][each["type"]] = each["message"]
        steps = [row["step"] for name, row in rows.items() if name != "learner-none-0"]
        stepped = len(steps) == len(POOLS) - 1 and all(steps)
        late = time.monotonic() > deadline
        moving = rows.get(MOVES, {})
        if not seen["bound"] and ((seen["waits"] and stepped) or late):
            seen.update(groups=groups(), bound={name: _node_of(name) for name in BOUND}, preempted=moving["node"])
            command = preemption(moving["node"], address, 120)
            subprocess.run(command, check=True, timeout=DEADLINE_S, stdout=sys.stderr)
        elif seen["bound"] and not seen["stopped"] and (late or (moving["incarnation"] == 2 and moving["step"] > 8)):
            seen["stopped"] = True
            store.write_json("stop", {"reason": "seen enough", "at": time.time()})

    start_and_wait(wanted, store, RunPlacement("islands", cores=0), start, watch, detach=False)
    facts = [event.fact for event in read_run(store.root)]
    labels = {node["NodeID"]: node["Labels"] for node in ray.nodes()}
    [ended] = [fact for fact in facts if isinstance(fact, RunFinished)]
    started = [fact for fact in facts if isinstance(fact, LearnerStarted)]
    return {
        "ended": (ended.state, ended.reason),
        "placed": {fact.learner: labels[fact.node] for fact in started if fact.incarnation == 1},
        "ranks": {fact.learner: [labels[node] for node in fact.nodes] for fact in started if fact.nodes},
        "preempted": seen["preempted"],
        "notices": [asdict(fact) for fact in facts if isinstance(fact, NodePreempted)],
        "fenced": [(fact.learner, fact.incarnation, fact.reason) for fact in facts if isinstance(fact, LearnerFenced)],
        "moved": [(fact.node, labels[fact.node]) for fact in started if (fact.learner, fact.incarnation) == (MOVES, 2)],
        "discarded": store.read_json("summary.json")["tokens"]["discarded"],
        "lost": [fact.learner for fact in facts if isinstance(fact, LearnerLost)],
        "waits": seen["waits"],
        "groups": seen["groups"],
        "groups_after": groups(),
        "bound": {name: labels[node] for name, node in seen["bound"].items()},
    }


def _node_of(actor: str) -> str:
    from ray._private.state import actors

    return next(
        entry["Address"]["NodeID"]
        for entry in actors().values()
        if entry["Name"].partition("-")[0] == actor and entry["State"] == "ALIVE"
    )


def main(folder: Path) -> None:
    with cluster(folder) as address:
        ray.init(address, namespace="islands", log_to_driver=False, runtime_env={"env_vars": {"JOB": "here"}})
        found = run(recipe(folder), folder, address)
        by_name = {pool["name"]: PoolConfig.model_validate(pool) for pool in POOLS}
        found |= {"settings": settings_of_a_learner(by_name["h100"]), "control": refusal({"role": "controll"})}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
