"""Example task: a convolutional classifier of drawn shapes, in plain JAX.

Each image is drawn on request from its position in the sample order, so there is no data file and no last sample.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from learners.config import DataConfig, InnerConfig
from outer.numeric.optimizer import resolve

Floats = NDArray[np.float32]
SIDE = 16  # pixels
SHAPES = ("disc", "ring", "square", "frame", "triangle", "cross")
_GRID = np.stack(np.meshgrid(np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE), indexing="ij"))
_TRAINING, _HELD_OUT = 0, 1


def draw(random: np.random.Generator, shape: int, noise: float) -> Floats:
    """Draw one image float32[SIDE, SIDE]: the shape at a random position, size, angle and brightness, with noise."""
    x, y = _GRID - random.uniform(-0.3, 0.3, size=(2, 1, 1))
    angle, size = random.uniform(0, 2 * np.pi), random.uniform(0.4, 0.7)
    u, v = (x * np.cos(angle) + y * np.sin(angle)) / size, (y * np.cos(angle) - x * np.sin(angle)) / size
    radius, edge = np.hypot(u, v), np.maximum(abs(u), abs(v))
    inside = (
        radius < 1.0,
        (radius < 1.0) & (radius > 0.55),
        edge < 0.9,
        (edge < 0.9) & (edge > 0.5),
        (v > -0.6) & (v < 1.0 - 1.8 * abs(u)),
        (edge < 1.0) & (np.minimum(abs(u), abs(v)) < 0.3),
    )[shape]
    image = random.uniform(0.6, 1.0) * inside + noise * random.normal(size=inside.shape)
    return np.asarray(image, dtype=np.float32)


class Shapes:
    """Classifies which of six shapes an image shows. Implements Task of learners/training/task.py. Image = token."""

    loss_unit = "nats/image"

    # Convolution kernels keep the default rule, rda; the classifier's weights are averaged.
    merge_rules: ClassVar = {"head/*": "avg"}

    def __init__(self, data: DataConfig, seed: int, width: int = 16, noise: float = 0.2) -> None:
        self.seed, self.width, self.noise = seed, width, noise

    def init(self, rng: jax.Array) -> dict[str, Any]:
        channels = (1, self.width, 2 * self.width, 4 * self.width)
        keys = jax.random.split(rng, len(channels))
        layers = [
            {
                "kernel": jax.random.normal(key, (3, 3, into, out)) * (2 / (9 * into)) ** 0.5,
                "bias": jnp.zeros(out),
            }
            for key, into, out in zip(keys, channels, channels[1:], strict=False)
        ]
        features = channels[-1]
        head = jax.random.normal(keys[-1], (features, len(SHAPES))) * features**-0.5
        return {"layers": layers, "head": {"kernel": head, "bias": jnp.zeros(len(SHAPES))}}

    def logits(self, params: dict[str, Any], images: jax.Array) -> jax.Array:
        """float32[batch, 6] of images float32[batch, SIDE, SIDE]."""
        x = images[..., None]
        for layer in params["layers"]:
            x = jax.lax.conv_general_dilated(
                x, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + layer["bias"])
        return jnp.mean(x, axis=(1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]

    def loss(
        self, params: dict[str, Any], batch: dict[str, jax.Array], rng: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        scores = self.logits(params, batch["image"])
        right = jnp.mean(jnp.argmax(scores, axis=-1) == batch["shape"])
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["shape"])
        return jnp.mean(losses), {"accuracy": right}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return resolve("inner", inner.optimizer, inner.lr, inner.options)

    def batch(self, start: int, count: int) -> dict[str, Any]:
        return self._drawn(_TRAINING, start, count)

    def tokens(self, count: int) -> int:
        return count

    def held_out(self, start: int, count: int) -> dict[str, Any]:
        return self._drawn(_HELD_OUT, start, count)

    def _drawn(self, stream: int, start: int, count: int) -> dict[str, Any]:
        """Samples of one stream. Each has its own generator, so that batches can start anywhere."""
        images, shapes = np.empty((count, SIDE, SIDE), np.float32), np.empty(count, np.int32)
        for row in range(count):
            random = np.random.default_rng((self.seed, stream, start + row))
            shapes[row] = random.integers(len(SHAPES))
            images[row] = draw(random, int(shapes[row]), self.noise)
        return {"image": images, "shape": shapes}
