"""The global parameters: every fragment's values, outer optimizer state and version.

`propose` computes an outer step and `install` puts it in force; in between the syncer makes it durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric import codec as codecs
from outer.numeric.merge import merge
from outer.numeric.optimizer import OuterOptimizer
from outer.protocol.fragments import Fragment


@dataclass(frozen=True)
class Proposal:
    """A computed outer step of one fragment that is not in force yet."""

    fragment: int
    theta: NDArray[np.float32]  # [n], read-only
    state: Any  # outer optimizer state, a pytree of NumPy arrays
    norm: float  # L2 norm of the merged outer gradient that the outer optimizer stepped on
    digest: str  # SHA-256 of theta
    finite: bool  # whether every element of theta is finite

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """theta, then the leaves of the state, as `GlobalParameters.restore` takes them."""
        return [self.theta, *jax.tree.leaves(self.state)]


class GlobalParameters:
    """The paper's Theta in fragments, with the outer optimizer's state for each.

    `thetas`: read-only float32[n] for each fragment; a commit replaces an array and never changes one in place.
    `states`: outer optimizer states. `versions`: 0 at first, then the syncer step of the newest commit.
    """

    def __init__(
        self,
        fragments: Sequence[Fragment],
        initial: Sequence[NDArray[np.float32]],
        outer: OuterConfig,
        codec: str,
        rules: Mapping[str, str],
    ) -> None:
        """`initial`: float32[n] per fragment. `rules`: by tensor name. Raises ValueError for an invalid `outer`."""
        assert [array.shape for array in initial] == [(fragment.size,) for fragment in fragments]
        self.fragments = tuple(fragments)
        self._optimizer = OuterOptimizer(outer)
        self._granularity = outer.granularity
        self._codec = codec
        self._rules = dict(rules)
        self._averaged = [_averaged(fragment, rules) for fragment in self.fragments]
        self.thetas = [_frozen(np.array(array, dtype=np.float32)) for array in initial]
        self.states = [self._fresh_state(index) for index in range(len(self.fragments))]
        self.versions = [0] * len(self.fragments)

    def propose(self, fragment: int, payloads: Sequence[NDArray[Any]], weights: Sequence[float]) -> Proposal:
        """Compute a fragment's outer step from M checked payloads and M weights with sum 1. Changes nothing.

        Tensors of the kind mean become the weighted average of the learners' values (with one learner and codec fp32
        its value, exactly), and the outer optimizer does not see them.
        """
        theta = self.thetas[fragment]
        gradients = [codecs.decode(self._codec, payload, theta) for payload in payloads]
        merged = merge(self.fragments[fragment], gradients, weights, self._rules, self._granularity)
        averaged = self._averaged[fragment]
        if averaged is None:
            stepped, state = self._optimizer.step(theta, merged, self.states[fragment])
        else:
            merged, stepped = merged[~averaged], np.empty_like(theta)
            stepped[averaged] = sum(
                weight * codecs.values(self._codec, payload[averaged], theta[averaged])
                for payload, weight in zip(payloads, weights, strict=True)
            )
            stepped[~averaged], state = self._optimizer.step(theta[~averaged], merged, self.states[fragment])
        return Proposal(
            fragment=fragment,
            theta=_frozen(stepped),
            state=state,
            norm=float(np.sqrt(np.dot(merged, merged))),
            digest=codecs.digest(stepped),
            finite=bool(np.isfinite(stepped).all()),
        )

    def install(self, proposal: Proposal, version: int) -> None:
        """Put a proposal in force as the given version of its fragment."""
        assert version > self.versions[proposal.fragment], "a fragment's version only rises"
        self.thetas[proposal.fragment] = proposal.theta
        self.states[proposal.fragment] = proposal.state
        self.versions[proposal.fragment] = version

    def arrays(self, fragment: int) -> list[NDArray[Any]]:
        """A fragment's theta and state leaves, as `restore` takes them."""
        return [self.thetas[fragment], *jax.tree.leaves(self.states[fragment])]

    def restore_theta(self, fragment: int, version: int, theta: NDArray[np.float32]) -> None:
        """Restore a fragment's parameters alone; its outer optimizer state starts fresh."""
        self.restore(fragment, version, [theta, *jax.tree.leaves(self._fresh_state(fragment))])

    def _fresh_state(self, fragment: int) -> Any:
        averaged, theta = self._averaged[fragment], self.thetas[fragment]
        return self._optimizer.init(theta if averaged is None else theta[~averaged])

    def restore(self, fragment: int, version: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Restore a fragment from `arrays`. Raises ValueError if they do not fit this model and optimizer."""
        theta, leaves = arrays[0], list(arrays[1:])
        old, structure = jax.tree.flatten(self.states[fragment])
        ours = [(self.thetas[fragment].dtype, self.thetas[fragment].shape), *((leaf.dtype, leaf.shape) for leaf in old)]
        theirs = [(array.dtype, array.shape) for array in arrays]
        if ours != theirs:
            raise ValueError(f"fragment {fragment} was saved as {theirs}; this recipe needs {ours}")
        self.thetas[fragment] = _frozen(theta)
        self.states[fragment] = jax.tree.unflatten(structure, leaves)
        self.versions[fragment] = version

    def digest(self) -> str:
        """SHA-256 of all parameters, in the order of the fragments."""
        return codecs.digest(*self.thetas)


def _averaged(fragment: Fragment, rules: Mapping[str, str]) -> NDArray[np.bool_] | None:
    """Which elements of a fragment belong to mean tensors, bool[n]; None for none."""
    found = np.repeat([rules[each.name] == "mean" for each in fragment.tensors], [t.size for t in fragment.tensors])
    return found if found.any() else None


def _frozen(array: NDArray[np.float32]) -> NDArray[np.float32]:
    array.setflags(write=False)
    return array
