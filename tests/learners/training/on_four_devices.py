"""Program of test_mesh.py, for a process to which XLA shows four CPU devices: prints what it found as JSON."""

import json
import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from learners.config import DataConfig, InnerConfig
from learners.training.models.language import ByteLanguageModel
from learners.training.trainer import Trainer
from learners.training.tree import deal
from outer.config import SyncConfig

BATCH, STEPS = 8, 4


class Sharded(ByteLanguageModel):
    """Hidden layers cut over the axis "model", the embedding over "batch"."""

    def sharding(self, mesh):
        return {"*/mlp/up": P(None, "model"), "*/mlp/down": P("model", None), "embed": P("batch")}


class Indivisible(ByteLanguageModel):
    def sharding(self, mesh):
        return {"norm": P(("batch", "model"), None)}


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
        "split": trained(ByteLanguageModel, data, devices=None),
        "parts": trained(Sharded, data, microbatches=2, devices=4, model_parallel=2),
        "sharded": trained(Sharded, data, devices=4, model_parallel=2),
        "refusals": [
            refusal(Sharded, data, devices=8),
            refusal(Sharded, data, devices=4, model_parallel=3),
            refusal(ByteLanguageModel, data, count=6, devices=4),
            refusal(Indivisible, data, devices=4),
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
