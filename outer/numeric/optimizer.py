"""Optimizers by name, one beside those of optax, and the outer optimizer, which steps one flat fragment."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from optax.contrib import MuonDimensionNumbers

from outer.config import OuterConfig
from outer.imports import function_at

# Unusable in a recipe: lbfgs needs the loss at trial points, noisy_sgd a random key; scale_by_* are building blocks.
_OTHERS = ("lbfgs", "noisy_sgd", "scale_by_")
ADAM = ("*embed*", "*head*")  # of tensor paths: looked up by token, or one column for each


# ------------------------------------------------------------------ beside those of optax


def muon(
    learning_rate: float,
    beta: float = 0.9,
    weight_decay: float = 1e-4,
    ns_steps: int = 5,
    rms: float = 0.2,
    adam: Sequence[str] = ADAM,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
) -> optax.GradientTransformation:
    """Muon as an inner optimizer, for models whose leaves are matrices [in, out] or stacks of them.

    Momentum made orthogonal by Newton and Schulz (optax.contrib.muon), AdamW for what is no hidden matrix.

    Of leaves with more than two axes the last two are the matrix. `adam`: patterns (fnmatch) of the paths of matrices
    that AdamW steps too. `rms`: of a Muon update at learning rate 1; at 0.2, AdamW's learning rates fit (arXiv
    2502.16982). `beta`: its momentum; docs/quality.md says why it is less than elsewhere. As inner optimizer of DiLoCo:
    arXiv 2505.23725. Raises ValueError for patterns that are no list.
    """
    if isinstance(adam, str):
        raise ValueError(f"adam = {adam!r} must be a list of patterns")

    def matrices(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(of_leaf, params)

    def of_leaf(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        stepped_by_adam = leaf.ndim < 2 or any(fnmatchcase(name, pattern) for pattern in adam)
        return None if stepped_by_adam else MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1)

    return optax.contrib.muon(
        learning_rate,
        beta=beta,
        weight_decay=weight_decay,
        ns_steps=ns_steps,
        consistent_rms=rms,
        adam_b1=adam_b1,
        adam_b2=adam_b2,
        adam_weight_decay=weight_decay,
        muon_weight_dimension_numbers=matrices,
    )


# ------------------------------------------------------------------ by name


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


def _named(section: str) -> dict[str, Callable[..., Any]]:
    return _known() | ({"muon": muon} if section == "inner" else {})


def resolve(section: str, name: str, lr: float, options: Mapping[str, Any]) -> optax.GradientTransformation:
    """Build the optimizer `name` with learning rate `lr` and further arguments `options`.

    `section` names the recipe's table in messages; "outer" also has import paths, "inner" has `muon`. Raises
    ValueError, with the field, the value and what is allowed, for an unknown optimizer, an unknown option, or a value
    that the optimizer refuses.
    """
    function = _function(section, name)
    if function is None:
        raise ValueError(
            f"{section}.optimizer = {name!r} is not an optax optimizer; {_nearest(name, _named(section))} "
            "(any optax function that takes a learning_rate will do)"
        )
    parameters = inspect.signature(function).parameters
    called = f"optax.{name}" if name in _known() else name
    if "learning_rate" not in parameters:
        raise ValueError(f"{section}.optimizer = {name!r} takes no learning_rate; give it an argument of that name")
    allowed = [option for option in parameters if option != "learning_rate"]
    for option in options:
        if option == "learning_rate":
            raise ValueError(f"{section}.options.learning_rate: give the learning rate as {section}.lr")
        if option not in allowed:
            raise ValueError(f"{section}.options.{option}: {called} has no such option; {_nearest(option, allowed)}")
    try:
        made = function(learning_rate=lr, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{section}.options = {dict(options)!r}: {called} refuses them: {error}") from error
    if not isinstance(made, optax.GradientTransformation):
        raise ValueError(
            f"{section}.optimizer = {name!r} returns {type(made).__name__}; return an optax.GradientTransformation"
        )
    return made


def _function(section: str, name: str) -> Callable[..., Any] | None:
    if section == "outer" and ":" in name:
        try:
            found: Callable[..., Any] = function_at(name, {}, "optimizer")
        except ValueError as error:
            raise ValueError(f"outer.optimizer = {error}") from error
        return found
    return _named(section).get(name)


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
        function = _function("outer", config.optimizer)
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
                f"outer.momentum = {config.momentum}: {config.optimizer} has no momentum; leave "
                f"it out, or choose one that has it: {', '.join(sorted(filter(_has_momentum, _named('outer'))))}"
            )
        self._transformation = resolve("outer", config.optimizer, config.lr, options)
        self.sgd = Sgd(config.lr, config.momentum, bool(options["nesterov"])) if config.plain_sgd else None
        self._step = jax.jit(self._apply)

    def init(self, theta: NDArray[np.float32]) -> Any:
        """The initial state for parameters theta float32[n]: a pytree of NumPy arrays."""
        if self.sgd is not None:  # known without float64 copies, whose memory a large model would feel
            shapes = jax.eval_shape(self._transformation.init, theta)
            return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
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


def check(config: OuterConfig) -> None:
    """Build the optimizer, and try one that is a user's own. Raises ValueError, with what is wrong and the fix.

    Restoring needs a state of fixed shapes, and replay the same bits from every program that computes the steps.
    """
    name, optimizer = config.optimizer, OuterOptimizer(config)
    if ":" not in name:
        return
    told = f"outer.optimizer = {name!r}"
    try:
        states, thetas = _tried(optimizer)
        again = _tried(OuterOptimizer(config))
    except Exception as error:  # whatever a user's function raises
        raise ValueError(
            f"{told} fails in a step under jax.jit: {type(error).__name__}: {error}; use JAX's operations alone"
        ) from error
    forms = [[(leaf.dtype, leaf.shape) for leaf in jax.tree.leaves(state)] for state in states]
    if any(dtype.hasobject for form in forms for dtype, _ in form):
        raise ValueError(f"{told} keeps in its state what is no array; keep arrays and numbers")
    if any(form != forms[0] for form in forms) or len({jax.tree.structure(state) for state in states}) > 1:
        raise ValueError(f"{told} changes its state's structure, shapes or dtypes; keep those that init returns")
    if any(theta.shape != thetas[0].shape for theta in thetas):
        raise ValueError(f"{told} gives updates of another shape; keep the gradient's")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((states, thetas))):
        raise ValueError(f"{told} gives what is not finite; look at gradients of zero, 1e-8 and 1e4")
    bits = [[leaf.tobytes() for leaf in jax.tree.leaves(each)] for each in ((states, thetas), again)]
    if bits[0] != bits[1]:
        raise ValueError(f"{told} gives other bits the second time; let it depend on gradients and parameters alone")


def _tried(optimizer: OuterOptimizer) -> tuple[list[Any], list[NDArray[np.float32]]]:
    """States and parameters before and after each of some steps."""
    drawn = np.random.default_rng(0)
    thetas = [drawn.normal(size=12).astype(np.float32)]
    states = [optimizer.init(thetas[0])]
    for scale in (1.0, 0.0, 1e-8, -1.0, 1e4, 1.0):
        theta, state = optimizer.step(thetas[-1], scale * drawn.normal(size=12), states[-1])
        thetas.append(theta)
        states.append(state)
    return states, thetas


@dataclass(frozen=True)
class Sgd:
    """The settings of SGD with momentum, whose step the merge kernel takes itself. Its state is one float32[n]."""

    lr: float
    momentum: float
    nesterov: bool


def _has_momentum(name: str) -> bool:
    return "momentum" in inspect.signature(_named("outer")[name]).parameters


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
