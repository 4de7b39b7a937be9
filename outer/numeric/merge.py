"""Merges the learners' outer gradients of one fragment (paper section 4).

A rule turns the gradients' lengths, vector by vector, into shares; the merged gradient is the sum of share times
gradient. So a merge reads the payloads twice, and holds none of them in another format, unless links have changed the
format of some: then all of them as float32 differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outer.numeric import codec as codecs
from outer.numeric import formats, kernel
from outer.numeric.compiling import read_only
from outer.numeric.rules import Floats, named
from outer.protocol.fragments import Fragment

Ints = NDArray[np.int64]

PIECE = 2**16  # elements that one thread computes at a time
THREAD_ELEMENTS = 2**17  # so many at least are worth a thread
CROSSED = 8  # so many gradients' inner products cost less than another pass over them
SHORT = 1e-16  # length of a sum below which, or above the inverse of which, float32 may not hold its elements
ALIKE = 1e-12  # two shares, relative
TINY = 1e-32  # mean square below which float32 loses digits of the squares


# ------------------------------------------------------------------ vectors


@dataclass(frozen=True)
class Pieces:
    """Ranges of a fragment's elements, each part of one vector."""

    starts: Ints
    stops: Ints
    vector: Ints  # of each piece, the number of its vector, rising
    shift: Ints  # of each piece, how many elements before it the outer optimizer does not step
    sizes: Ints  # of each vector

    def only(self, these: NDArray[np.bool_]) -> Pieces:
        """Some of the pieces, where only their ranges count."""
        starts, stops = self.starts[these], self.stops[these]
        return Pieces(starts, stops, self.vector[these], self.shift[these], stops - starts)


@dataclass(frozen=True)
class VectorLayout:
    """How the rules see a fragment: the vectors of each rule, and what is treated otherwise."""

    pieces: Mapping[str, Pieces]  # by rule
    mean: Sequence[slice]  # averaged, and not stepped


def layout(fragment: Fragment, rules: Mapping[str, str], granularity: str) -> VectorLayout:
    """`rules`: by tensor name, from `rules`. `granularity`: what every rule but Avg treats as one vector.

    "tensor"; "row" (one vector for each index of the first axis; a tensor with fewer than two axes is one vector);
    "fragment" (all tensors of a rule together).
    """
    vectors: dict[str, list[list[tuple[int, int, int]]]] = {}  # by rule, (start, stop, shift) of each part
    mean, shift = [], 0
    for tensor, place in fragment.slices():
        rule, whole = rules[tensor.name], (place.start, place.stop, shift)
        if rule == "mean":
            mean.append(place)
            shift += tensor.size
            continue
        of_rule = vectors.setdefault(rule, [])
        if rule != "avg" and granularity == "fragment":
            of_rule[:] = [[*(of_rule[0] if of_rule else []), whole]]
        elif rule == "avg" or granularity == "tensor" or len(tensor.shape) <= 1 or not tensor.size:
            of_rule.append([whole])
        else:
            width = tensor.size // tensor.shape[0]
            of_rule += [[(start, start + width, shift)] for start in range(place.start, place.stop, width)]
    return VectorLayout({rule: _pieces(found) for rule, found in vectors.items() if found}, mean)


def _pieces(vectors: Sequence[Sequence[tuple[int, int, int]]]) -> Pieces:
    rows = [
        (begin, min(begin + PIECE, stop), number, shift)
        for number, parts in enumerate(vectors)
        for start, stop, shift in parts
        for begin in range(start, stop, PIECE)
    ]
    table = np.array(rows, np.int64).reshape(-1, 4).T
    sizes = np.array([sum(stop - start for start, stop, _ in parts) for parts in vectors], np.int64)
    starts, stops, vector, shift = map(np.ascontiguousarray, table)
    return Pieces(starts, stops, vector, shift, sizes)


# ------------------------------------------------------------------ merging


