"""optax optimizers by name, and the outer optimizer, which applies a merged outer gradient to one flat fragment."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from outer.config import OuterConfig

# Unusable in a recipe: lbfgs needs the loss at trial points, noisy_sgd a random key; scale_by_* are building blocks.
_OTHERS = ("lbfgs", "noisy_sgd", "scale_by_")


@cache
def _known() -> dict[str, Callable[..., Any]]:
    """Every usable optimizer of optax, by name."""
    known: dict[str, Callable[..., Any]] = {}
    for name, function in vars(optax).items():
        if name.startswith(("_", *_OTHERS)) or not isinstance(function, FunctionType | partial):
            continue
        signature = inspect.signature(function)
        returns = str(signature.return_annotation)
        if "learning_rate" in signature.parameters and "GradientTransformation" in returns:
            known[name] = function
    return known


def resolve(section: str, name: str, lr: float, options: Mapping[str, Any]) -> optax.GradientTransformation:
    """Build the optax optimizer `name` with learning rate `lr` and further arguments `options`.

    `section` names the recipe's table in messages. Raises ValueError, with the field, the value and what is allowed,
    for an unknown optimizer, an unknown option, or a value that optax refuses.
    """
    function = _known().get(name)
    if function is None:
        raise ValueError(
            f"{section}.optimizer = {name!r} is not an optax optimizer; {_nearest(name, _known())} "
            "(any optax function that takes a learning_rate will do)"
        )
    allowed = [option for option in inspect.signature(function).parameters if option != "learning_rate"]
    for option in options:
        if option == "learning_rate":
            raise ValueError(f"{section}.options.learning_rate: give the learning rate as {section}.lr")
        if option not in allowed:
            raise ValueError(
                f"{section}.options.{option}: optax.{name} has no such option; {_nearest(option, allowed)}"
            )
    try:
        return function(learning_rate=lr, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{section}.options = {dict(options)!r}: optax.{name} refuses them: {error}") from error


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word.lower(), list(known), n=3, cutoff=0.5)
    if near:
        return f"the nearest are {', '.join(near)}"
    return f"known are {', '.join(sorted(known)) or 'none'}"


class OuterOptimizer:
    """The outer optimizer for all fragments. The caller keeps each fragment's state.

    Momentum is Nesterov where the optimizer has it (paper section 4). A step computes in float64 under a local switch;
    parameters and the floating leaves of the state are stored in float32. So SGD with learning rate 1 and no momentum
    restores a lone learner's parameters bit for bit. Raises ValueError as `resolve` does, and for a momentum that the
    optimizer does not have. `sgd`: its settings if the kernel takes its steps, else None.
    """

    def __init__(self, config: OuterConfig) -> None:
        options = dict(config.options)
        function = _known().get(config.optimizer)
        parameters = inspect.signature(function).parameters if function else {}
        if "momentum" in parameters:
            if "momentum" in options:
                raise ValueError("outer.options.momentum: give the momentum as outer.momentum")
            options["momentum"] = config.momentum
            if "nesterov" in parameters:
                options.setdefault("nesterov", True)
        elif function and "momentum" in config.model_fields_set and config.momentum != _default_momentum():
            # A resolved recipe that is read back sets every field, so the default value must not be an error.
            raise ValueError(
                f"outer.momentum = {config.momentum}: optax.{config.optimizer} has no momentum; leave "
                f"it out, or choose one that has it: {', '.join(sorted(filter(_has_momentum, _known())))}"
            )
        self._transformation = resolve("outer", config.optimizer, config.lr, options)
        self.sgd = Sgd(config.lr, config.momentum, bool(options["nesterov"])) if config.plain_sgd else None
        self._step = jax.jit(self._apply)

    def init(self, theta: NDArray[np.float32]) -> Any:
        """The initial state for parameters theta float32[n]: a pytree of NumPy arrays."""
        with jax.enable_x64(True):
            return _stored(self._transformation.init(theta.astype(np.float64)))

    def state_bytes(self, size: int) -> int:
        """Bytes of state for a fragment of `size` elements. Allocates no arrays."""
        shapes = jax.eval_shape(lambda: self._transformation.init(jnp.zeros(size, jnp.float32)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    def step(
        self, theta: NDArray[np.float32], gradient: NDArray[np.float64], state: Any
    ) -> tuple[NDArray[np.float32], Any]:
        """One outer step on the merged outer gradient float64[n]: returns the new (theta float32[n], state).

        Changes no argument. Overflow shows as infinity in theta.
        """
        with jax.enable_x64(True), np.errstate(over="ignore"):  # overflow shows as infinity
            stepped, state = self._step(theta.astype(np.float64), gradient, _working(state))
            return np.asarray(stepped).astype(np.float32), _stored(state)

    def _apply(self, theta: jax.Array, gradient: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        updates, state = self._transformation.update(gradient, state, theta)
        return optax.apply_updates(theta, updates), state


@dataclass(frozen=True)
class Sgd:
    """The settings of SGD with momentum, whose step the merge kernel takes itself. Its state is one float32[n]."""

    lr: float
    momentum: float
    nesterov: bool


def _has_momentum(name: str) -> bool:
    return "momentum" in inspect.signature(_known()[name]).parameters


def _default_momentum() -> Any:
    return OuterConfig.model_fields["momentum"].default


def _stored(state: Any) -> Any:
    """The state's leaves as NumPy arrays of their own, the floating ones in float32."""
    return jax.tree.map(lambda leaf: _as(np.float32, leaf), state)


def _working(state: Any) -> Any:
    return jax.tree.map(lambda leaf: _as(np.float64, leaf), state)


def _as(floating: type[np.floating[Any]], leaf: Any) -> NDArray[Any]:
    array = np.asarray(leaf)
    return array.astype(floating if np.issubdtype(array.dtype, np.floating) else array.dtype)
