"""The syncer machine and contributions: which are refused, what merges, late work too, and with what weight."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from outer.config import SyncConfig
from outer.protocol.events_effects import Append, Merge, Send, Tick
from outer.protocol.facts import Committed, Quarantined, Refused, StepReopened
from outer.protocol.messages import NON_FINITE_MAX, FragmentCounters, ReadRequest
from outer.protocol.open_step import age, weigh
from tests.golden.bench import ALL, merged, reading

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


@pytest.mark.parametrize(
    ("change", "counters", "reason"),
    [(change, {}, reason) for change, reason in WRONG] + [({}, change, reason) for change, reason in WRONG_COUNTERS],
)
def test_a_wrong_contribution_is_refused_with_its_reason_and_changes_nothing(
    change: dict[str, Any], counters: dict[str, Any], reason: str
) -> None:
    made = reading("a", "b", "c", sync=ALL)
    sound = made.peers["a"].answer(made.sent(ReadRequest, "a")[-1])
    sent = replace(sound, counters=sound.counters._replace(**counters), **change)
    effects = made.do(sent)
    of = (sent.learner, sent.incarnation, "contribution", reason, sent.syncer_step, sent.fragment)
    assert made.facts(Refused) == [Refused(*of)]
    assert not any(isinstance(effect, Merge | Append | Send) for effect in effects)
    assert (made.syncer.versions, made.syncer.tokens_committed) == ([0], 0)
    made.answer("b", "c")
    made.now += 2.0
    made.do(Tick())
    [fact] = made.facts(Committed)
    assert [one.learner for one in fact.participants] == ["b", "c"], "and the others commit without it"


def test_whose_contribution_is_the_largest_of_three_merges_that_are_not_finite_has_to_restart() -> None:
    made = reading("a", "b", merges_itself=False, sync=ALL)
    for times in range(1, NON_FINITE_MAX + 1):
        made.answer("a", "b")
        made.do(replace(merged(1, finite=False), outlier=1))
        assert "the largest change is that of b 1" in made.facts(StepReopened)[-1].reason
        assert [fact.learner for fact in made.facts(Quarantined)] == ["b"] * (times == NON_FINITE_MAX)
        made.now += 1.0
        made.step("a", "b")
    assert [member.name for member in made.syncer._members.live] == ["a"]


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
