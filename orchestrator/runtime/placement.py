"""Where actors run: a placement group for each learner, and on each node an agent that can signal processes there.

What a pool asks for is decided in orchestrator/recipe/resources.py; this module asks Ray for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from orchestrator.lifecycle.ports import CALL_S, NODE_ENDS, NoSlice
from orchestrator.recipe.config import PoolConfig
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.resources import POD_TYPE, LiveNode, memory_settings, misses, shape, unschedulable_reason

NO_DEADLINE_MS = 2**62  # Ray's own is 2**63 - 1
SLICE_NAME, WORKER_ID = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"  # labels that Ray gives the hosts of a slice
AGENT_CPUS = 0.01  # never zero: an actor without resources hangs while any node is partitioned
AGENT_S = 30.0  # for an agent to start and answer


@dataclass(frozen=True)
class RunPlacement:
    """Where this run's actors live."""

    namespace: str
    cores: int  # of the one host, to pin learners to; 0 on clusters

    @property
    def local(self) -> bool:
        return self.cores > 0


def syncer_name(epoch: int) -> str:
    return f"syncer.{epoch}"


def named(name: str, namespace: str, cpus: float) -> dict[str, Any]:
    """Actor options of a detached actor that Ray does not restart: the orchestrator does."""
    return {"name": name, "namespace": namespace, "lifetime": "detached", "num_cpus": cpus, "max_restarts": 0}


def reserve(learner: str, pool: PoolConfig, anywhere: bool) -> PlacementGroup:
    """A placement group for one learner unit, under its name. The unit's later incarnations use it, too.

    `anywhere`: ignore the pool's labels, as on a cluster of one local node.
    """
    with contextlib.suppress(ValueError):  # an earlier orchestrator may have left it
        return get_placement_group(learner)
    claim = shape(pool, anywhere)
    return placement_group(
        [dict(claim.resources)] * claim.nodes,
        strategy="STRICT_PACK" if claim.nodes == 1 else "STRICT_SPREAD",
        name=learner,
        lifetime="detached",
        bundle_label_selector=[dict(claim.labels)] * claim.nodes if claim.labels else None,
    )


def reserve_head(learner: str, pool: PoolConfig) -> PlacementGroup:
    """A placement group with the first host of a whole TPU slice, which Ray marks by a resource of its own.

    Who has it has the slice: see `reserve_slice`.
    """
    with contextlib.suppress(ValueError):
        return get_placement_group(head_name(learner))
    labels = dict(shape(pool).labels)
    if broken := _broken_slices(pool):
        labels[SLICE_NAME] = f"!in({','.join(broken)})"
    return placement_group(
        [{f"TPU-{labels[POD_TYPE]}-head": 1.0}],
        strategy="STRICT_PACK",
        name=head_name(learner),
        lifetime="detached",
        bundle_label_selector=[labels],
    )


def reserve_slice(learner: str, pool: PoolConfig, head: PlacementGroup) -> PlacementGroup:
    """A placement group over the hosts of the slice whose first host `head` holds: a learner's rank r on host r.

    Raises NoSlice where that host is gone or names no slice, or others of the slice are gone.
    """
    [node] = placement_group_table(head)["bundles_to_node_id"].values()
    labels: dict[str, str] = next(
        (each["Labels"] for each in ray.nodes() if each["NodeID"] == node and each["Alive"]), {}
    )
    if (name := labels.get(SLICE_NAME)) is None:
        raise NoSlice(f"the first host of its TPU slice is gone, or has no label {SLICE_NAME}")
    if name in _broken_slices(pool):
        raise NoSlice(f"TPU slice {name} has lost some of its hosts")
    claim = shape(pool)
    return placement_group(
        [dict(claim.resources)] * claim.nodes,
        strategy="STRICT_SPREAD",
        name=learner,
        lifetime="detached",
        bundle_label_selector=[{SLICE_NAME: name, WORKER_ID: str(host)} for host in range(claim.nodes)],
    )


def _broken_slices(pool: PoolConfig) -> list[str]:
    """Names of the slices of a pool's kind that have fewer hosts than they should."""
    pod_type, hosts = shape(pool).labels[POD_TYPE], Counter[str]()
    for node in ray.nodes():
        labels = node["Labels"]
        if node["Alive"] and labels.get(POD_TYPE) == pod_type and SLICE_NAME in labels:
            hosts[labels[SLICE_NAME]] += 1
    return sorted(name for name, there in hosts.items() if there < pool.hosts)


def head_name(learner: str) -> str:
    return f"{learner}.head"


