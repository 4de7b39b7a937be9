"""Tensors, fragments, and the rule that deals a model's tensors into P fragments (paper section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

KINDS = ("merged", "mean", "local", "frozen")  # learners/training/kinds.py says what each is


@dataclass(frozen=True)
class Tensor:
    """One leaf of the parameter tree. On the wire every tensor is float32, whatever its dtype in the model."""

    name: str  # path in the tree, e.g. "blocks/0/attention/query"
    shape: tuple[int, ...]
    dtype: str  # in the model, e.g. "float32"
    kind: str = "merged"  # of KINDS

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

    @property
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


def balanced(tensors: Sequence[Tensor], count: int) -> tuple[Fragment, ...]:
    """Deal tensors into `count` fragments: largest tensor first, each into the smallest fragment so far.

    Ties go to the earlier name and fragment. The largest fragment is at most 4/3 of the optimum
    (longest-processing-time rule). Raises ValueError when there are fewer tensors than fragments.
    """
    if not 1 <= count <= len(tensors):
        raise ValueError(f"{count} fragments, but the model has {len(tensors)} tensors: at most {len(tensors)}")
    bins: list[list[Tensor]] = [[] for _ in range(count)]
    for tensor in sorted(tensors, key=lambda item: (-item.size, item.name)):
        min(bins, key=lambda content: sum(item.size for item in content)).append(tensor)
    return tuple(Fragment(index, tuple(content)) for index, content in enumerate(bins))
