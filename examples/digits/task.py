"""A vision transformer (arXiv 2010.11929) as a task: handwritten digits, which scikit-learn carries with it.

The decoder's layers without a causal mask, on patches with learned positions, and the mean of all patches at the end.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from learners.config import DataConfig, InnerConfig
from learners.training.models import corpus_task, layers
from learners.training.models.decoder_config import ARCHITECTURES
from learners.training.models.layers import Params
from outer.config import Section
from outer.numeric.optimizer import resolve

SIDE, CLASSES = 8, 10
EPS = 1e-6  # of the norms
LIKE = ARCHITECTURES["qwen3"]  # queries and keys are normalised

Batch = dict[str, Any]  # image float32[count, SIDE, SIDE] from 0 to 1, digit int32[count]


class VisionConfig(Section):
    """The recipe's [model] table for the vision transformer."""

    layers: PositiveInt = 4
    width: PositiveInt = Field(96, description="features per patch, a multiple of heads")
    heads: PositiveInt = 4
    hidden: PositiveInt = Field(256, description="features inside an MLP")
    patch: PositiveInt = Field(2, description=f"pixels of a patch's side, a divisor of {SIDE}")
    shift: NonNegativeInt = Field(
        1, description="pixels that a training image is moved at most, up or down, left or right"
    )

    @model_validator(mode="after")
    def _fits(self) -> VisionConfig:
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is no multiple of heads = {self.heads}; give a multiple")
        if SIDE % self.patch:
            raise ValueError(f"patch = {self.patch} does not divide the images' {SIDE} pixels; give 1, 2, 4 or {SIDE}")
        return self


class Digits:
    """Classifies 8 x 8 images of digits; implements learners/training/task.py's Task. An image is a token.

    `model`: the fields of VisionConfig. A fifth of the 1,797 images, chosen by their position, is held out. Raises
    ValueError without scikit-learn.
    """

    loss_unit = "nats/image"

    def __init__(self, data: DataConfig, seed: int, **model: Any) -> None:
        self.config = corpus_task.read(VisionConfig, model)
        self._seed = seed
        if find_spec("sklearn") is None:
            raise ValueError('needs scikit-learn; in the checkout: pip install -e ".[examples]"')

    @cached_property
    def images(self) -> tuple[Batch, Batch]:
        """(training, held out)."""
        from sklearn.datasets import load_digits

        found = load_digits()
        image, digit = (found.images / 16.0).astype(np.float32), found.target.astype(np.int32)
        held_out = np.arange(len(image)) % 5 == 4
        return tuple({"image": image[rows], "digit": digit[rows]} for rows in (~held_out, held_out))  # type: ignore[return-value]

    def init(self, rng: jax.Array) -> Params:
        config = self.config
        width, heads = config.width, config.heads
        residual = (2 * config.layers) ** -0.5
        draw = layers.matrices(rng, 3 + 7 * config.layers)
        return {
            "patches": draw(config.patch**2, width),
            "position_embed": draw((SIDE // config.patch) ** 2, width),
            "blocks": [
                {
                    "attention": layers.attention_init(draw, width, heads, heads, width // heads, residual, LIKE),
                    "mlp": layers.mlp_init(draw, width, config.hidden, residual, LIKE),
                }
                for _ in range(config.layers)
            ],
            "norm": jnp.ones(width),
            "head": draw(width, CLASSES),
        }

    def logits(self, params: Params, images: jax.Array) -> jax.Array:
        """float32[batch, CLASSES] of images [batch, SIDE, SIDE]."""
        patch, along = self.config.patch, SIDE // self.config.patch
        cut = images.reshape(-1, along, patch, along, patch).swapaxes(2, 3).reshape(-1, along**2, patch**2)
        x = jnp.matmul(cut, params["patches"]) + params["position_embed"]
        for block in params["blocks"]:
            x = x + layers.attention(block["attention"], x, self.config.heads, EPS)
            x = x + layers.gated_mlp(block["mlp"], x, EPS)
        mean = jnp.mean(layers.rms_norm(x, params["norm"], EPS), axis=1)
        return jnp.matmul(mean, params["head"], preferred_element_type=jnp.float32)

    def loss(self, params: Params, batch: Batch, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        scores = self.logits(params, batch["image"])
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["digit"])
        return jnp.mean(losses), {"accuracy": jnp.mean(jnp.argmax(scores, axis=-1) == batch["digit"])}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return resolve("inner", inner.optimizer, inner.lr, inner.options)

    def batch(self, start: int, count: int) -> Batch:
        """Each epoch takes every image once, in its own order, moved by its own number of pixels."""
        training, most = self.images[0], self.config.shift
        size = len(training["digit"])
        rows, moves = np.empty(count, np.int64), np.empty((count, 2), np.int64)
        for index in range(count):
            epoch, place = divmod(start + index, size)
            order, raw = _epoch(self._seed, epoch, size)
            rows[index], moves[index] = order[place], raw[place] % np.uint64(2 * most + 1)
        edged = np.pad(training["image"][rows], ((0, 0), (most, most), (most, most)))
        seen = moves[:, :, None] + np.arange(SIDE)  # [count, 2, SIDE]: rows and columns
        image = edged[np.arange(count)[:, None, None], seen[:, 0, :, None], seen[:, 1, None, :]]
        return {"image": image, "digit": training["digit"][rows]}

    def tokens(self, count: int) -> int:
        return count

    def held_out(self, start: int, count: int) -> Batch:
        """In the images' order, from the first again after the last."""
        rows = np.arange(start, start + count) % len(self.images[1]["digit"])
        return {name: values[rows] for name, values in self.images[1].items()}


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, size: int) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """The order of the images in one epoch, and two random numbers for each place in it, uint64[size, 2]."""
    raw = np.random.Philox(key=[seed, epoch]).random_raw(3 * size)
    return np.argsort(raw[:size], kind="stable"), raw[size:].reshape(size, 2)
