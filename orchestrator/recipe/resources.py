"""The resources and node labels that one learner of a pool needs, and why a cluster cannot give them.

Imports no Ray: labels and resources are names here.

Accelerators are selected by the label ray.io/accelerator-type, not by the resource accelerator_type:X. Ray sets both
where it finds the hardware, but only labels work with an autoscaler that starts from no nodes, can be corrected by hand
(A100-80G), and combine with others without being used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import Problem, nearest
from orchestrator.recipe.tpu_slices import CHIP_COUNTS, GENERATIONS

REGION = "region"
ACCELERATOR = "ray.io/accelerator-type"
POD_TYPE = "ray.io/tpu-pod-type"
MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"  # of a GPU, taken by a process at its start
MEMORY_SETTINGS = (MEMORY_FRACTION, "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
MEMORY_USABLE = 0.9  # of a GPU: each process has its driver context beside what XLA takes
MEMORY_USABLE_NCCL = 0.85  # of each of several GPUs of one learner: NCCL has its buffers there too
LOCAL_STORE = 512 * 2**20  # bytes: what a local Ray's object store has at least
SHARED = "/dev/shm"  # where it lies
CONTAINER = "/sys/fs/cgroup/memory.max"
RESERVED = ("memory", "object_store_memory")  # Ray treats these apart
GPUS = ("V100", "T4", "A10G", "L4", "L40S", "A100", "H100", "H200", "B200", "GB200")  # names to suggest, not a limit


def local_store_bytes() -> int:
    """Size of the object store of the Ray that `diloco run` starts here. It takes memory as it fills, not before."""
    memory = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # a container's limit; "max" is none
        memory = min(memory, int(Path(CONTAINER).read_text()))
    with suppress(OSError):
        return max(LOCAL_STORE, int(min(0.3 * memory, 0.9 * psutil.disk_usage(SHARED).free)))
    return LOCAL_STORE


@dataclass(frozen=True)
class Shape:
    """The needs of one learner on each of its nodes."""

    resources: Mapping[str, float]
    labels: Mapping[str, str]
    nodes: int = 1


def shape(pool: PoolConfig, anywhere: bool = False) -> Shape:
    """The needs of one learner. `anywhere`: on one node and without labels, as on a cluster of one local node."""
    labels = {}
    if pool.region and not pool.joined:
        labels[REGION] = pool.region
    if pool.accelerator:
        labels[ACCELERATOR] = pool.accelerator
    if pool.topology and pool.accelerator in GENERATIONS:
        labels[POD_TYPE] = GENERATIONS[pool.accelerator].pod_type(pool.topology)
    hosts = 1 if anywhere else pool.hosts
    on_each = {kind: amount / hosts for kind, amount in pool.unit_resources.items()}
    return Shape(on_each, {} if anywhere else labels, hosts)


def most_resources(recipe: Recipe, region: str = "") -> dict[str, float]:
    """All that the learners of each pool at its `most`, and the evaluator, ask for; or those of a region that joins."""
    total: dict[str, float] = {}
    evaluator = [] if region else [(recipe.eval.resources, 1)]
    for resources, most in [*((pool.unit_resources, pool.most) for _, pool in recipe.pools_of(region)), *evaluator]:
        for kind, amount in resources.items():
            total[kind] = total.get(kind, 0.0) + amount * most
    return total


def memory_settings(pool: PoolConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that limit each learner to its part of a GPU's memory; the user's own settings win.

    By itself, XLA takes three quarters of a GPU for the first process.
    """
    if pool.platform != "gpu" or any(name in environ for name in MEMORY_SETTINGS):
        return {}
    return {MEMORY_FRACTION: f"{memory_share(pool):.3f}"}


def memory_share(pool: PoolConfig) -> float:
    """The share of each of its accelerators' memory that one learner of a pool may use."""
    gpus = pool.resources.get("GPU", 0.0)
    if not gpus:
        return min(1.0, pool.resources.get("TPU", 0.0))
    return MEMORY_USABLE * gpus if gpus <= 1.0 else MEMORY_USABLE_NCCL


# ------------------------------------------------------------------ what no cluster can give


def refusals(pool: PoolConfig, place: str) -> Iterator[Problem]:
    """Problems of a pool's hardware; `place` is its path in the recipe, "pools.0"."""
    yield from _amounts(pool, f"{place}.resources")
    yield from _gang(pool, place)
    yield from _accelerator(pool, place)
    if pool.topology is not None:
        yield from _slice(pool, pool.topology, f"{place}.topology")


def _amounts(pool: PoolConfig, field: str) -> Iterator[Problem]:
    asked = pool.resources
    if not asked:
        yield Problem(field, asked, "a learner unit that asks for nothing has no place", "write resources = {CPU = 1}")
    for kind in RESERVED:
        if kind in asked:
            message = "cannot be asked for: pools ask for CPU, GPU, TPU or a resource of their own"
            yield Problem(f"{field}.{kind}", asked[kind], message, "leave it out")
    if "GPU" in asked and "TPU" in asked:
        yield Problem(field, asked, "no node has both GPUs and TPUs", "make two pools of it")
    gpus, tpus = asked.get("GPU", 1.0), asked.get("TPU", 1.0)
    if gpus > 1.0 and not gpus.is_integer():
        message = "must be a whole number, or a share below 1 of a single GPU"
        yield Problem(f"{field}.GPU", gpus, message, f"write GPU = {int(gpus)}")
    if tpus not in CHIP_COUNTS:
        counts = ", ".join(map(str, CHIP_COUNTS))
        message = f"chips of one host can be had as {counts}"
        yield Problem(f"{field}.TPU", tpus, message, f"write one of {counts}")


