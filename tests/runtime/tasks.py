"""Tasks for tests: one that fails, so that a living process's training loop ends by an exception; one that is tiny."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learners.config import DataConfig, InnerConfig
from learners.training.models.language import ByteLanguageModel


class FailsOnce(ByteLanguageModel):
    """The learner that takes sample `fail_at` first raises; the file `flag` remembers that it has happened."""

    def __init__(self, data: DataConfig, seed: int, flag: str, fail_at: int, **model: Any) -> None:
        super().__init__(data, seed, **model)
        self._flag, self._fail_at = Path(flag), fail_at

    def batch(self, start: int, count: int) -> Any:
        if start <= self._fail_at < start + count:
            try:
                os.close(os.open(self._flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise ArithmeticError("this sample cannot be learned")
        return super().batch(start, count)


class Signs:
    """Two parameters that follow the signs of the samples. A step's bits are the same on every processor."""

    def __init__(self, data: DataConfig, seed: int) -> None:
        pass

    def init(self, rng: jax.Array) -> Any:
        return {"down": jnp.zeros(1), "up": jnp.ones(1)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return jnp.mean(batch) * (params["down"][0] - params["up"][0]), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.sgd(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        """float32[count]: of four samples three are 1, and one is -1."""
        return np.where(np.arange(start, start + count) % 4, 1.0, -1.0).astype(np.float32)

    def held_out(self, start: int, count: int) -> Any:
        return self.batch(start, count)

    def tokens(self, count: int) -> int:
        return count
