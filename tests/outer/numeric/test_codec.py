"""Payloads give back what was put in, and say what is wrong with them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from outer.numeric import codec
from outer.numeric.formats import NAMES


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


def test_bf16_is_the_outer_gradient_in_uint16_within_half_a_unit_of_bfloat16() -> None:
    base = fragment(0)
    theta = base + np.float32(0.01) * fragment(1)
    payload = codec.encode("bf16", theta, base)
    assert payload.dtype == np.uint16
    assert payload.nbytes == base.nbytes // 2
    difference = (base - theta).astype(np.float64)
    decoded = codec.decode("bf16", payload, base)
    assert (np.abs(decoded - difference) <= np.abs(difference) * 2.0**-8).all()
    assert (decoded == (base - theta).astype(ml_dtypes.bfloat16).astype(np.float64)).all()


def test_bf16_numbers_survive_a_second_round_trip_unchanged() -> None:
    zero = np.zeros(500, np.float32)
    values = -fragment(2, 500).astype(ml_dtypes.bfloat16).astype(np.float32)
    payload = codec.encode("bf16", values, zero)
    assert (codec.decode("bf16", payload, zero) == -values).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_payload_passes_inspection(name: str) -> None:
    assert codec.inspect(name, codec.encode(name, fragment(0), fragment(1)), 1000) == ""


def test_a_difference_too_large_for_bf16_is_not_finite() -> None:
    largest = np.full(4, np.finfo(np.float32).max)
    assert codec.inspect("bf16", codec.encode("bf16", -largest, largest), 4) == "non_finite"


def test_the_digest_is_xxh3_of_the_bytes_and_changes_with_any_bit() -> None:
    payload = fragment(0)
    assert codec.digest(payload) == xxhash.xxh3_128_hexdigest(payload.tobytes())
    flipped = payload.copy()
    flipped.view(np.uint32)[999] ^= 1
    assert codec.digest(flipped) != codec.digest(payload)
