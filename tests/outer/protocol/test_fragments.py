"""Dealing tensors into fragments: complete, balanced, and the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.fragments import (
    FRAGMENTATIONS,
    Fragment,
    Tensor,
    balanced,
    by_layer,
    default_count,
    in_pieces,
    most_fragments,
    strided,
)


def tensors(sizes: list[int]) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"t{index}", (size,), "float32") for index, size in enumerate(sizes))


@pytest.mark.parametrize("fragmentation", FRAGMENTATIONS)
@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=40),
    layers=st.lists(st.integers(0, 5), min_size=40, max_size=40),
    data=st.data(),
)
def test_every_tensor_is_in_exactly_one_fragment_and_no_fragment_is_empty(
    fragmentation: str, sizes: list[int], layers: list[int], data: st.DataObject
) -> None:
    names = [f"blocks/{layer}/t{index}" if layer else f"t{index}" for index, layer in enumerate(layers)]
    given_ = [Tensor(name, (size,), "float32") for name, size in zip(names, sizes, strict=False)]
    count = data.draw(st.integers(1, most_fragments(given_, fragmentation)))
    dealt = FRAGMENTATIONS[fragmentation](given_, count)
    assert sorted(tensor.name for fragment in dealt for tensor in fragment.tensors) == sorted(names[: len(sizes)])
    assert [fragment.index for fragment in dealt] == list(range(count))
    if 0 not in sizes:
        assert all(fragment.tensors for fragment in dealt)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=20), order=st.randoms(use_true_random=False))
def test_the_deal_does_not_depend_on_the_order_of_the_tensors(sizes: list[int], order: object) -> None:
    shuffled = list(tensors(sizes))
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    count = min(4, len(sizes))
    assert balanced(shuffled, count) == balanced(tensors(sizes), count)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_slices_cover_the_flat_array_without_gap_or_overlap(sizes: list[int]) -> None:
    for fragment in balanced(tensors(sizes), min(3, len(sizes))):
        places = [(place.start, place.stop, tensor.size) for tensor, place in fragment.slices()]
        assert all(stop - start == size for start, stop, size in places)
        edges = [0, *(stop for _, stop, _ in places)]
        assert [start for start, _, _ in places] == edges[:-1]
        assert edges[-1] == fragment.size


def named(*names: str) -> list[Tensor]:
    return [Tensor(name, (1,), "float32") for name in names]


def names(fragments: Sequence[Fragment]) -> list[list[str]]:
    return [[tensor.name for tensor in fragment.tensors] for fragment in fragments]


def test_tensors_are_dealt_by_turns() -> None:
    assert names(strided(named("a", "b", "c", "d", "e"), 2)) == [["a", "c", "e"], ["b", "d"]]


def test_layers_are_dealt_by_turns_and_what_is_outside_them_goes_first() -> None:
    given_ = named("blocks/0/q", "blocks/0/k/1", "blocks/10/q", "blocks/2/q", "embed", "head1")
    assert names(by_layer(given_, 3)) == [
        ["embed", "head1"],
        ["blocks/0/q", "blocks/0/k/1", "blocks/2/q"],
        ["blocks/10/q"],
    ]
    assert names(by_layer(given_, 1)) == [[tensor.name for tensor in given_]]
    assert names(by_layer(named("Dense_0/bias", "Dense_1/bias"), 2)) == [["Dense_0/bias"], ["Dense_1/bias"]]
    with pytest.raises(ValueError, match="at most 4"):
        by_layer(given_, 5)


def test_a_layer_in_pieces_stays_together() -> None:
    large, small = Tensor("blocks/0/up", (8, 4), "float32"), Tensor("blocks/1/up", (1,), "float32")
    pieces = in_pieces([large, small], 2)
    assert len(pieces) > 2
    assert names(by_layer(pieces, 2)) == [[piece.name for piece in pieces[:-1]], ["blocks/1/up"]]


@pytest.mark.parametrize(
    ("tensor_count", "round_steps", "wanted"), [(20, 24, 20), (100, 24, 24), (100, 8, 8), (100, 100, 24)]
)
def test_the_default_number_of_fragments(tensor_count: int, round_steps: int, wanted: int) -> None:
    assert default_count(tensor_count, round_steps) == wanted


SHAPES = st.lists(st.integers(1, 12), min_size=0, max_size=3).map(tuple)


@given(shapes=st.lists(SHAPES, min_size=1, max_size=12), count=st.integers(1, 8))
def test_pieces_are_all_of_a_large_tensor_without_gap_or_overlap(shapes: list[tuple[int, ...]], count: int) -> None:
    whole = [Tensor(f"t{index}", shape, "float32", "mean") for index, shape in enumerate(shapes)]
    mean = sum(tensor.size for tensor in whole) / count
    pieces = in_pieces(whole, count)
    assert len({piece.name for piece in pieces}) == len(pieces)
    for tensor in whole:
        held = np.zeros(tensor.shape, np.int64)
        mine = [piece for piece in pieces if piece.path == tensor.name]
        for piece in mine:
            assert held[piece.index].shape == piece.shape and piece.kind == "mean"
            held[piece.index] += 1
        assert (held == 1).all()
        if 3 * tensor.size <= 4 * mean:
            assert mine == [tensor], "it is not large"
        elif len(mine) < max(tensor.shape, default=1):
            place = tensor.size // max(tensor.shape[mine[0].axis], 1)
            assert max(piece.size for piece in mine) <= mean / 2 + place


def test_a_tensor_with_one_place_on_each_axis_is_not_cut() -> None:
    tensors_ = [Tensor("one", (1, 1), "float32"), Tensor("scalar", (), "float32")]
    assert in_pieces(tensors_, 9) == tuple(tensors_)
