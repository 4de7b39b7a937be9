"""Adoption rules of a user's own: (local, theta, base) -> the new local value, named by `sync.adopt`.

Elementwise, on float32 JAX arrays of one shape, traced by `jax.jit`: `local` is the learner's value, `theta` the
version that arrives, `base` the one that it adopted before. Afterwards its counters are zero, as after `mix`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from outer.imports import function_at

Rule = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def named(name: str) -> Rule:
    """The rule at this import path. Raises ValueError, with what is wrong and the fix."""
    rule: Rule = function_at(name, {}, "adoption rule")
    return rule


def check(name: str) -> None:
    """Try a rule; names of modes pass. Raises ValueError, with what is wrong, for one that cannot be used."""
    if ":" not in name:
        return
    rule, drawn = named(name), np.random.default_rng(0)
    local, theta, base = (jnp.asarray(drawn.normal(size=(4, 3)) * [1.0, 1e-6, 1e3], jnp.float32) for _ in range(3))
    try:
        found, still = jax.jit(rule)(local, theta, base), jax.jit(rule)(theta, theta, theta)
        again, part = (
            jax.jit(lambda *given: rule(*given))(local, theta, base),
            jax.jit(rule)(local[:1], theta[:1], base[:1]),
        )
    except Exception as error:  # whatever a user's function raises
        raise ValueError(f"{name!r} fails under jax.jit: {type(error).__name__}: {error}") from error
    if [(one.shape, one.dtype) for one in (found, part)] != [((4, 3), jnp.float32), ((1, 3), jnp.float32)]:
        raise ValueError(f"{name!r} returns {found.dtype}{list(found.shape)} for float32[4, 3]; keep shape and dtype")
    if not (jnp.isfinite(found).all() and jnp.isfinite(still).all()):
        raise ValueError(f"{name!r} returns what is not finite")
    if found.tobytes() != again.tobytes():
        raise ValueError(f"{name!r} returns other values for the same arrays: replay would not find its adoptions")
    if not np.allclose(part, found[:1], rtol=1e-6, atol=0.0):
        raise ValueError(f"{name!r} is not elementwise: fragments may be divided otherwise")
    if not np.allclose(still, theta, rtol=1e-6, atol=0.0):
        raise ValueError(f"{name!r} moves a learner whose local value, theta and base are the same; return theta then")