class Contributions:
    """M payloads of one fragment with weights above 0, for one merge. Payloads have passed `Codec.inspect`."""

    def __init__(
        self,
        codec: str,
        anchor: NDArray[np.float32],
        payloads: Sequence[NDArray[Any]],
        weights: Sequence[float],
        threads: int = 1,
    ) -> None:
        """`anchor`: what the learners grew from, float32[n]. `weights`: numbers >= 0 with sum 1; a payload of
        weight 0 does not count.

        The result has the same bits for any number of threads.
        """
        kept = [index for index, weight in enumerate(weights) if weight > 0.0]
        assert kept, "a merge needs a contributor"
        self.codec, self.anchor = codec, read_only(anchor)
        self.payloads = [payloads[index] for index in kept]
        form = formats.named(codec)
        like = form.dtype, (form.elements(len(anchor)),)
        assert all((each.dtype, each.shape) == like and each.flags.c_contiguous for each in self.payloads)
        self.weights = np.array([weights[index] for index in kept], np.float64)
        self.addresses, self._kind = kernel.in_fours(self.payloads), form.kind
        self._threads = threads
        self.kept = np.empty(0, np.float32)  # float32[n]: where sums may be kept, if the caller gives room for them

    def shares(self, rule: str, pieces: Pieces) -> tuple[Floats, Floats]:
        """Return the factor of each gradient in the merged one, as `by_piece`. One alone goes in as it is.

        And by which factor `kept` goes into it instead, float64[pieces]; NaN where something else is kept, or nothing.
        """
        if len(self.payloads) == 1:
            return self.by_piece(np.ones((1, 1)), pieces), np.full(len(pieces.starts), np.nan)
        lengths = _OfPieces(self, pieces)
        shares = np.broadcast_to(named(rule)(lengths), (len(pieces.sizes), len(self.payloads)))
        return self.by_piece(shares, pieces), lengths.kept_times(shares)[pieces.vector]

    def by_piece(self, shares: Floats, pieces: Pieces) -> Floats:
        """float64[pieces, M rounded up to fours] of each vector's shares [V, M], or of one row for all."""
        found = np.zeros((len(pieces.starts), len(self.addresses)))
        rows = np.broadcast_to(shares, (len(pieces.sizes), len(self.payloads)))
        found[:, : len(self.payloads)] = rows[pieces.vector]
        return found

    def run(
        self, work: Callable[..., None], pieces: Pieces, *by_piece: NDArray[Any], between: Sequence[Any] = ()
    ) -> None:
        """Call work(anchor, addresses, kind, starts, stops, *by_piece, *between) for the pieces, in threads."""
        parts = np.array_split(np.arange(len(pieces.starts)), self._threads_for(pieces))

        def one(part: NDArray[np.intp]) -> None:
            here = slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0)
            table = [column[here] for column in (pieces.starts, pieces.stops, *by_piece)]
            work(self.anchor, self.addresses, self._kind, *table, *between)

        if len(parts) == 1:
            one(parts[0])
            return
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(one, parts))

    def _threads_for(self, pieces: Pieces) -> int:
        return max(1, min(self._threads, int(pieces.sizes.sum()) // THREAD_ELEMENTS))

    def gradient(self, laid: VectorLayout) -> Floats:
        """The merged outer gradient, float64[n]; 0 for mean tensors."""
        merged = np.zeros(len(self.anchor), np.float64)
        for rule, pieces in laid.pieces.items():
            self.run(kernel.merged_gradient, pieces, self.shares(rule, pieces)[0], between=(merged,))
        return merged


class _OfPieces:
    """Lengths of vectors that lie in pieces."""

    def __init__(self, contributions: Contributions, pieces: Pieces) -> None:
        self.weights = contributions.weights
        self._given, self._pieces, self._count = contributions, pieces, len(contributions.payloads)
        self._crossed = self._count <= CROSSED
        self._kept: tuple[Floats, Floats] | None = None  # shares and norms of the sums that are kept

    @cached_property
    def _products(self) -> Floats:
        """Inner products, float64[V, M, M]; beyond CROSSED gradients the squared norms alone, float64[V, M]."""
        width, count = len(self._given.addresses), self._count
        work = kernel.inner_products if self._crossed else kernel.squares
        found = np.zeros((len(self._pieces.starts), *[width] * (2 if self._crossed else 1)))
        self._given.run(work, self._pieces, found)
        products = self._by_vector(found)[:, :count]
        if self._crossed:
            products = np.tril(products[:, :, :count])
            products += np.tril(products, -1).transpose(0, 2, 1)
        squares = np.einsum("vmm->vm", products) if self._crossed else products
        lost = ~np.isfinite(squares) | ((squares > 0.0) & (squares < TINY * self._pieces.sizes[:, None]))
        for vector in np.flatnonzero(lost.any(axis=1)):
            plain = self._plainly(int(vector))
            products[vector] = plain if self._crossed else np.diag(plain)
        return products

    def _plainly(self, vector: int) -> Floats:
        """The inner products of one vector in float64, for numbers whose squares float32 does not hold."""
        products = np.zeros((self._count, self._count))
        for piece in np.flatnonzero(self._pieces.vector == vector):
            here = slice(int(self._pieces.starts[piece]), int(self._pieces.stops[piece]))
            given = self._given
            rows = np.stack([codecs.decode(given.codec, payload, given.anchor, here) for payload in given.payloads])
            products += rows @ rows.T
        return products

    def _by_vector(self, of_pieces: Floats) -> Floats:
        total = np.zeros((len(self._pieces.sizes), *of_pieces.shape[1:]))
        np.add.at(total, self._pieces.vector, of_pieces)
        return total

    @property
    def norms(self) -> Floats:
        products = self._products
        norms: Floats = np.sqrt(np.einsum("vmm->vm", products) if self._crossed else products)
        return norms

    def of_sums(self, shares: Floats) -> Floats:
        if self._crossed:
            squares = np.einsum("vi,vij,vj->v", shares, self._products, shares)
        else:
            found = np.zeros(len(self._pieces.starts))
            by_piece = self._given.by_piece(shares, self._pieces)
            self._given.run(kernel.sums, self._pieces, by_piece, found, between=(self._given.kept,))
            squares = self._by_vector(found)
        norms: Floats = np.sqrt(np.maximum(squares, 0.0))
        if len(self._given.kept) and not self._crossed:
            self._kept = np.array(shares), norms
        return norms

    def kept_times(self, shares: Floats) -> Floats:
        """float64[V]: how many times the sums that `of_sums` kept are the sums of these shares; NaN where they are not.

        A sum that is kept in float32 is as exact as norms are, unless it is so short that float32 holds less of it.
        """
        if self._kept is None:
            return np.full(len(shares), np.nan)
        before, norms = self._kept
        largest = np.abs(before).argmax(axis=1)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):  # of sums of nothing
            times = np.take_along_axis(shares, largest, 1) / np.take_along_axis(before, largest, 1)
            alike = (np.abs(shares - times * before) <= ALIKE * np.abs(shares)).all(axis=1)
        held = (norms > SHORT) & (norms < 1.0 / SHORT)
        return np.where(alike & held, times[:, 0], np.nan)
