"""The paper's section 5: how tensors become fragments of about one size."""

from __future__ import annotations

import itertools
from random import Random

from outer.protocol.fragments import Tensor, balanced


def tensors(*sizes: int) -> list[Tensor]:
    return [Tensor(f"t{index}", (size,), "float32") for index, size in enumerate(sizes)]


def sizes_of(count: int, *sizes: int) -> list[int]:
    return [fragment.size for fragment in balanced(tensors(*sizes), count)]


def test_the_largest_tensor_left_goes_into_the_smallest_fragment() -> None:
    """Section 5, balanced."""
    dealt = balanced(tensors(3, 9, 5, 8, 1), 2)
    assert [[tensor.size for tensor in fragment.tensors] for fragment in dealt] == [[9, 3, 1], [8, 5]]


def test_the_largest_fragment_is_at_most_four_thirds_of_the_best_possible() -> None:
    """Section 5, balanced: a bound known for this way of dealing."""
    chance, tightest = Random(0), 0.0
    for _ in range(60):
        sizes = [chance.randint(1, 20) for _ in range(7)]
        best = min(
            max(sum(size for size, bin in zip(sizes, bins, strict=True) if bin == p) for p in range(3))
            for bins in itertools.product(range(3), repeat=7)
        )
        tightest = max(tightest, max(sizes_of(3, *sizes)) / best)
    assert 1.0 < tightest <= 4 / 3


def test_a_tensor_larger_than_its_share_is_alone_in_a_larger_fragment() -> None:
    """Section 5, balanced: the embedding."""
    dealt = balanced([Tensor("embed", (1000,), "float32"), *tensors(*[50] * 20)], 5)
    [alone] = [fragment for fragment in dealt if fragment.size == 1000]
    assert [tensor.name for tensor in alone.tensors] == ["embed"]
    assert sorted(fragment.size for fragment in dealt) == [250, 250, 250, 250, 1000]
