"""The global parameters: every fragment's values, outer optimizer state and version.

`propose` computes an outer step and `install` puts it in force; in between the syncer makes it durable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric import codec as codecs
from outer.numeric import formats, kernel
from outer.numeric.compiling import read_only
from outer.numeric.merge import Contributions, Layout, layout
from outer.numeric.optimizer import OuterOptimizer
from outer.protocol.fragments import Fragment

Stepped = tuple[NDArray[np.float32], Any, float, bool]  # theta, state, norm of the merged gradient, all finite


@dataclass(frozen=True)
class Proposal:
    """A computed outer step of one fragment that is not in force yet."""

    fragment: int
    theta: NDArray[np.float32]  # [n], read-only
    state: Any  # outer optimizer state, a pytree of NumPy arrays
    norm: float  # L2 norm of the merged outer gradient that the outer optimizer stepped on
    digest: str  # as codec.digest
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
        threads: int = 1,
    ) -> None:
        """`initial`: float32[n] per fragment. `rules`: by tensor name. `threads`: that merge, with the same bits.

        Raises ValueError for an invalid `outer`.
        """
        assert [array.shape for array in initial] == [(fragment.size,) for fragment in fragments]
        self.fragments = tuple(fragments)
        self._optimizer = OuterOptimizer(outer)
        self._codec, self._threads = codec, threads
        self._layouts = [layout(fragment, rules, outer.granularity) for fragment in self.fragments]
        self.thetas = [_frozen(np.array(array, dtype=np.float32)) for array in initial]
        self.states = [self._fresh_state(index) for index in range(len(self.fragments))]
        self.versions = [0] * len(self.fragments)

    def propose(
        self,
        fragment: int,
        payloads: Sequence[NDArray[Any]],
        weights: Sequence[float],
        anchor: NDArray[np.float32] | None = None,
    ) -> Proposal:
        """Compute a fragment's outer step from M checked payloads and M weights with sum 1. Changes nothing.

        `anchor`: float32[n], what the learners grew from, where it is not the global parameters themselves.
        Tensors of the kind mean become the weighted average of the learners' values (with one learner and codec fp32
        its value, exactly), and the outer optimizer does not see them.
        """
        theta, laid = self.thetas[fragment], self._layouts[fragment]
        given = Contributions(self._codec, theta if anchor is None else anchor, payloads, weights, self._threads)
        step = self._step if self._optimizer.sgd is None else self._sgd
        stepped, state, norm, finite = step(given, laid, theta, self.states[fragment])
        for place in laid.mean:
            stepped[place] = sum(
                weight * codecs.values(self._codec, payload, given.anchor, place)
                for payload, weight in zip(given.payloads, given.weights, strict=True)
            )
            finite = finite and bool(np.isfinite(stepped[place]).all())
        return Proposal(
            fragment=fragment,
            theta=_frozen(stepped),
            state=state,
            norm=norm,
            digest=codecs.digest(stepped),
            finite=finite,
        )

    def _sgd(self, given: Contributions, laid: Layout, theta: NDArray[np.float32], state: Any) -> Stepped:
        """SGD with momentum, merged and stepped in one pass."""
        how = self._optimizer.sgd
        assert how is not None
        (velocity,), structure = jax.tree.flatten(state)
        stepped, moved, total = np.empty_like(theta), np.empty_like(velocity), np.zeros(2)
        settings = (read_only(theta), read_only(velocity), moved, stepped, how.lr, how.momentum, how.nesterov)
        for rule, pieces in laid.pieces.items():
            found = np.zeros((len(pieces.starts), 2))
            given.run(kernel.sgd, pieces, given.shares(rule, pieces), pieces.shift, found, between=settings)
            total += found.sum(axis=0)
        return stepped, jax.tree.unflatten(structure, [moved]), math.sqrt(total[0]), total[1] == 0.0

    def _step(self, given: Contributions, laid: Layout, theta: NDArray[np.float32], state: Any) -> Stepped:
        """Any other optimizer, on the merged gradient as a whole."""
        merged, kept = given.gradient(laid), np.ones(len(theta), np.bool_)
        for place in laid.mean:
            kept[place] = False
        stepped = np.empty_like(theta)
        stepped[kept], state = self._optimizer.step(theta[kept], merged[kept], state)
        return stepped, state, float(np.sqrt(np.dot(merged, merged))), bool(np.isfinite(stepped).all())

    def warm_up(self) -> None:
        """Compile what `propose` needs, before the first learner waits for it. Changes nothing."""
        form = formats.named(self._codec)
        kernel.warm_up(form.encode(np.zeros(1, np.float32), 0), form.kind)
        if self._optimizer.sgd is None:
            for fragment in {each.size: each.index for each in self.fragments}.values():
                self.propose(
                    fragment, [codecs.encode(self._codec, self.thetas[fragment], self.thetas[fragment])], [1.0]
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
        theta, mean = self.thetas[fragment], self._layouts[fragment].mean
        return self._optimizer.init(np.delete(theta, np.r_[tuple(mean)]) if mean else theta)

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
        """Digest of all parameters, in the order of the fragments."""
        return codecs.digest(*self.thetas)


def _frozen(array: NDArray[np.float32]) -> NDArray[np.float32]:
    array.setflags(write=False)
    return array
