"""The nodes that a plan is made for: declared by the user, this machine, or what a cluster says it has.

Knows what Ray takes a node for, resources and labels; does not know Ray.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from orchestrator.recipe import resources as shape
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.resources import ACCELERATOR, POD_TYPE, REGION
from orchestrator.recipe.tpu_slices import GENERATIONS, is_topology

GIB = 2**30
LABEL = "labels."  # begins the key of a label in a node's text
NODES_MAX = 10_000  # by one `count`
EXAMPLE = "CPU=8,GPU=4,region=us-east,accelerator=H100,memory=64"
# What is said of a node beside its resources: key -> what its value must be.
_SAID = {
    "name": "text",
    "region": "text",
    "accelerator": "text",
    "topology": "text",
    "labels": "a table",
    "memory": "GiB",
    "accelerator_memory": "GiB of each accelerator",
    "bandwidth": "Gbit/s to other nodes",
    "count": "a whole number of such nodes",
}


@dataclass(frozen=True)
class Node(shape.LiveNode):
    """One host as Ray's scheduler sees it, empty. What is None is not known, and not checked."""

    name: str
    memory_bytes: int | None = None
    accelerator_bytes: int | None = None  # of each GPU or TPU
    bandwidth_bits: float | None = None  # bits per second to other nodes, each way

    @property
    def region(self) -> str | None:
        return self.labels.get(REGION)


def from_text(texts: Iterable[str]) -> list[Node]:
    """Nodes from `KEY=VALUE,KEY=VALUE` each. Raises InputError with every problem."""
    tables, problems = [], []
    for text in texts:
        table: dict[str, Any] = {}
        labels: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not (key and equals and value):
                problems.append(Problem("--node", text, f"{part!r} is not KEY=VALUE", f"write for example {EXAMPLE}"))
            if key.startswith(LABEL):
                labels[key.removeprefix(LABEL)] = value
            else:
                table[key] = _number(value)
        tables.append(table | ({"labels": labels} if labels else {}))
    return _nodes(tables, "--node", problems)


def from_file(text: str, source: str) -> list[Node]:
    """Nodes from JSON (a list of tables) or TOML (`[[nodes]]` tables), with the keys of `from_text`."""
    tables: Any = None
    try:
        tables = json.loads(text)
    except ValueError:
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _refused(source, f"is neither JSON nor TOML: {error}") from error
    if isinstance(tables, dict):
        tables = tables.get("nodes")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not tables:
        raise _refused(source, "holds no list of nodes")
    return _nodes(tables, "nodes", [])


