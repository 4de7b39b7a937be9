"""Values that come from anywhere in memory and go to the devices."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from learners.training.devices.placement import ALIGNMENT, _aligned, own


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("offset", range(0, ALIGNMENT, 4))
def test_values_are_read_in_place_from_an_aligned_address_and_become_their_own(dtype: Any, offset: int) -> None:
    room = np.arange(3 * ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT + offset
    values = room[start : start + 24].view(dtype).reshape(2, -1)
    aligned = _aligned(values, values.dtype)
    assert aligned.ctypes.data % ALIGNMENT == 0 and aligned.tobytes() == values.tobytes()
    before, placed = values.copy(), own(values, None)
    room[:] = 0
    assert np.asarray(placed).tobytes() == before.tobytes()


@pytest.mark.parametrize("offset", [0, 4])
def test_values_of_another_dtype_are_rounded_as_numpy_does(offset: int) -> None:
    room = np.random.default_rng(0).normal(size=ALIGNMENT).astype(np.float32)
    values = room[offset : offset + 24].reshape(2, -1)
    placed = np.asarray(own(values, None, ml_dtypes.bfloat16))
    assert placed.dtype == ml_dtypes.bfloat16
    assert placed.tobytes() == values.astype(ml_dtypes.bfloat16).tobytes()
