"""The nodes that a plan is made for: declared by the user, this machine, or what a cluster says it has.

Knows what Ray takes a node for, resources and labels; does not know Ray.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.recipe import resources as shape
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.resources import ACCELERATOR, POD_TYPE, REGION
from orchestrator.recipe.tpu_slices import GENERATIONS

GIB = 2**30
LABEL = "labels."  # begins the key of a label in a node's text
NODES_MAX = 10_000  # by one `count`
EXAMPLE = "CPU=8,GPU=4,region=us-east,accelerator=H100,memory=64"
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class NodeTable(BaseModel):
    """The nodes that one `--node` declares. Any other key is a resource."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Amount]

    name: str | None = None
    region: str | None = None
    accelerator: str | None = None
    topology: str | None = None
    labels: dict[str, str] = {}
    memory: Amount | None = None  # GiB
    accelerator_memory: Amount | None = None  # GiB of each accelerator
    count: int = Field(1, ge=1, le=NODES_MAX)

    def node(self, name: str) -> Node:
        """One of these nodes, called `name` unless the table gives a name."""
        labels = {REGION: self.region, ACCELERATOR: self.accelerator}
        if self.topology is not None:
            labels[POD_TYPE] = GENERATIONS[str(self.accelerator)].pod_type(self.topology)
        return Node(
            labels={key: value for key, value in labels.items() if value is not None} | self.labels,
            resources=self.__pydantic_extra__,
            name=self.name or name,
            memory_bytes=None if self.memory is None else int(self.memory * GIB),
            accelerator_bytes=None if self.accelerator_memory is None else int(self.accelerator_memory * GIB),
        )


@dataclass(frozen=True)
class Node(shape.LiveNode):
    """One host as Ray's scheduler sees it, empty. What is None is not known, and not checked."""

    name: str
    memory_bytes: int | None = None
    accelerator_bytes: int | None = None  # of each GPU or TPU

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
                table[key] = value
        tables.append(table | ({"labels": labels} if labels else {}))
    return _nodes(tables, problems)


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


def _nodes(tables: Sequence[Mapping[str, Any]], problems: list[Problem]) -> list[Node]:
    nodes: list[Node] = []
    for table in tables:
        try:
            given = NodeTable.model_validate(table)
        except ValidationError as error:
            problems += [_problem(str(each["loc"][0]), each["input"], each["msg"]) for each in error.errors()]
            continue
        found = list(_problems(given))
        problems += found
        if not found:
            first = len(nodes)
            nodes += [given.node(f"node-{first + index}") for index in range(given.count)]
    if problems:
        raise InputError(problems)
    return distinct(nodes)


def _problem(key: str, value: Any, message: str) -> Problem:
    near = nearest(key, [*NodeTable.model_fields, "CPU", "GPU", "TPU"])
    fix = f"did you mean {near}?" if near and near != key else f"write for example {EXAMPLE}"
    if key == "labels":
        fix = f"write {LABEL}role=control"
    return Problem(f"--node {key}", value, message[:1].lower() + message[1:], fix)


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


def _problems(table: NodeTable) -> Iterator[Problem]:
    """A node without resources, and a slice that there is not."""
    if not table.__pydantic_extra__:
        named = table.model_dump(exclude_unset=True)
        yield Problem("--node", named, "names no resource: nothing could run there", f"write for example {EXAMPLE}")
    generation = GENERATIONS.get(str(table.accelerator))
    if table.topology is not None and (generation is None or not generation.has(table.topology)):
        fix = "write for example accelerator=TPU-V6E,topology=2x4"
        yield Problem("--node topology", table.topology, f"is no slice of {table.accelerator or 'a TPU'}", fix)


def _is_private(kind: str) -> bool:
    return kind.startswith("node:") or kind == "object_store_memory"