def from_ray(rows: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Nodes from what `ray.nodes()` returns; the dead are left out."""
    nodes = [
        Node(
            name=str(row.get("NodeManagerHostname") or row["NodeID"])[:40],
            labels=dict(row.get("Labels") or {}),
            resources={kind: float(amount) for kind, amount in row["Resources"].items() if not _is_private(kind)},
            memory_bytes=int(row["Resources"]["memory"]) if "memory" in row["Resources"] else None,
        )
        for row in rows
        if row["Alive"]
    ]
    return distinct(nodes)


def this_machine(wanted: Mapping[str, float], proc: Path = Path("/proc")) -> Node:
    """This host as `diloco run` starts Ray on it: with as many logical CPUs, and of its own resources, as wanted.

    GPUs are those that NVIDIA's driver lists under /proc, within CUDA_VISIBLE_DEVICES; TPUs are not looked for.
    """
    models = [
        match.group(1).strip()
        for path in sorted(proc.glob("driver/nvidia/gpus/*/information"))
        if (match := re.search(r"^Model:(.*)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(models) if visible is None else min(len(models), len([one for one in visible.split(",") if one]))
    resources = {kind: amount for kind, amount in wanted.items() if kind not in ("GPU", "TPU")}
    labels = {}
    if count:
        resources["GPU"] = float(count)
        # Ray's name for "NVIDIA H200" is H200.
        if named := re.match(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)", models[0]):
            labels[ACCELERATOR] = named.group(1).replace(" ", "-")
    return Node(labels, resources, "this machine", memory_bytes=psutil.virtual_memory().total)


def _nodes(tables: Sequence[Mapping[str, Any]], field: str, problems: list[Problem]) -> list[Node]:
    nodes: list[Node] = []
    for table in tables:
        found = list(_problems(table, field))
        problems += found
        if not found:
            for _ in range(int(table.get("count", 1))):
                nodes.append(_node(table, f"node-{len(nodes)}"))
    if problems:
        raise InputError(problems)
    return distinct(nodes)


def distinct(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes, under names that tell them apart."""
    taken: set[str] = set()
    named = []
    for node in nodes:
        name, number = node.name, 1
        while name in taken:
            number += 1
            name = f"{node.name}-{number}"
        taken.add(name)
        named.append(replace(node, name=name))
    return named


def _problems(table: Mapping[str, Any], field: str) -> Iterable[Problem]:
    known = [*_SAID, "CPU", "GPU", "TPU"]
    for key, value in table.items():
        place = f"{field} {key}"
        if key == "labels":
            if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
                fix = f'write {{role = "control"}}, or in a --node {LABEL}role=control'
                yield Problem(place, value, "must be a table of text", fix)
        elif key in ("name", "region", "accelerator", "topology"):
            if not isinstance(value, str):
                yield Problem(place, value, "must be text", f"write for example {EXAMPLE}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            near = nearest(key, known)
            meant = f"did you mean {near}?" if near and near != key else f"write for example {EXAMPLE}"
            yield Problem(place, value, f"must be a number from 0: {_SAID.get(key, 'a resource')}", meant)
        elif key == "count" and not (value == int(value) and 1 <= value <= NODES_MAX):
            yield Problem(place, value, f"must be a whole number from 1 to {NODES_MAX}", "leave it out for one node")
    if not any(isinstance(value, int | float) and key not in _SAID for key, value in table.items()):
        yield Problem(field, dict(table), "names no resource: nothing could run there", f"write for example {EXAMPLE}")
    yield from _slice(table, field)


def _slice(table: Mapping[str, Any], field: str) -> Iterable[Problem]:
    """A node is one host of a slice, with that host's chips."""
    topology, tpus, place = table.get("topology"), table.get("TPU", 0), f"{field} topology"
    if not isinstance(topology, str):
        return
    generation = GENERATIONS.get(str(table.get("accelerator")))
    if generation is None:
        yield Problem(place, topology, "is the form of a TPU slice, and no TPU is named", "write accelerator=TPU-V6E")
    elif not is_topology(topology):
        yield Problem(place, topology, "is no topology", "write for example topology=2x4")
    elif isinstance(tpus, int | float) and tpus != (chips := generation.host_chips(topology)):
        message = f"a host of such a {generation.name} slice has {chips} TPU, not {tpus:g}"
        yield Problem(place, topology, message, f"write TPU={chips}, and count=N for several hosts")


def _node(table: Mapping[str, Any], name: str) -> Node:
    resources = {kind: float(amount) for kind, amount in table.items() if kind not in _SAID}
    labels = {label: table[key] for key, label in (("region", REGION), ("accelerator", ACCELERATOR)) if key in table}
    if "topology" in table:
        labels[POD_TYPE] = GENERATIONS[table["accelerator"]].pod_type(table["topology"])
    memory, inner, speed = (table.get(key) for key in ("memory", "accelerator_memory", "bandwidth"))
    return Node(
        labels=labels | table.get("labels", {}),
        resources=resources,
        name=table.get("name", name),
        memory_bytes=None if memory is None else int(memory * GIB),
        accelerator_bytes=None if inner is None else int(inner * GIB),
        bandwidth_bits=None if speed is None else speed * 1e9,
    )


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _is_private(kind: str) -> bool:
    return kind.startswith("node:") or kind == "object_store_memory"


def _refused(source: str, message: str) -> InputError:
    return InputError(
        [Problem("--nodes", source, message, f'give JSON [{{"CPU": 8, ...}}] or TOML, keys as {EXAMPLE}')]
    )