def _gang(pool: PoolConfig, place: str) -> Iterator[Problem]:
    if pool.processes % pool.hosts:
        message = f"does not divide the {pool.processes} processes of a learner"
        yield Problem(f"{place}.hosts", pool.hosts, message, f"give a divisor of {pool.processes}")
    if pool.processes > 1 and pool.standby:
        message = "are made for learners of one process; this pool's have more"
        yield Problem(f"{place}.standby", pool.standby, message, "leave it out, or write processes = 1")
    if pool.processes > 1 and pool.resources.get("GPU", 1.0) < 1.0:
        message = "is a share of a GPU, and the processes of one learner cannot meet on one GPU: NCCL refuses it"
        yield Problem(f"{place}.resources.GPU", pool.resources["GPU"], message, "give each process GPUs of its own")


def _accelerator(pool: PoolConfig, place: str) -> Iterator[Problem]:
    name, field = pool.accelerator, f"{place}.accelerator"
    if name is None:
        return
    is_tpu = name.upper().startswith("TPU")
    if is_tpu and name not in GENERATIONS:
        near = nearest(name, GENERATIONS)
        fix = f'did you mean "{near}"?' if near else 'write, for example, "TPU-V6E"'
        yield Problem(field, name, f"is no TPU generation; known: {', '.join(GENERATIONS)}", fix)
    elif name not in GPUS and (exact := {gpu.lower(): gpu for gpu in GPUS}.get(name.lower())):
        yield Problem(field, name, "is compared letter by letter with what Ray calls it", f'did you mean "{exact}"?')
    kind = "TPU" if is_tpu else "GPU"
    other = "GPU" if is_tpu else "TPU"
    if other in pool.resources:
        yield Problem(field, name, f"is not what {other}s are called", f"ask for {kind}s, or name another accelerator")
    elif set(pool.resources) <= {"CPU"}:
        message = f"is named, but pools ask for no {kind}: the learner would train on that node's CPUs"
        yield Problem(field, name, message, f"add {kind} = ... to {place}.resources, or leave accelerator out")


def _slice(pool: PoolConfig, topology: str, field: str) -> Iterator[Problem]:
    generation = GENERATIONS.get(pool.accelerator or "")
    if generation is None:
        if pool.accelerator is None or not pool.accelerator.upper().startswith("TPU"):
            message = "is the form of a TPU slice, and this pool names no TPU"
            yield Problem(field, topology, message, 'add accelerator = "TPU-V6E" or the like, or leave topology out')
        return
    if not generation.has(topology):
        known = ", ".join(generation.one_host + generation.more_hosts)
        yield Problem(field, topology, f"is no topology of {generation.name}", f"use one of {known}")
        return
    hosts, wanted, asked = generation.hosts(topology), generation.host_chips(topology), pool.resources.get("TPU")
    if asked != wanted:
        whose = f"{wanted} chips on each of {hosts} hosts" if hosts > 1 else f"{wanted} chips"
        message = f"has {whose}, which a learner takes as a whole; resources ask for TPU = {asked or 0:g}"
        yield Problem(field, topology, message, f"write resources.TPU = {wanted}, or use another topology")
    if hosts > 1 and (pool.hosts, pool.processes) != (hosts, hosts):
        message = f"has {hosts} hosts with a process each, and not {pool.processes} processes on {pool.hosts}"
        yield Problem(field, topology, message, f"leave hosts and processes out, or write {hosts} for both")


# ------------------------------------------------------------------ what this cluster cannot give


@dataclass(frozen=True)
class LiveNode:
    """A live node: its labels, and all its resources, free or used."""

    labels: Mapping[str, str]
    resources: Mapping[str, float]


def misses(labels: Mapping[str, str], nodes: Sequence[LiveNode]) -> str:
    """Why no node has all of these labels; empty if one has."""
    if _with(labels, nodes):
        return ""
    found = []
    for key in labels:
        values = sorted({node.labels[key] for node in nodes if key in node.labels})
        found.append(f"{key} is {', '.join(values)}" if values else f"no node has a label {key}")
    return f"no living node has {_labels(labels)}; there, {'; '.join(found)}"


def unschedulable_reason(claim: Shape, nodes: Sequence[LiveNode]) -> str:
    """Why no node can hold a learner with these needs."""
    if not nodes:
        return "no node is alive"
    if not (labelled := _with(claim.labels, nodes)):
        return misses(claim.labels, nodes)
    where = f"of {len(labelled)} living nodes" + (f" with {_labels(claim.labels)}" if claim.labels else "")
    for kind, amount in claim.resources.items():
        most = max(node.resources.get(kind, 0.0) for node in labelled)
        if most < amount:
            return f"{where} none has {amount:g} {kind}: the largest has {most:g}"
    wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in claim.resources.items())
    fit = [all(node.resources.get(kind, 0.0) >= least for kind, least in claim.resources.items()) for node in labelled]
    if not any(fit):
        return f"{where} none has {wanted} together"
    if sum(fit) < claim.nodes:
        return f"{where} only {sum(fit)} with {wanted}, and a learner is spread over {claim.nodes}"
    return f"{where} some have {wanted}, but others are using them"


def bears(node: LiveNode, labels: Mapping[str, str]) -> bool:
    """Whether a node has all of these labels, compared letter by letter as Ray does."""
    return all(node.labels.get(key) == value for key, value in labels.items())


def _with(labels: Mapping[str, str], nodes: Iterable[LiveNode]) -> list[LiveNode]:
    return [node for node in nodes if bears(node, labels)]


def _labels(labels: Mapping[str, str]) -> str:
    return f"the label{'s' * (len(labels) > 1)} " + ", ".join(f"{key} = {value}" for key, value in labels.items())
