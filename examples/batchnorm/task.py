"""Example task: the shapes classifier with batch normalization, whose running statistics are leaves of the kind mean.

A step normalizes with its own batch and moves the running statistics; held-out evaluation normalizes with those. The
syncer averages them like the gradients' leaves, but no optimizer steps them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from examples.shapes.task import Shapes

RATE = 0.1  # how fast the running statistics follow a batch's


class NormedShapes(Shapes):
    """Shapes, with a normalization between each convolution and its bias."""

    kinds: ClassVar = {"layers/*/mean": "mean", "layers/*/variance": "mean"}

    def init(self, rng: jax.Array) -> dict[str, Any]:
        params = super().init(rng)
        for layer in params["layers"]:
            layer |= {"mean": jnp.zeros_like(layer["bias"]), "variance": jnp.ones_like(layer["bias"])}
        return params

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        scores, state = self._scores(params, batch["image"], training=True)
        right = jnp.mean(jnp.argmax(scores, axis=-1) == batch["shape"])
        return self._mean_loss(scores, batch), {"accuracy": right, "state": state}

    def held_out_loss(self, params: Any, batch: Any) -> jax.Array:
        return self._mean_loss(self._scores(params, batch["image"], training=False)[0], batch)

    def _mean_loss(self, scores: jax.Array, batch: Any) -> jax.Array:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["shape"]))

    def _scores(self, params: Any, images: jax.Array, training: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(float32[batch, 6], in training the new running statistics by path) of images float32[batch, SIDE, SIDE]."""
        x, state = images[..., None], {}
        for index, layer in enumerate(params["layers"]):
            x = jax.lax.conv_general_dilated(
                x, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            used = {"mean": layer["mean"], "variance": layer["variance"]}
            if training:
                used = {"mean": jnp.mean(x, axis=(0, 1, 2)), "variance": jnp.var(x, axis=(0, 1, 2))}
                for name, new in used.items():
                    state[f"layers/{index}/{name}"] = (1 - RATE) * layer[name] + RATE * new
            x = jax.nn.relu((x - used["mean"]) * jax.lax.rsqrt(used["variance"] + 1e-5) + layer["bias"])
        return jnp.mean(x, axis=(1, 2)) @ params["head"]["kernel"] + params["head"]["bias"], state
