"""Prints the share of held-out digits that an exported model gets right.

diloco export runs/digits --out digits.safetensors
python -m examples.digits.accuracy digits.safetensors
"""

from __future__ import annotations

import sys

import jax

from learners.config import DataConfig
from learners.training import tree, weights
from learners.training.models.vision import Digits


def accuracy(task: Digits, params: object) -> float:
    batch = task.held_out(0, len(task.images[1]["digit"]))
    return float(jax.jit(task.loss)(params, batch, jax.random.key(0))[1]["accuracy"])


if __name__ == "__main__":
    import json

    about = weights.metadata(sys.argv[1])
    task = Digits(DataConfig(), json.loads(about["seed"]), **json.loads(about["model"]))
    params = tree.parameters(task, weights.read(sys.argv[1]), 0)
    print(f"{accuracy(task, params):.2%}")
