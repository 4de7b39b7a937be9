"""The syncer machine and contributions: which are refused, what merges, late work too, and with what weight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from outer.config import SyncConfig
from outer.protocol.messages import FragmentCounters
from outer.protocol.open_step import age, weigh

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"epoch": 2}, "stale_epoch"),
    ({"epoch": 0}, "stale_epoch"),
    ({"incarnation": 2}, "stale_incarnation"),
    ({"learner": "nobody"}, "unknown_learner"),
    ({"syncer_step": 0}, "late"),
    ({"syncer_step": 99}, "late"),
    ({"fragment": 1}, "wrong_fragment"),
    ({"defect": "bad_digest", "payload": None}, "bad_digest"),
    ({"defect": "non_finite", "payload": None}, "non_finite"),
    ({"step": 2}, "wrong_counters"),
    ({"processed": 9}, "wrong_counters"),
]
WRONG_COUNTERS: list[tuple[dict[str, Any], str]] = [
    ({"base_version": None}, "stale_base"),
    ({"base_version": 7}, "stale_base"),
    ({"steps": 0}, "wrong_counters"),
    ({"steps": 0, "base_step": 1}, "wrong_counters"),
    ({"steps": -1, "base_step": 2}, "wrong_counters"),
    ({"tokens": 0}, "wrong_counters"),
    ({"tokens": -5}, "wrong_counters"),
    ({"base_step": 1}, "wrong_counters"),
]


def contributions(*counters: tuple[int, int]) -> Any:
    return [SimpleNamespace(counters=FragmentCounters(0, 0, steps, tokens)) for tokens, steps in counters]


@pytest.mark.parametrize(("rule", "shares"), [("paper", [0.2, 0.8]), ("tokens", [1 / 3, 2 / 3]), ("equal", [0.5, 0.5])])
def test_a_merge_weighs_by_the_rule(rule: str, shares: list[float]) -> None:
    assert weigh(contributions((100, 4), (200, 4)), (0, 0), 24, rule) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("rule", "now", "late"),
    [("paper", 4 * 25.0**2, 24 * 25.0**2 / 3), ("tokens", 4 * 25.0, 24 * 25.0 / 3), ("equal", 1.0, 1 / 3)],
)
def test_late_work_weighs_less_and_counts_for_at_most_a_round(rule: str, now: float, late: float) -> None:
    given = weigh(contributions((100, 4), (2500, 100)), (0, 2), 24, rule)
    assert given == pytest.approx([now / (now + late), late / (now + late)])


# ------------------------------------------------------------------ late work


@pytest.mark.parametrize(
    ("base", "version", "rounds"),
    [
        (None, 8, -1),
        (12, 8, -1),
        (-1, 8, -1),
        (7, 8, -1),
        (8, 8, 0),
        (4, 8, 1),
        (0, 8, 2),
        (0, 5, 2),
        (0, 1, 1),
        (1, 9, 2),
    ],
)
def test_an_age_is_in_rounds_and_what_is_no_version_has_none(base: int | None, version: int, rounds: int) -> None:
    assert age(base, version, 4) == rounds


def test_a_window_sends_differences_and_needs_free_overlap() -> None:
    assert SyncConfig().codec == "fp32" and SyncConfig(base_window=1).codec == "fp32_delta"
    assert SyncConfig(base_window=1, codec="bf16").codec == "bf16"
    with pytest.raises(ValidationError, match="base_window needs overlap"):
        SyncConfig(base_window=1, overlap="strict")
