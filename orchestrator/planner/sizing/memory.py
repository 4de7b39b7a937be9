"""Memory of each process of a run, part by part, from the sizes of tensors.

Follows what the code of learners/ and outer/ holds on to. Activations, compiled programs and the data are the
task's own affair and are not counted; docs/planning.md says how far off that was where it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.traffic import DOWN_BYTES
from orchestrator.recipe.config import Recipe
from outer.config import SyncConfig
from outer.numeric.chain import EXACT
from outer.numeric.formats import named
from outer.protocol.schedule import Schedule

Where = Literal["device", "host", "store"]  # on CPUs the device is the host; store: Ray's object store, shared memory
FLOAT64 = 8
MIB = 2**20
# Python, Ray's worker, JAX and what it compiles, the default corpus: measured on CPUs, with a model of 1.4 MiB.
PROCESS_BYTES = {"learner": 400 * MIB, "evaluator": 350 * MIB, "orchestrator": 80 * MIB}
PROCESS_BYTES |= dict.fromkeys(("syncer", "shard"), 330 * MIB)
# Of what a learner on CPUs holds: freed blocks that later ones do not fit into (outer/heap.py), after three rounds of
# half a billion parameters (tests/orchestrator/planner/test_memory_in_use.py does so with 48 million).
HEAP_KEPT = 0.6


@dataclass(frozen=True)
class Part:
    what: str
    bytes: int
    where: Where


@dataclass(frozen=True)
class Memory:
    """One process: in memory of its own, in its node's object store, and on a learner's accelerator (0 on CPUs)."""

    process: str
    parts: tuple[Part, ...]

    @property
    def device_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.where == "device")

    @property
    def host_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.where == "host")

    @property
    def store_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.where == "store")


def in_flight(sync: SyncConfig, fragments: int, open_steps: int) -> int:
    """How many of the fragments are due within so many syncer steps, at most."""
    return min(fragments, -(-open_steps * fragments // sync.round_steps))


def learner(sync: SyncConfig, shapes: Shapes, accelerated: bool, open_steps: int = 1, standbys: int = 0) -> Memory:
    """One learner at the peak of a step, beside a snapshot for a checkpoint or a joiner; its standbys.

    See learners/training/trainer.py and learners/fragment_io.py.
    """
    device: Where = "device" if accelerated else "host"
    model, state = shapes.elements * DOWN_BYTES, shapes.parameter_bytes + shapes.inner_state_bytes
    largest, under_way = _largest(shapes), in_flight(sync, len(shapes.fragments), open_steps)
    sent = shapes.parameter_bytes - shapes.unsent_bytes
    placed = largest * DOWN_BYTES if sync.adopt != "overwrite" else largest * sent // shapes.elements
    parts = [
        _process("learner"),
        Part("parameters", shapes.parameter_bytes, device),
        Part("inner optimizer state", shapes.inner_state_bytes, device),
        Part("gradients", shapes.parameter_bytes - shapes.unstepped_bytes, device),
        Part("parameters in the loss's dtype", shapes.compute_bytes, device),
        Part("gradients summed over microbatches", shapes.summed_bytes, device),
        Part("staged fragments, and the ones they replace", 2 * staged_bytes(sync, shapes), device),
        Part("a version that came, placed for a step's end", placed, device),
        Part("a snapshot, for a checkpoint or a joiner", state, device),
        Part("versions last received", model, "store" if sync.downlink == EXACT else "host"),
        Part("contributions on their way up", under_way * named(sync.codec).bytes(largest), "store"),
        Part("versions that came and wait for a step's end", under_way * largest * DOWN_BYTES, "store"),
    ]
    if accelerated:  # a CPU's copies are read where they are
        parts.append(Part("staged fragments that were asked for", staged_bytes(sync, shapes), "host"))
        parts.append(Part("a snapshot, packed", state, "host"))
    if sync.adopt == "rebase":
        parts.append(Part("values as read, for rebasing", model, "host"))
    if sync.decay:
        parts.append(Part("what contributions left out, and what of it is to be sent", 2 * model, "host"))
    if not accelerated:
        held = sum(part.bytes for part in parts[1:] if part.where == "host")
        parts.append(Part("freed blocks that the heap keeps", int(HEAP_KEPT * held), "host"))
    ready = PROCESS_BYTES["learner"] + (0 if accelerated else shapes.parameter_bytes + shapes.inner_state_bytes)
    parts.append(Part("standbys", standbys * ready, "host"))
    return Memory("learner", tuple(parts))


def staged_bytes(sync: SyncConfig, shapes: Shapes) -> int:
    """Copies taken at a boundary, float32: the largest set of fragments due within two syncer steps.

    Two, because the copies answer when the step in flight is done. A learner that is slower than the syncer's steps
    looks further ahead: max(1, tau) + 2 of them at most.
    """
    schedule, window = Schedule(len(shapes.fragments), sync.round_steps), 2
    sets = (schedule.upcoming(step, window) for step in range(sync.round_steps))
    return DOWN_BYTES * max(sum(shapes.fragments[index].size for index in due) for due in sets)


def syncer(recipe: Recipe, shapes: Shapes, open_steps: int) -> Memory:
    """The syncer while it merges everyone's largest fragment, and while a checkpoint is written.

    With shards it holds no values. See outer/numeric/parameters.py, outer/numeric/merge.py and outer/snapshots.py.
    """
    merging = _merging(recipe, shapes, open_steps, range(len(shapes.fragments))) if recipe.run.shards == 1 else ()
    return Memory("syncer", (_process("syncer"), *merging))


def shard(recipe: Recipe, shapes: Shapes, open_steps: int) -> Memory:
    """The shard that needs the most, as `syncer`: every S-th fragment is its own (outer/bulk.py)."""
    shards = recipe.run.shards
    each = [range(first, len(shapes.fragments), shards) for first in range(shards)]
    found = [Memory("shard", (_process("shard"), *_merging(recipe, shapes, open_steps, held))) for held in each]
    return max(found, key=lambda one: one.host_bytes + one.store_bytes)


def _merging(recipe: Recipe, shapes: Shapes, open_steps: int, held: range) -> Iterator[Part]:
    """Memory of a process that holds and merges these fragments."""
    learners = len(recipe.learners)
    under_way = min(in_flight(recipe.sync, len(shapes.fragments), open_steps), len(held))
    sizes = [shapes.fragments[index].size for index in held]
    states = [shapes.outer_state_bytes[index] for index in held]
    largest, elements, state = max(sizes), sum(sizes), max(states)
    payload = named(recipe.sync.codec).bytes(largest)
    mixed = recipe.sync.adaptive
    deltas = 0 if recipe.sync.downlink == EXACT else elements * DOWN_BYTES  # less than what they lead to
    # Merged gradient and what is stepped of it, base, parameters before and after; the state before and after.
    step = (5 * FLOAT64 + DOWN_BYTES) * largest + 2 * 2 * state
    yield Part("global parameters", elements * DOWN_BYTES, "host")
    yield Part("outer optimizer state", sum(states), "host")
    yield Part("newest differences between versions", deltas, "host")
    yield Part("payloads of the open steps", under_way * learners * payload, "store")
    yield Part("payloads of several formats, float32", (learners + 1) * largest * DOWN_BYTES if mixed else 0, "host")
    yield Part("one outer step, float64", 0 if recipe.outer.plain_sgd else step, "host")
    yield Part("proposals not yet in force", under_way * (largest * DOWN_BYTES + state), "host")
    yield Part("older values, until a checkpoint is written", elements * DOWN_BYTES + sum(states), "host")


def evaluator(shapes: Shapes) -> Memory:
    parts = (
        _process("evaluator"),
        Part("the syncer's versions", shapes.elements * DOWN_BYTES, "store"),
        Part("parameters", shapes.parameter_bytes, "host"),
    )
    return Memory("evaluator", parts)


def orchestrator(shapes: Shapes) -> Memory:
    """At the end of the run, when it writes the parameters."""
    model = shapes.elements * DOWN_BYTES
    parts = (
        _process("orchestrator"),
        Part("the syncer's versions, at the end", model, "store"),
        Part("the file they are written to, at the end", model, "host"),
    )
    return Memory("orchestrator", parts)


def of_run(recipe: Recipe, shapes: Shapes, open_steps: int) -> dict[str, Memory]:
    """Every kind of process: `learner-POOL` for each pool, and the services by name. `open_steps`: syncer steps."""
    found = {
        f"learner-{pool.name}": learner(recipe.sync, shapes, pool.accelerated, open_steps, pool.standby)
        for pool in recipe.pools
    }
    shards = {"shard": shard(recipe, shapes, open_steps)} if recipe.run.shards > 1 else {}
    return found | {
        "syncer": syncer(recipe, shapes, open_steps),
        **shards,
        "evaluator": evaluator(shapes),
        "orchestrator": orchestrator(shapes),
    }


def _process(kind: str) -> Part:
    return Part("the process itself", PROCESS_BYTES[kind], "host")


def _largest(shapes: Shapes) -> int:
    return max(fragment.size for fragment in shapes.fragments)
