"""The merge rules against an independent NumPy implementation, and the properties the paper wants of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outer.config import OuterConfig
from outer.numeric.codec import decode, encode
from outer.numeric.formats import NAMES
from outer.numeric.merge import Contributions, layout
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules
from outer.protocol.fragments import Fragment, Tensor
from tests.outer.numeric.merging import merge
from tests.property_settings import examples

Vector = NDArray[np.float64]

FRAGMENT = Fragment(
    0,
    (
        Tensor("embed", (5, 3), "float32"),
        Tensor("blocks/0/up", (3, 4), "float32"),
        Tensor("blocks/0/norm", (3,), "float32"),
        Tensor("blocks/1/up", (3, 4), "float32"),
    ),
)
RULES = rules(FRAGMENT.tensors, "rda")
BOUND = 2e-6  # lengths are summed in float32 within a block; with up to five gradients the largest error seen is 3e-7
NEAR = 1e-5  # of the threshold between RDA and Avg, relative: there rounding decides which rule holds
GRANULARITIES = ["tensor", "row", "fragment"]


# ------------------------------------------------------------------ the same, written plainly


def rda_of_vectors(vectors: Sequence[Vector], weights: Sequence[float]) -> tuple[Vector, float]:
    """(result, distance to the threshold between RDA and Avg, relative)."""
    radius, direction, mean = 0.0, np.zeros_like(vectors[0]), np.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        norm = math.sqrt(vector @ vector)
        radius += weight * norm
        mean = mean + weight * vector
        if norm > 0.0:
            direction = direction + weight * (vector / norm)
    length = math.sqrt(direction @ direction)
    threshold = 0.5 * math.sqrt(sum(weight**2 for weight in weights)) / sum(weights)
    margin = abs(length / threshold - 1.0)
    return (radius * direction / length if length >= threshold else mean), margin


def expected(
    gradients: Sequence[Vector],
    weights: Sequence[float],
    granularity: str,
    fragment: Fragment = FRAGMENT,
    chosen: Mapping[str, str] = RULES,
) -> tuple[Vector, float]:
    result, margin = np.full(fragment.size, np.nan), math.inf
    pieces: list[NDArray[np.intp]] = []  # the elements of each vector that RDA sees
    for tensor, place in fragment.slices():
        elements = np.arange(fragment.size)[place].reshape(tensor.shape)
        if chosen[tensor.name] == "avg":
            flat = elements.reshape(-1)
            result[flat] = sum(w * g[flat] for w, g in zip(weights, gradients, strict=True))
        elif granularity == "row":
            pieces += [elements[i].reshape(-1) for i in range(tensor.shape[0])]
        else:
            pieces.append(elements.reshape(-1))
    if granularity == "fragment":
        pieces = [np.concatenate(pieces)]
    for piece in pieces:
        result[piece], near = rda_of_vectors([gradient[piece] for gradient in gradients], weights)
        margin = min(margin, near)
    return result, margin


@st.composite
def contributions(draw: st.DrawFn) -> tuple[list[Vector], list[float]]:
    """2 to 5 contributors: Gaussian, of very different lengths, some zero, some opposed, some repeated."""
    count = draw(st.integers(2, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    raw = [draw(st.floats(0.01, 1.0)) for _ in range(count)]
    gradients: list[Vector] = []
    for _ in range(count):
        kind = draw(st.sampled_from(["fresh", "fresh", "zero", "opposed", "repeated", "partly_zero"]))
        gradient = random.normal(size=FRAGMENT.size) * 10.0 ** draw(st.integers(-6, 3))
        if kind == "zero":
            gradient = np.zeros(FRAGMENT.size)
        elif kind == "partly_zero":
            gradient[draw(st.integers(0, FRAGMENT.size)) :] = 0.0
        elif kind in ("opposed", "repeated") and gradients:
            gradient = gradients[0] * (-1.0 if kind == "opposed" else 1.0)
        gradients.append(gradient.astype(np.float32).astype(np.float64))  # as on the wire
    return gradients, [weight / sum(raw) for weight in raw]


def assert_close(actual: Vector, wanted: Vector, gradients: Sequence[Vector]) -> None:
    """Within BOUND of the longest contribution: the merge of cancelling ones may itself be next to nothing."""
    scale = max(float(np.abs(gradient).max()) for gradient in gradients)
    assert np.abs(actual - wanted).max() <= BOUND * scale


# ------------------------------------------------------------------ claims


@pytest.mark.parametrize("granularity", GRANULARITIES)
@examples(150)
@given(given=contributions())
def test_merging_equals_the_plain_implementation(granularity: str, given: Any) -> None:
    gradients, weights = given
    wanted, margin = expected(gradients, weights, granularity)
    assume(margin > NEAR)
    assert_close(merge(FRAGMENT, gradients, weights, RULES, granularity), wanted, gradients)


def orthogonal(count: int, shape: tuple[int, int]) -> list[Vector]:
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(math.prod(shape), count)))
    return [basis[:, i] for i in range(count)]


@pytest.mark.parametrize("angle", [0.99, 1.01])
def test_the_fallback_begins_at_half_the_length_that_orthogonal_directions_leave(angle: float) -> None:
    fragment = Fragment(0, (Tensor("w", (2, 1), "float32"),))
    # Two unit vectors at plus and minus `half` from the x axis: their mean has length cos(half).
    half = math.acos(0.5 / math.sqrt(2.0)) * angle
    vectors = [np.array([math.cos(half), math.sin(half)]), np.array([math.cos(half), -math.sin(half)])]
    merged = merge(fragment, vectors, [0.5, 0.5], {"w": "rda"}, "tensor")
    wanted = 1.0 if angle < 1.0 else math.cos(half)
    assert np.linalg.norm(merged) == pytest.approx(wanted, rel=BOUND)


def test_one_contributor_gets_its_own_gradient_back_to_the_bit() -> None:
    gradient = np.random.default_rng(2).normal(size=FRAGMENT.size).astype(np.float32).astype(np.float64)
    other = np.full(FRAGMENT.size, 7.0)
    for granularity in GRANULARITIES:
        alone = merge(FRAGMENT, [gradient], [1.0], RULES, granularity)
        assert alone.tobytes() == gradient.tobytes()
        assert alone is not gradient
        beside = merge(FRAGMENT, [other, gradient], [0.0, 1.0], RULES, granularity)
        assert beside.tobytes() == gradient.tobytes()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_element_is_in_one_vector(granularity: str) -> None:
    """Whatever the order of the shapes, and whichever rule they have."""
    shapes = [(4,), (2, 3), (), (3, 2), (0, 2), (5,), (2, 2)]
    for chosen in (["rda"] * 7, ["rda", "avg", "own:rule", "rda", "rda", "own:rule", "mean"]):
        tensors = tuple(Tensor(str(place), shape, "float32") for place, shape in enumerate(shapes))
        fragment = Fragment(0, tensors)
        laid = layout(fragment, dict(zip("0123456", chosen, strict=True)), granularity)
        seen = np.zeros(fragment.size, int)
        for pieces in laid.pieces.values():
            for start, stop in zip(pieces.starts, pieces.stops, strict=True):
                seen[start:stop] += 1
        for place in laid.mean:
            seen[place] += 1
        assert (seen == 1).all()


def large(count: int, codec: str, seed: int = 3) -> tuple[Fragment, Vector, list[NDArray[Any]]]:
    """A fragment of several pieces and odd sizes, the syncer's value, and payloads."""
    tensors = (Tensor("w", (701, 801), "float32"), Tensor("b", (77,), "float32"), Tensor("v", (5, 3, 7), "float32"))
    fragment, random = Fragment(0, tensors), np.random.default_rng(seed)
    base = random.normal(size=fragment.size).astype(np.float32)
    moved = [
        base + random.normal(size=fragment.size).astype(np.float32) * 10.0 ** random.integers(-3, 1)
        for _ in range(count)
    ]
    return fragment, base, [encode(codec, theta.astype(np.float32), base) for theta in moved]


