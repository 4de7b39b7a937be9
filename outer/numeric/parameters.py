"""The global parameters: every fragment's values, outer optimizer state and version.

`propose` computes an outer step and `install` puts it in force; in between the syncer makes it durable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric import codec as codecs
from outer.numeric import formats, kernel
from outer.numeric.chain import Delta, Recent, VersionChain
from outer.numeric.codec import DIFFERENCE
from outer.numeric.compiling import one_process, read_only
from outer.numeric.merge import Contributions, VectorLayout, layout
from outer.numeric.optimizer import OuterOptimizer
from outer.protocol.fragments import Fragment

LARGE = 2**18  # elements of arrays that no core's cache holds
APART = 2304  # elements, 9 KB: two pages and some lines
PLACES = 16

Stepped = tuple[NDArray[np.float32], Any, float, bool]  # theta, state, norm of the merged gradient, all finite


@dataclass(frozen=True)
class Proposal:
    """A computed outer step of one fragment that is not in force yet."""

    fragment: int
    theta: NDArray[np.float32]  # [n], read-only: as published
    state: Any  # outer optimizer state, a pytree of NumPy arrays
    norm: float  # L2 norm of the merged outer gradient that the outer optimizer stepped on
    digest: str  # of theta, as codec.digest
    finite: bool  # whether every element of theta, and of the state, is finite
    exact: NDArray[np.float32] | None = None  # [n], read-only: with a chain, what theta rounds
    outlier: int = -1  # where it is not finite: the payload with the largest number, which may be why
    delta: Delta | None = None  # with a chain: what leads from the version before to theta

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """theta, the leaves of the state, and with a chain `exact`, as `GlobalParameters.restore` takes them."""
        return _arrays(self.theta, self.state, self.exact)


class GlobalParameters:
    """The paper's Theta in fragments, with the outer optimizer's state for each.

    `thetas`: as published, read-only float32[n] for each fragment; a commit replaces an array and never changes one in
    place. `exact`: what the outer optimizer steps; with a chain `thetas` rounds it, else they are the same arrays.
    `states`: outer optimizer states. `versions`: 0 at first, then the syncer step of the newest commit.
    """

    def __init__(
        self,
        fragments: Sequence[Fragment],
        initial: Sequence[NDArray[np.float32] | None],
        outer: OuterConfig,
        codec: str,
        rules: Mapping[str, str],
        threads: int = 1,
        chain: VersionChain | None = None,
        others: Sequence[str] = (),
    ) -> None:
        """`initial`: float32[n] per fragment, which nobody may change any more; None where another process holds it.

        `rules`: by tensor name. `threads`: that merge, with the same bits. `chain`: how published versions follow each
        other, if not as they are. `others`: codecs that single payloads may have.

        Raises ValueError for an invalid `outer`.
        """
        assert all(a is None or a.shape == (each.size,) for a, each in zip(initial, fragments, strict=True))
        self.fragments = tuple(fragments)
        self._optimizer = OuterOptimizer(outer)
        self._codec, self._others, self._threads = codec, others, threads
        self._layouts = [layout(fragment, rules, outer.granularity) for fragment in self.fragments]
        held = [np.empty(0, np.float32) if array is None else array for array in initial]
        self.thetas = [_frozen(np.asarray(array, dtype=np.float32).view()) for array in held]
        self.exact = list(self.thetas)
        self._chain, self._recent = chain, [Recent(theta.nbytes) for theta in self.thetas]
        self.states = [
            None if initial[index] is None else self._fresh_state(index, theta)
            for index, theta in enumerate(self.thetas)
        ]
        self.versions = [0] * len(self.fragments)
        self._places = cycle(range(PLACES))

    def propose(
        self,
        fragment: int,
        payloads: Sequence[NDArray[Any]],
        weights: Sequence[float],
        version: int = 0,
        forms: Sequence[str] = (),
    ) -> Proposal:
        """Compute a fragment's outer step from M checked payloads and M weights with sum 1. Changes nothing.

        `version`: as which it will be installed; it seeds the rounding of a chain. `forms`: the codec of each payload,
        where not all have the run's, which "" stands for; then all are merged as float32 differences.

        Tensors of the kind mean become the weighted average of the learners' values (with one learner and codec fp32
        its value, exactly), and the outer optimizer does not see them.
        """
        anchor, laid = self.thetas[fragment], self._layouts[fragment]  # what the learners grew from
        codec = self._codec
        if any(form not in ("", codec) for form in forms):
            read = zip(payloads, forms, strict=True)
            codec, payloads = DIFFERENCE, [codecs.difference(form or self._codec, each, anchor) for each, form in read]
        given = Contributions(codec, anchor, payloads, weights, self._threads)
        step = self._step if self._optimizer.sgd is None else self._sgd
        stepped, state, norm, finite = step(given, laid, self.exact[fragment], self.states[fragment])
        for place in laid.mean:
            stepped[place] = sum(
                weight * codecs.decode(codec, payload, given.anchor, place, values=True)
                for payload, weight in zip(given.payloads, given.weights, strict=True)
            )
            finite = finite and bool(np.isfinite(stepped[place]).all())
        if self._chain is None or not finite:
            outlier = -1 if finite else _outlier(codec, payloads, anchor)
            return Proposal(fragment, _frozen(stepped), state, norm, codecs.digest(stepped), finite, outlier=outlier)
        delta = self._chain.delta(fragment, version, stepped, anchor)
        published = self._chain.extend(fragment, anchor, [delta])
        finite, digest = bool(np.isfinite(published).all()), codecs.digest(published)
        return Proposal(fragment, published, state, norm, digest, finite, _frozen(stepped), delta=delta)

    def _sgd(self, given: Contributions, laid: VectorLayout, theta: NDArray[np.float32], state: Any) -> Stepped:
        """SGD with momentum, merged and stepped in one pass."""
        how = self._optimizer.sgd
        assert how is not None
        (velocity,), structure = jax.tree.flatten(state)
        stepped, moved, total = self._room(len(theta)), self._room(len(velocity)), np.zeros(2)
        settings = (read_only(theta), read_only(velocity), moved, stepped, how.lr, how.momentum, how.nesterov)
        given.kept = stepped  # there is room until the step is taken
        for rule, pieces in laid.pieces.items():
            shares, times = given.shares(rule, pieces)
            for these, by_piece, work in ((np.isnan(times), shares, kernel.sgd), (~np.isnan(times), times, _finish)):
                if these.any():
                    here, found = pieces.only(these), np.zeros((int(these.sum()), 2))
                    given.run(work, here, by_piece[these], here.shift, found, between=settings)
                    total += found.sum(axis=0)
        return stepped, jax.tree.unflatten(structure, [moved]), math.sqrt(total[0]), total[1] == 0.0

    def _room(self, size: int) -> NDArray[np.float32]:
        """float32[size] whose address, modulo what a core's cache can tell apart, is not that of its predecessors."""
        skipped = next(self._places) * APART if size >= LARGE else 0
        return np.empty(size + skipped, np.float32)[skipped:]

    def _step(self, given: Contributions, laid: VectorLayout, theta: NDArray[np.float32], state: Any) -> Stepped:
        """Any other optimizer, on the merged gradient as a whole."""
        merged, kept = given.gradient(laid), np.ones(len(theta), np.bool_)
        for place in laid.mean:
            kept[place] = False
        stepped = np.empty_like(theta)
        stepped[kept], after = self._optimizer.step(theta[kept], merged[kept], state)
        finite = bool(np.isfinite(stepped).all()) and _stays_finite(state, after)
        return stepped, after, float(np.sqrt(np.dot(merged, merged))), finite

    def warm_up(self) -> None:
        """Compile what `propose` needs, before the first learner waits for it. Changes nothing.

        What many gradients need is left to `warm_up_rest`.
        """
        self._warm_up_kernel(few=True)
        for name in self._others:
            formats.named(name).warm_up()
        if self._chain is not None:
            self._chain.codec.warm_up()
        if self._optimizer.sgd is None:
            for fragment in {theta.size: index for index, theta in enumerate(self.thetas) if theta.size}.values():
                self.propose(
                    fragment, [codecs.encode(self._codec, self.thetas[fragment], self.thetas[fragment])], [1.0]
                )

    def warm_up_rest(self) -> None:
        """Compile what merges of more than a few gradients need."""
        self._warm_up_kernel(few=False)

    def _warm_up_kernel(self, few: bool) -> None:
        with one_process("merge"):
            for name in dict.fromkeys([self._codec, *([DIFFERENCE] if self._others else [])]):
                form = formats.named(name)
                kernel.warm_up(np.zeros(form.elements(1), form.dtype), form.kind, few)

    def install(self, proposal: Proposal, version: int) -> None:
        """Put a proposal in force as the given version of its fragment."""
        assert version > self.versions[proposal.fragment], "a fragment's version only rises"
        if proposal.delta is not None:
            self._recent[proposal.fragment].add(self.versions[proposal.fragment], proposal.delta)
        self.thetas[proposal.fragment] = proposal.theta
        self.exact[proposal.fragment] = proposal.theta if proposal.exact is None else proposal.exact
        self.states[proposal.fragment] = proposal.state
        self.versions[proposal.fragment] = version

    def since(self, fragment: int, version: int) -> NDArray[np.float32] | list[Delta]:
        """Return successive deltas from `version` to the newest one, or else the whole value."""
        deltas = self._recent[fragment].since(version)
        return self.thetas[fragment] if deltas is None else deltas

    def arrays(self, fragment: int) -> list[NDArray[Any]]:
        """Return the arrays that `restore` takes: as Proposal.arrays."""
        exact = None if self._chain is None else self.exact[fragment]
        return _arrays(self.thetas[fragment], self.states[fragment], exact)

    def restore_theta(self, fragment: int, version: int, theta: NDArray[np.float32]) -> None:
        """Restore a fragment's published parameters alone; its outer optimizer state starts fresh, from these."""
        self.restore(fragment, version, [theta, *jax.tree.leaves(self._fresh_state(fragment, theta))])

    def _fresh_state(self, fragment: int, theta: NDArray[np.float32]) -> Any:
        mean = self._layouts[fragment].mean
        return self._optimizer.init(np.delete(theta, np.r_[tuple(mean)]) if mean else theta)

    def restore(self, fragment: int, version: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Restore a fragment from `arrays`. Raises ValueError if they do not fit this model and optimizer.

        The exact parameters are the published ones where either this run or the one that saved them has no chain.
        """
        old, structure = jax.tree.flatten(self.states[fragment])
        theta, leaves, more = arrays[0], list(arrays[1 : 1 + len(old)]), list(arrays[1 + len(old) :])
        held = self.thetas[fragment]
        ours = [(each.dtype, each.shape) for each in (held, *old, *[held][: len(more)])]
        theirs = [(array.dtype, array.shape) for array in arrays]
        if ours != theirs:
            raise ValueError(f"fragment {fragment} was saved as {theirs}; this recipe needs {ours}")
        self.thetas[fragment] = _frozen(theta)
        self.exact[fragment] = _frozen(more[0]) if more and self._chain is not None else self.thetas[fragment]
        self._recent[fragment] = Recent(theta.nbytes)
        self.states[fragment] = jax.tree.unflatten(structure, leaves)
        self.versions[fragment] = version

    def digest(self) -> str:
        """Digest of all parameters, in the order of the fragments."""
        return codecs.digest(*self.thetas)


def _finish(_anchor: Any, _payloads: Any, _kind: Any, *settings: Any) -> None:
    kernel.sgd_of_sums(*settings)


def _outlier(codec: str, payloads: Sequence[NDArray[Any]], anchor: NDArray[np.float32]) -> int:
    """Which payload has the largest element of all, by its outer gradient."""
    return int(np.argmax([np.abs(codecs.decode(codec, each, anchor)).max(initial=0.0) for each in payloads]))


def _stays_finite(before: Any, after: Any) -> bool:
    """Whether every number of a state that was finite is finite: one that is not may hold a parameter fast for ever."""
    leaves = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return all(bool((np.isfinite(new) | ~np.isfinite(old)).all()) for old, new in leaves)


def _arrays(theta: NDArray[np.float32], state: Any, exact: NDArray[np.float32] | None) -> list[NDArray[Any]]:
    return [theta, *jax.tree.leaves(state), *([] if exact is None else [exact])]


def _frozen(array: NDArray[np.float32]) -> NDArray[np.float32]:
    array.setflags(write=False)
    return array
