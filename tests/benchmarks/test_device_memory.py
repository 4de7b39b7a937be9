"""A learner's device memory is flat but for the snapshot slot, as planned, and one model a round goes to the host."""

from __future__ import annotations

import pytest

from benchmarks.device_memory import TOLERANCE, measured

pytestmark = pytest.mark.full


def test_live_bytes_are_flat_but_for_the_slot_and_as_planned() -> None:
    found = measured(width=64, layers=2, rounds=6)
    steps, checkpoint, joiner = (row["live_bytes"] for row in found["rows"])
    slot = found["rows"][1]["planned_bytes"] - found["rows"][0]["planned_bytes"]
    assert checkpoint == joiner
    assert steps + 0.9 * slot <= checkpoint <= steps + slot, "and fewer fragments may be staged in half a round"
    assert all(abs(row["ratio"] - 1.0) <= TOLERANCE for row in found["rows"])
    assert found["models_per_round"] <= 1.05