FULL = pytest.mark.full
KINDS = [
    *product(["tensor", "row", "fragment"], [2, 3, 7, 8, 9, 21], ["fp32", "bf16"]),
    *product(["tensor", "row", "fragment"], [2, 7, 9], sorted({*NAMES} - {"fp32", "bf16"})),
]


@pytest.mark.parametrize(
    ("granularity", "count", "codec"),
    # Of every codec and of every granularity one in `make test`, all others in `make test-all`.
    [
        pytest.param(*kind, marks=() if (kind[0] == "tensor" and kind[1] == 7) or kind[1:] == (9, "fp32") else FULL)
        for kind in KINDS
    ],
)
def test_large_fragments_merge_as_the_plain_implementation_and_to_the_bit_in_any_number_of_threads(
    granularity: str, count: int, codec: str
) -> None:
    fragment, base, payloads = large(count, codec)
    chosen, weights = {"w": "rda", "b": "avg", "v": "rda"}, np.arange(1.0, count + 1) / sum(range(count + 1))
    laid = layout(fragment, chosen, granularity)
    merged = [Contributions(codec, base, payloads, weights, threads).gradient(laid) for threads in (1, 2, 3)]
    assert merged[0].tobytes() == merged[1].tobytes() == merged[2].tobytes()
    gradients = [decode(codec, payload, base) for payload in payloads]
    wanted, margin = expected(gradients, list(weights), granularity, fragment, chosen)
    assert margin > NEAR
    assert_close(merged[0], wanted, gradients)
    averaged = Contributions(codec, base, payloads, weights).gradient(
        layout(fragment, dict.fromkeys(chosen, "avg"), "tensor")
    )
    total = np.zeros(fragment.size)
    for weight, gradient in zip(weights, gradients, strict=True):
        total += weight * gradient
    assert averaged.tobytes() == total.tobytes(), "Avg rounds as the plain sum does"


