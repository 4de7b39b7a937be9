"""Program of test_mesh.py, for a process to which XLA shows four CPU devices: prints what it found as JSON."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from examples.experts.task import MixtureLM
from learners.config import DataConfig, InnerConfig
from learners.training import state_arrays
from learners.training.evaluator import Evaluator
from learners.training.models.causal_lm import CausalLM
from learners.training.trainer import Trainer
from learners.training.tree import deal, initial_parameters
from outer.config import SyncConfig

BATCH, STEPS = 8, 4


class Sharded(CausalLM):
    """Hidden layers cut over the axis "model", the embedding over "batch"."""

    def sharding(self, mesh):
        return {"*/mlp/up": P(None, "model"), "*/mlp/down": P("model", None), "embed": P("batch")}


class Indivisible(CausalLM):
    def sharding(self, mesh):
        return {"norm": P(("batch", "model"), None)}


CUT = SyncConfig(P=4, split=True)  # the embedding in pieces, across the axis that lies on several devices


class Mixed(MixtureLM):
    def __init__(self, data, seed, **model):
        super().__init__(data, seed, **model, kv_heads=1, hidden=12)


def trained(kind, data, microbatches=1, **devices):
    """Losses, fragments before and after adopting one, shards by tensor, programs compiled."""
    task = kind(data, 0, layers=1, width=16, heads=2)
    fragments = deal(task, SyncConfig(P=4))
    trainer = Trainer(task, fragments, InnerConfig(lr=1e-2, microbatches=microbatches), 0, **devices)
    initial = [trainer.read(index) for index in range(4)]
    trainer.warm_up(BATCH)
    losses = [trainer.step(step * BATCH, BATCH, 0.5) for step in range(STEPS)]
    read = [trainer.read(index) for index in range(4)]
    for index, theta in enumerate(initial):
        trainer.adopt(index, theta, "overwrite")
    back = all(np.array_equal(trainer.read(index), theta) for index, theta in enumerate(initial))
    losses += [trainer.step(step * BATCH, BATCH, 0.5) for step in range(STEPS)]
    named = zip([t.name for t in trainer._tree.tensors], jax.tree.leaves(trainer.params), strict=True)
    moments = next(
        s for s in jax.tree.leaves(trainer.opt_state, is_leaf=lambda s: hasattr(s, "mu")) if hasattr(s, "mu")
    )
    return {
        "losses": losses,
        "fragments": [theta.tolist() for theta in read],
        "initial": [theta.tolist() for theta in initial],
        "adopted": back,
        "shards": {name: [list(s.data.shape) for s in leaf.addressable_shards] for name, leaf in named},
        "moment_shard": list(moments.mu["blocks"][0]["mlp"]["up"].addressable_shards[0].data.shape),
        "programs": trainer._train_step._cache_size(),
    }


def moved(data, sync):
    """What copies, adoption and snapshots do on four devices, beside steps that donate."""
    task = Sharded(data, 0, layers=1, width=16, heads=2)
    one, twin = (
        Trainer(task, deal(task, sync), InnerConfig(lr=1e-2), 0, devices=4, model_parallel=2) for _ in range(2)
    )
    started = [leaf.sharding == sharding for leaf, sharding in zip(one._leaves, one.layout.leaves, strict=True)]
    one.warm_up(BATCH)
    one.expect([0, BATCH], BATCH)
    one.dispatch(0, BATCH, 0.5)
    copies, captured = [one.copy(index) for index in range(4)], one.capture()
    for step in range(1, STEPS):
        one.dispatch(step * BATCH, BATCH, 0.5)
    twin.step(0, BATCH, 0.5)
    wanted = [twin.read(index) for index in range(4)]
    copied = all(np.array_equal(one.host(copy), theta) for copy, theta in zip(copies, wanted, strict=True))
    digests = [state_arrays.digest(state_arrays.pack(leaves)) for leaves in (captured, twin.state_leaves())]
    shared, equal = [], []
    for index, theta in enumerate(wanted):
        begin, end = theta.ctypes.data, theta.ctypes.data + theta.nbytes
        ready = one.prepare(index, theta)
        for leaf in ready.leaves:
            shared += [begin <= shard.data.unsafe_buffer_pointer() < end for shard in leaf.addressable_shards]
        one.adopt(index, theta, "rebase", one.read(index))
        equal.append(one.read(index).tobytes() == theta.tobytes())
        one.load(index, wanted[index] + 1.0)
        one.adopt(index, theta, "rebase", wanted[index])
        equal.append(np.allclose(one.read(index), wanted[index] + 1.0, atol=1e-6))
    placed = [leaf.sharding == sharding for leaf, sharding in zip(one._leaves, one.layout.leaves, strict=True)]
    one.step(0, BATCH, 0.5)
    return {
        "started_in_place": all(started),
        "copied": copied,
        "captured": digests[0] == digests[1],
        "kept_in_place": all(a.sharding == b.sharding for a, b in zip(captured, one.state_leaves(), strict=True)),
        "shared": any(shared),
        "adopted": all(equal),
        "placed": all(placed),
        "programs": one._train_step._cache_size(),
    }


def looked_at(data):
    """The numbers of shards of a captured state's leaves, as one thread sees them, and as three do at once."""
    task = Sharded(data, 0, layers=1, width=16, heads=2)
    trainer, together = Trainer(task, deal(task, SyncConfig(P=4)), InnerConfig(), 0, devices=4, model_parallel=2), set()

    def look(state):
        return {len(leaf.addressable_shards) for leaf in state}

    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(20):
            together = together.union(*threads.map(look, [trainer.capture()] * 3))
    return sorted(look(trainer.capture())), sorted(together)


def evaluated(data):
    """The loss of the same parameters on one device and on four, in whole batches and in a rest, and where they lie."""
    found, placed = [], []
    for devices in (1, None):
        task = Mixed(data, 0, layers=1, width=16, heads=2)
        fragments = deal(task, SyncConfig(P=4))
        evaluator = Evaluator(task, fragments, 10, 4, sets={"again": task}, devices=devices)
        thetas = initial_parameters(task, fragments, 0)
        found.append(evaluator.measure(thetas))
        leaves = jax.tree.leaves(evaluator._placed(thetas))
        placed.append(sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves))
    return {"measured": found, "bytes_of_the_first_device": placed}


def refusal(kind, data, count=BATCH, **devices):
    task = kind(data, 0, layers=1, width=16, heads=2)
    try:
        Trainer(task, deal(task, SyncConfig(P=4)), InnerConfig(), 0, **devices).step(0, count, 0.5)
    except ValueError as error:
        return str(error)
    return None


def main():
    data = DataConfig(path=sys.argv[1], sequence_length=16, held_out=0.25)
    found = {
        "one": trained(Sharded, data, devices=1),
        "split": trained(CausalLM, data, devices=None),
        "parts": trained(Sharded, data, microbatches=2, devices=4, model_parallel=2),
        "sharded": trained(Sharded, data, devices=4, model_parallel=2),
        "moved": moved(data, SyncConfig(P=4)),
        "moved_pieces": moved(data, CUT),
        "one_mixed": trained(Mixed, data, devices=1),
        "mixed": trained(Mixed, data, devices=4, model_parallel=2),
        "looked_at": looked_at(data),
        "evaluated": evaluated(data),
        "refusals": [
            refusal(Sharded, data, devices=8),
            refusal(Sharded, data, devices=4, model_parallel=3),
            refusal(CausalLM, data, count=6, devices=4),
            refusal(Indivisible, data, devices=4),
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
