"""A payload that is not what it says has its defect named, and never reaches a merge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outer.numeric import codec as codecs
from outer.numeric.codec import examine
from outer.numeric.formats import NAMES
from outer.protocol.messages import Contribution, FragmentCounters

SIZE = 6


def contribution(payload: Any, digest: str | None = None) -> Contribution:
    counters = FragmentCounters(0, 0, 1, 8)
    named = codecs.digest(payload) if digest is None else digest
    return Contribution("a", 1, 1, 4, 0, 1, 1, 8, counters, payload, named)


def sound(codec: str) -> Any:
    theta = np.arange(SIZE, dtype=np.float32)
    return codecs.encode(codec, theta, np.zeros(SIZE, np.float32))


@pytest.mark.parametrize("codec", NAMES)
def test_a_sound_payload_passes_untouched(codec: str) -> None:
    given = contribution(sound(codec))
    assert examine(given, codec, SIZE) is given


@pytest.mark.parametrize("codec", NAMES)
def test_one_flipped_bit_is_a_bad_digest(codec: str) -> None:
    payload = sound(codec)
    given = contribution(payload)
    damaged = payload.copy()
    damaged.view(np.uint8)[3] ^= 1
    assert examine(replace(given, payload=damaged), codec, SIZE).defect == "bad_digest"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", NAMES)
def test_what_is_not_finite_is_refused_though_its_checksum_is_right(codec: str, value: float) -> None:
    theta = np.zeros(SIZE, np.float32)
    theta[2] = value
    payload = codecs.encode(codec, theta, np.zeros(SIZE, np.float32))
    assert examine(contribution(payload), codec, SIZE).defect == "non_finite"


@pytest.mark.parametrize(
    "payload",
    [
        np.zeros(SIZE + 1, np.float32),
        np.zeros(SIZE, np.float64),
        np.zeros((2, 3), np.float32),
        np.zeros(0, np.float32),
        np.zeros(SIZE, np.uint16),
    ],
)
def test_another_shape_or_dtype_is_refused(payload: Any) -> None:
    assert examine(contribution(payload), "fp32", SIZE).defect == "wrong_shape"


def test_what_is_no_array_is_a_defect_and_not_an_error() -> None:
    for payload in (None, "text", [1.0] * SIZE):
        assert examine(contribution(payload, digest=""), "fp32", SIZE).defect == "wrong_shape"


def test_a_payload_with_a_defect_is_dropped_and_the_counters_stay() -> None:
    found = examine(contribution(np.zeros(1, np.float32)), "fp32", SIZE)
    assert found.payload is None
    assert (found.learner, found.step, found.counters.tokens) == ("a", 1, 8)
