"""Payloads give back what was put in; one that is not what it says has its defect named, and never reaches a merge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outer.numeric import codec
from outer.numeric.formats import NAMES
from outer.protocol.messages import Contribution, FragmentCounters

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
