"""Tensors, fragments, and the rule that deals a model's tensors into P fragments (paper section 5).

A large tensor may be cut into pieces first. A piece is a tensor of its own to everything that sees fragments; only
where fragments meet the leaves of a model is it a part of one (docs/decisions/0021-row-pieces.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

KINDS = ("merged", "mean", "local", "frozen")  # learners/training/kinds.py says what each is
LARGE = 4 / 3  # a tensor beyond so many mean fragments is cut into pieces, where that is allowed
PIECE = 1 / 2  # mean fragments, at most, that a piece has
LAYER = re.compile(r".*?\d(?=/)")  # the start of a path, up to the first part that ends in a digit and is not the last


@dataclass(frozen=True)
class Tensor:
    """One leaf of the parameter tree, or a piece of one: some of the places of one axis, of a matrix some of its rows.

    On the wire every tensor is float32, whatever its dtype in the model.
    """

    name: str  # path in the tree, e.g. "blocks/0/attention/query"; of a piece with its places, e.g. "embed[0:4096]"
    shape: tuple[int, ...]
    dtype: str  # in the model, e.g. "float32"
    kind: str = "merged"  # of KINDS
    leaf: str = ""  # of a piece: the path of the leaf
    axis: int = 0  # of a piece: the axis that is cut
    start: int = 0  # of a piece: its first place on that axis

    @property
    def path(self) -> str:
        """The path of its leaf, which task and recipe name."""
        return self.leaf or self.name

    @property
    def layer(self) -> str | None:
        """The layer that it is in, such as "blocks/0"; None for an embedding and the like."""
        found = LAYER.match(self.path)
        return found and found.group()

    @property
    def cut(self) -> tuple[int, int, int] | None:
        """A piece's axis of the leaf, and its places [start, stop) on it. None for a whole leaf."""
        return (self.axis, self.start, self.start + self.shape[self.axis]) if self.leaf else None

    @property
    def index(self) -> tuple[Any, ...]:
        """Which elements of the leaf it has, as NumPy's indices."""
        if self.cut is None:
            return (...,)
        axis, start, stop = self.cut
        return (*[slice(None)] * axis, slice(start, stop))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def described(self) -> str:
        """Its dtype and shape, and its kind unless that is merged, such as "float32[3, 4] mean"."""
        return f"{self.dtype}{list(self.shape)}" + (f" {self.kind}" if self.kind != "merged" else "")

    @property
    def sent(self) -> bool:
        """Whether it is in a fragment. Other leaves never leave their learner, but for its joiners and checkpoints."""
        return self.kind in ("merged", "mean")


@dataclass(frozen=True)
class Fragment:
    """Tensors that are exchanged together, flattened and concatenated into a 1-D array of `size` elements."""

    index: int
    tensors: tuple[Tensor, ...]

    @cached_property
    def size(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def stepped(self) -> int:
        """How many of its elements the outer optimizer steps: all but those of mean tensors."""
        return sum(tensor.size for tensor in self.tensors if tensor.kind == "merged")

    def slices(self) -> Iterator[tuple[Tensor, slice]]:
        """Each tensor with its slice of the flat array."""
        start = 0
        for tensor in self.tensors:
            yield tensor, slice(start, start + tensor.size)
            start += tensor.size


def default_count(tensors: int, round_steps: int) -> int:
    """The default P: 24, or fewer when the round has fewer steps or the model fewer tensors."""
    return min(24, round_steps, tensors)


def in_pieces(tensors: Sequence[Tensor], count: int) -> tuple[Tensor, ...]:
    """The tensors, each of more than 4/3 of the mean of `count` fragments cut into pieces of at most half of it.

    Cut is the first axis that is long enough, else the longest one, into pieces that differ by one place at most.
    """
    mean = sum(tensor.size for tensor in tensors) / count
    found: list[Tensor] = []
    for tensor in tensors:
        found += _cut(tensor, math.ceil(tensor.size / (PIECE * mean))) if tensor.size > LARGE * mean else [tensor]
    return tuple(found)


def _cut(tensor: Tensor, parts: int) -> list[Tensor]:
    longest = max(tensor.shape, default=1)
    parts = min(parts, longest)
    if parts == 1:
        return [tensor]
    axis = next(axis for axis, places in enumerate(tensor.shape) if places >= parts)
    edges = [tensor.shape[axis] * part // parts for part in range(parts + 1)]
    return [_piece(tensor, axis, start, stop) for start, stop in pairwise(edges)]


def _piece(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    shape = (*tensor.shape[:axis], stop - start, *tensor.shape[axis + 1 :])
    name = f"{tensor.name}[{':,' * axis}{start}:{stop}]"
    return replace(tensor, name=name, shape=shape, leaf=tensor.name, axis=axis, start=start)


def balanced(tensors: Sequence[Tensor], count: int) -> tuple[Fragment, ...]:
    """Deal tensors into `count` fragments: largest tensor first, each into the smallest fragment so far.

    Ties go to the earlier name and fragment. The largest fragment is at most 4/3 of the optimum
    (longest-processing-time rule). Raises ValueError when there are fewer tensors than fragments.
    """
    _check(count, len(tensors), "tensors")
    bins: list[list[Tensor]] = [[] for _ in range(count)]
    for tensor in sorted(tensors, key=lambda item: (-item.size, item.name)):
        min(bins, key=lambda content: sum(item.size for item in content)).append(tensor)
    return _fragments(bins)


def strided(tensors: Sequence[Tensor], count: int) -> tuple[Fragment, ...]:
    """Deal tensors into `count` fragments by turns, in the order given: sizes differ as those of the tensors do.

    Raises ValueError when there are fewer tensors than fragments.
    """
    _check(count, len(tensors), "tensors")
    return _fragments([tensors[place::count] for place in range(count)])


def by_layer(tensors: Sequence[Tensor], count: int) -> tuple[Fragment, ...]:
    """Deal whole layers by turns into all of `count` fragments but the first, which has what is in no layer.

    Raises ValueError when there are fewer layers than fragments for them.
    """
    layers = _layers(tensors)
    _check(count, len(layers), "layers, counting what is outside them as one")
    if count == 1:
        return _fragments([tensors])
    outside = [layers.pop(None)] if None in layers else []
    stride = count - len(outside)
    dealt = [list(layers.values())[place::stride] for place in range(stride)]
    return _fragments([*outside, *([tensor for layer in each for tensor in layer] for each in dealt)])


def most_fragments(tensors: Sequence[Tensor], fragmentation: str) -> int:
    """The largest P that a key of FRAGMENTATIONS allows."""
    return len(_layers(tensors)) if fragmentation == "layer" else len(tensors)


def _layers(tensors: Sequence[Tensor]) -> dict[str | None, list[Tensor]]:
    """The tensors by layer, in the order given; None: those outside."""
    layers: dict[str | None, list[Tensor]] = {}
    for tensor in tensors:
        layers.setdefault(tensor.layer, []).append(tensor)
    return layers


def _check(count: int, most: int, units: str) -> None:
    if not 1 <= count <= most:
        raise ValueError(f"{count} fragments, but the model has {most} {units}: at most {most}")


def _fragments(bins: Sequence[Sequence[Tensor]]) -> tuple[Fragment, ...]:
    return tuple(Fragment(index, tuple(content)) for index, content in enumerate(bins))


FRAGMENTATIONS = {"balanced": balanced, "tensor": strided, "layer": by_layer}