@pytest.mark.parametrize("opposed", [False, True])
@pytest.mark.parametrize("rule", ["rda", "avg"])
@pytest.mark.parametrize("count", [8, 9, 21])
def test_a_step_is_the_same_whether_the_sum_of_directions_is_kept_or_made_anew(
    count: int, rule: str, opposed: bool
) -> None:
    """Of more than eight gradients RDA's is kept, but where directions cancel: there it is the mean's."""
    fragment, base, payloads = large(count, "fp32")
    place = next(place for tensor, place in fragment.slices() if tensor.name == "v")
    if opposed:  # their sum is next to nothing
        far = payloads[0][place] - base[place]
        for index, payload in enumerate(payloads):
            payload[place] = base[place] + (far if index % 2 else -far)
    chosen, weights = {"w": rule, "b": "avg", "v": rule}, [1.0 / count] * count
    outer = OuterConfig(lr=1.0, momentum=0.0)
    steps = [
        GlobalParameters([fragment], [base], outer, "fp32", chosen, threads).propose(0, payloads, weights)
        for threads in (1, 2, 3)
    ]
    assert len({step.digest for step in steps}) == len({step.norm for step in steps}) == 1
    gradient = Contributions("fp32", base, payloads, weights).gradient(layout(fragment, chosen, "tensor"))
    mean = sum(base[place] - payload[place].astype(np.float64) for payload in payloads) / count
    assert np.allclose(gradient[place], mean, rtol=1e-6) == (opposed or rule == "avg"), "or nothing was tested"
    assert steps[0].norm == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-6)
    wanted = base - gradient
    assert np.abs(steps[0].theta - wanted).max() <= 2e-7 * np.abs(np.stack([wanted, base, gradient])).max()
    np.testing.assert_allclose(steps[0].state[0].trace, gradient, rtol=2e-7, atol=1e-30)


@pytest.mark.parametrize("size", [1e-21, 1e-18, 1e-15, 1e19, 1e25])
def test_lengths_that_float32_does_not_hold(size: float) -> None:
    vectors = [np.float32(size) * each.astype(np.float32) for each in orthogonal(2, (8, 4))]
    fragment = Fragment(0, (Tensor("w", (8, 4), "float32"),))
    radial = merge(fragment, vectors, [0.5, 0.5], {"w": "rda"}, "tensor")
    assert np.linalg.norm(radial) == pytest.approx(size, rel=1e-5, abs=0.0)


def test_embeddings_vectors_and_scalars_are_averaged_unless_the_task_says_otherwise() -> None:
    tensors = (*FRAGMENT.tensors, Tensor("temperature", (), "float32"))
    assert [name for name, rule in rules(tensors, "rda").items() if rule != "avg"] == ["blocks/0/up", "blocks/1/up"]
    patterned = rules(tensors, "rda", {"blocks/0/*": "avg", "blocks/*": "rda", "embed": "rda"})
    assert [name for name, rule in patterned.items() if rule != "avg"] == ["embed", "blocks/1/up"]
