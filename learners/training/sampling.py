"""Text from trained parameters, for tasks that can give it; needs JAX only when it is called."""

from __future__ import annotations

from typing import Any

from learners.training import weights


def sample(
    task: Any, named: weights.Named, prompt: bytes, length: int, temperature: float, top_k: int, seed: int
) -> bytes:
    """What the task says after the prompt. Raises ValueError if the parameters are not the task's."""
    import jax

    from learners.training.trainer import parameters

    params = parameters(task, named)
    said: bytes = task.sample(params, prompt, length, temperature, top_k, jax.random.key(seed))
    return said
