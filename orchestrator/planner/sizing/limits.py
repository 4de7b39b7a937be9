"""Why a plan would not train: no place, too little memory, too narrow a link. Each with the nearest fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from orchestrator.planner.sizing import link_load, links
from orchestrator.planner.sizing.draft import Draft, gib, some
from orchestrator.planner.sizing.nodes import Node
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.resources import memory_share


def limits(draft: Draft) -> list[Problem]:
    """Every limit that is broken."""
    return [problem for rule in LIMITS for problem in rule(draft)]


def _places(draft: Draft) -> Iterator[Problem]:
    for one in draft.placement.shortfalls:
        if one.who in draft.waiting:
            continue
        what = (
            f"{one.units} of {draft.pools[one.who]} learners do not fit" if one.who in draft.pools else "has no place"
        )
        yield Problem(one.field, None, f"{one.who}: {what}: {one.reason}", one.fix)


def _memory(draft: Draft) -> Iterator[Problem]:
    alike: dict[tuple[int, int, str], list[str]] = {}  # nodes of one size with the same on them, told together
    for node in draft.nodes:
        there = _processes(draft, node)
        needed = sum((draft.memory[k].host_bytes + draft.memory[k].store_bytes) * count for k, count in there.items())
        if node.memory_bytes is not None and needed > node.memory_bytes:
            who = ", ".join(f"{count} x {kind}" for kind, count in there.items())
            alike.setdefault((node.memory_bytes, needed, who), []).append(node.name)
    for (have, needed, who), names in alike.items():
        yield Problem(
            f"{names[0]} memory",
            gib(have),
            f"on {some(names)}: {who} need {gib(needed)} at least, activations not counted",
            "place fewer there (pools' learners, standby or resources), or take nodes with more memory",
        )


def _device_memory(draft: Draft) -> Iterator[Problem]:
    told: set[tuple[str, int]] = set()
    for name, pool in draft.recipe.learners.items():
        node = draft.node_of(name)
        needed = draft.memory[f"learner-{pool.name}"].device_bytes
        if node is None or node.accelerator_bytes is None or not needed:
            continue
        # XLA leaves a part of a GPU to drivers and NCCL (deploy/README.md).
        # Each of a learner's devices holds the parameters whole, unless the task may cut them.
        needed //= pool.known_devices if draft.shapes.shardable else 1
        have = int(node.accelerator_bytes * memory_share(pool))
        if needed > have and (pool.name, have) not in told:
            told.add((pool.name, have))
            yield Problem(
                f"{node.name} accelerator_memory",
                gib(have),
                f"a learner of {pool.name} needs {gib(needed)} on each device at least, activations not counted",
                "take a smaller model or larger accelerators, or a task that cuts its parameters over several "
                "(docs/models.md)",
            )


def _regions(draft: Draft) -> Iterator[Problem]:
    yield from link_load.limits(draft.loads, draft.recipe.sync)


LIMITS: tuple[Callable[[Draft], Iterator[Problem]], ...] = (
    *(_places, _memory, _device_memory),
    *(links.deadlines, links.rate, _regions),
)


def _processes(draft: Draft, node: Node) -> Counter[str]:
    """How many of each kind of process are placed on a node."""
    pools = draft.recipe.learners
    there = [
        f"learner-{pools[name].name}"
        for name, place in draft.placement.learners.items()
        if node.name in (place, *draft.placement.others.get(name, ()))
        for _ in range(pools[name].processes // (1 + len(draft.placement.others.get(name, ()))))
    ]
    services = [name.partition("-")[0] for name, place in draft.placement.services.items() if place == node.name]
    return Counter([*there, *(name for name in services if name in draft.memory)])
