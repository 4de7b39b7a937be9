"""Number formats: within their bounds, from a seed alone; a payload that is not what it says has its defect named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outer.numeric import codec
from outer.numeric.formats import NAMES, named
from outer.protocol.messages import Contribution, FragmentCounters
from tests.property_settings import examples

AT_RANDOM = ["int8", "fp4"]
SIZES = [1, 2, 63, 64, 65, 127, 128, 129, 255, 257, 4095, 4096, 4097, 9001]


def numbers(seed: int, size: int) -> NDArray[np.float32]:
    """Of many magnitudes, some zero."""
    random = np.random.default_rng(seed)
    drawn = random.normal(size=size) * 10.0 ** random.integers(-6, 2, -(-size // 100)).repeat(100)[:size]
    return np.where(random.random(size) < 0.1, 0.0, drawn).astype(np.float32)


def bound(name: str, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """How far from each of finite numbers float32[n] what is decoded may be.

    bf16: half a unit. int8: one step of the scale; fp4: the number itself, and at least 1/64 of the group's largest.
    """
    size = np.abs(numbers)
    if name.startswith("fp32"):
        return np.zeros_like(numbers)
    if name == "bf16":
        return size * np.float32(2.0**-8) + np.float32(2.0**-134)  # subnormal numbers
    padded = np.zeros(-(-len(size) // 128) * 128, np.float32)
    padded[: len(size)] = size
    largest = np.repeat(padded.reshape(-1, 128).max(axis=1), 128)[: len(size)]
    step = np.maximum(size, largest / 64) if name == "fp4" else largest / 127
    return (step * np.float32(1.0 + 2.0**-16) + np.float32(2.0**-118)).astype(np.float32)  # smaller ones are zero


@pytest.mark.parametrize("name", NAMES)
@examples(60)
@given(seed=st.integers(0, 2**64 - 1), size=st.sampled_from(SIZES), scale=st.sampled_from([1.0, 1e-44, 1e-38, 1e30]))
def test_what_is_decoded_is_within_the_bound(name: str, seed: int, size: int, scale: float) -> None:
    codec, given = named(name), numbers(seed % 1000, size) * np.float32(scale)
    payload = codec.encode(given, seed)
    assert payload.dtype == codec.dtype and payload.nbytes == codec.bytes(size)
    assert codec.inspect(payload, size) == ""
    decoded = codec.decode(payload, size)
    assert decoded.dtype == np.float32 and decoded.shape == (size,)
    assert (np.abs(decoded.astype(np.float64) - given) <= bound(name, given)).all()
    assert codec.encode(given, seed).tobytes() == payload.tobytes(), "the same seed, the same bits"
    assert not codec.decode(codec.encode(np.zeros(size, np.float32), seed), size).any(), "nothing stays nothing"


@pytest.mark.parametrize("name", NAMES)
@examples(60)
@given(size=st.sampled_from(SIZES), place=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_part_is_decoded_as_in_the_whole(name: str, size: int, place: tuple[float, float]) -> None:
    codec = named(name)
    payload = codec.encode(numbers(size, size), 5)
    start, stop = sorted(int(each * size) for each in place)
    assert (
        codec.decode(payload, size, slice(start, stop)).tobytes() == codec.decode(payload, size)[start:stop].tobytes()
    )


@pytest.mark.parametrize("name", AT_RANDOM)
def test_rounding_has_the_right_mean_and_depends_on_the_seed(name: str) -> None:
    codec, given = named(name), numbers(1, 4096)
    total = np.zeros(4096)
    for seed in range(400):
        total += codec.decode(codec.encode(given, seed), 4096)
    off = (total / 400 - given) / bound(name, given)  # errors within a bound have a deviation of at most that
    assert abs(off.mean()) < 5 / np.sqrt(400 * 4096) and np.abs(off).max() < 6 / np.sqrt(400)
    assert codec.encode(given, 0).tobytes() != codec.encode(given, 2**40).tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", [0, 417, 999])
def test_a_single_number_that_is_not_finite_is_found(name: str, bad: float, at: int) -> None:
    given = np.full(1000, 0.5, np.float32)
    given[at] = bad
    assert named(name).inspect(named(name).encode(given, 3), 1000) == "non_finite"


@pytest.mark.parametrize("name", NAMES)
def test_anything_else_than_the_agreed_array_has_the_wrong_shape(name: str) -> None:
    codec, size = named(name), 300
    good = codec.encode(numbers(0, size), 0)
    for payload in (
        good[:-1],
        np.append(good, good[:1]),
        good.reshape(1, -1),
        good.astype(np.float64),
        np.repeat(good, 2)[::2],
        good[:0],
        None,
        b"x",
    ):
        assert codec.inspect(payload, size) == "wrong_shape"


@pytest.mark.parametrize("name", NAMES)
@examples(100)
@given(bits=st.binary(min_size=1, max_size=64), size=st.sampled_from(SIZES))
def test_whatever_passes_inspection_is_finite(name: str, bits: bytes, size: int) -> None:
    codec = named(name)
    raw = (bits * (codec.bytes(size) // len(bits) + 1))[: codec.bytes(size)]
    payload = np.frombuffer(raw, codec.dtype)
    if not codec.inspect(payload, size):
        assert np.isfinite(codec.decode(payload, size)).all()


# ------------------------------------------------------------------ payloads, and their inspection


SIZE = 6


def fragment(seed: int, size: int = 1000) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def test_fp32_is_the_learners_parameters_and_decodes_to_the_exact_difference() -> None:
    base, theta = fragment(0), fragment(1)
    payload = codec.encode("fp32", theta, base)
    assert payload.dtype == np.float32
    assert payload.tobytes() == theta.tobytes()
    gradient = codec.decode("fp32", payload, base)
    assert gradient.dtype == np.float64
    assert (base.astype(np.float64) - gradient == theta).all()


# ------------------------------------------------------------------ inspection


def contribution(payload: Any, digest: str | None = None) -> Contribution:
    counters = FragmentCounters(0, 0, 1, 8)
    named = codec.digest(payload) if digest is None else digest
    return Contribution("a", 1, 1, 4, 0, 1, 1, 8, counters, payload, named)


def sound(name: str) -> Any:
    theta = np.arange(SIZE, dtype=np.float32)
    return codec.encode(name, theta, np.zeros(SIZE, np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_payload_passes_untouched(name: str) -> None:
    given = contribution(sound(name))
    assert codec.examine(given, name, SIZE) is given


@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_bit_is_a_bad_digest_and_the_payload_is_dropped(name: str) -> None:
    payload = sound(name)
    given = contribution(payload)
    damaged = payload.copy()
    damaged.view(np.uint8)[3] ^= 1
    found = codec.examine(replace(given, payload=damaged), name, SIZE)
    assert (found.defect, found.payload, found.counters) == ("bad_digest", None, given.counters)


def test_what_is_no_array_is_a_defect_and_not_an_error() -> None:
    for payload in (None, "text", [1.0] * SIZE):
        assert codec.examine(contribution(payload, digest=""), "fp32", SIZE).defect == "wrong_shape"