def inside(
    group: PlacementGroup, pool: PoolConfig, environ: Mapping[str, str] = os.environ, rank: int = 0
) -> dict[str, Any]:
    """Actor options of one rank that use its part of a learner's placement group. `environ`: what the user has set."""
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=group,
        placement_group_bundle_index=rank and rank * group.bundle_count // pool.processes,
        placement_group_capture_child_tasks=True,
    )
    return using(pool, environ) | {"scheduling_strategy": strategy}


def using(pool: PoolConfig, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Actor options that take a pool's resources, and of its GPUs no more than that."""
    resources = dict(pool.resources)
    options: dict[str, Any] = {
        "num_cpus": resources.pop("CPU", 0.0),
        "num_gpus": resources.pop("GPU", 0.0),
        "resources": resources,
    }
    settings = memory_settings(pool, environ)
    return options | ({"runtime_env": {"env_vars": settings}} if settings else {})


def pending_reasons(claims: Mapping[str, tuple[PlacementGroup, PoolConfig]], anywhere: bool) -> dict[str, str]:
    """Why learners have no place yet, by name, for those that have none; `claims`: their groups and pools.

    It asks Ray, and blocks until Ray answers.
    """
    tables = {name: placement_group_table(group) for name, (group, _) in claims.items()}
    waiting = {name: pool for name, (_, pool) in claims.items() if tables[name].get("state") != "CREATED"}
    living, ending = _living() if waiting else [], draining_nodes()
    reasons = {name: unschedulable_reason(shape(pool, anywhere), living) for name, pool in waiting.items()}
    for name in claims.keys() - waiting.keys():
        if not ending.keys().isdisjoint(tables[name].get("bundles_to_node_id", {}).values()):
            reasons[name] = NODE_ENDS
    return reasons


def control(labels: Mapping[str, str], anywhere: bool) -> dict[str, Any]:
    """Actor options that keep an actor on nodes with these labels."""
    return {"label_selector": dict(labels)} if labels and not anywhere else {}


def admit(labels: Mapping[str, str]) -> None:
    """Raise InputError if no living node has these labels: the run's own actors would wait for ever."""
    if why := misses(labels, _living()):
        fix = "start such a node (ray start --labels), or correct run.control"
        raise InputError([Problem("run.control", dict(labels), f"the syncer has no place: {why}", fix)])


def _living() -> list[LiveNode]:
    return [LiveNode(node["Labels"], node["Resources"]) for node in ray.nodes() if node["Alive"]]


def draining_nodes() -> dict[str, float | None]:
    """Nodes that have announced their end, by id in hex, with the seconds that they have left, if they said."""
    from ray._private.state import state  # there is no public way; Ray Serve asks the same

    now_ms = time.time() * 1000.0
    return {
        node: (deadline - now_ms) / 1000.0 if 0 < deadline < NO_DEADLINE_MS else None
        for node, deadline in state.get_draining_nodes().items()
    }


class NodeAgent:
    """Signals processes of its node: to kill what hangs, and to inject faults."""

    def answer(self) -> None:
        """Show that the node can be reached."""

    def kill(self, pid: int) -> bool:
        """False when the process is gone."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def freeze(self, pid: int, seconds: float) -> bool:
        """Stop a process for a while. A detached shell lets it go on, even if this actor is dead by then."""
        stop = f"kill -STOP {pid} && {{ (sleep {seconds:.3f}; kill -CONT {pid}) & }}"
        return subprocess.run(["/bin/sh", "-c", stop], start_new_session=True).returncode == 0


def rank_label(learner: str, incarnation: int, rank: int) -> str:
    """The name of the actor of a rank of an incarnation."""
    name = learner if incarnation == 1 else f"{learner}.{incarnation}"
    return f"{name}/{rank}" if rank else name


def agent_name(node: str) -> str:
    return f"node-agent-{node[:12]}"


def node_agent(node: str, namespace: str) -> Any:
    """The agent of a node, by its id in hex; started if there is none."""
    options = named(agent_name(node), namespace, AGENT_CPUS) | {"get_if_exists": True}
    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(NodeAgent).options(**options).remote()


async def signalled(node: str, namespace: str, kind: str, pid: int, *seconds: float) -> bool:
    """Have a node's agent `kill` or `freeze` a process. False when it is gone; raises TimeoutError, RayError.

    The agent is asked once it is up: it would carry out later what its caller has given up by then.
    """
    agent = node_agent(node, namespace)
    await asyncio.wait_for(agent.answer.remote(), AGENT_S)
    return bool(await asyncio.wait_for(getattr(agent, kind).remote(pid, *seconds), CALL_S))


async def unseen_reason(node: str, namespace: str) -> str:
    """Why a node, by its id in hex, cannot be seen; empty when it can."""
    if not any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):
        return f"its node {node[:12]} is not alive"
    try:
        await asyncio.wait_for(node_agent(node, namespace).answer.remote(), CALL_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        return f"its node {node[:12]} does not answer: {type(error).__name__}"
    return ""
