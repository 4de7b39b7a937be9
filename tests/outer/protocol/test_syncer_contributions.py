"""The syncer machine and contributions: which are refused, what merges, with what weight, and what becomes durable."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from outer.protocol.events_effects import Append, Durable, Merge, Send, Tick
from outer.protocol.facts import Committed, Quarantined, ReadFailed, Refused, SpanGranted, StepReopened
from outer.protocol.messages import FragmentCounters, Grant, ReadRequest, Stop
from outer.protocol.open_step import weigh
from outer.protocol.syncer import NON_FINITE_MAX, RESEND_S
from tests.golden.bench import ALL, PATIENT, bench, merged, reading

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


def test_a_contribution_may_be_of_one_step_and_one_token() -> None:
    made = bench("a", "b", sync=ALL, peers=PATIENT | {"tokens": 1})
    made.now = 1.0
    made.step("a", "b")
    made.answer("a", "b")
    [fact] = made.facts(Committed)
    assert [(one.steps, one.tokens) for one in fact.participants] == [(1, 1), (1, 1)]
    assert made.syncer.first_step_at == 1.0


def test_one_whose_answer_may_not_be_heard_is_waited_for_no_longer() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.answer("a", epoch=9)
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "refused")]
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["b", "c"]


def test_records_that_become_durable_together_are_all_acted_on() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    made.do(made.peers["a"].report(wants_span=True))
    [_, grant] = [effect for effect in made.log if isinstance(effect, Append)]
    made.do(Durable(grant.sequence))
    assert made.published == [(0, 1)]
    assert [fact.learner for fact in made.facts(SpanGranted)] == ["a"] and len(made.sent(Grant, "a")) == 1


def test_a_doubled_contribution_merges_once_and_after_the_commit_it_is_late() -> None:
    made = reading("a", "b")
    made.answer("a")
    made.answer("a")
    made.answer("b")
    made.answer("b")
    assert [fact.reason for fact in made.facts(Refused)] == ["doubled", "late"]
    [fact] = made.facts(Committed)
    assert [one.learner for one in fact.participants] == ["a", "b"]


def test_an_answer_to_an_earlier_attempt_at_the_step_is_late() -> None:
    made = reading("a", "b")
    early = made.peers["a"].answer(made.sent(ReadRequest, "a")[-1])
    made.now = 3.0
    made.do(Tick())
    made.now = 4.0
    made.step("a", "b")
    assert [request.attempt for request in made.sent(ReadRequest, "a")] == [1, 2]
    made.do(early)
    assert [fact.reason for fact in made.facts(Refused)] == ["late"]
    made.answer("a", "b")
    assert [one.step for fact in made.facts(Committed) for one in fact.participants] == [2, 2]


def test_a_learner_that_stays_non_finite_is_made_to_start_anew_and_others_are_not() -> None:
    made = bench("a", "b", "c", sync=ALL)
    for number in range(1, NON_FINITE_MAX + 2):
        made.now += 1.0
        made.step("a", "b", "c")
        bad = {"defect": "non_finite", "payload": None} if number != 2 else {}
        made.answer("a", **bad)
        made.answer("b", "c")
        made.adopt("a", "b", "c")
        assert made.sent(Stop, "a") == [], "one that is sound in between counts anew"
    made.now += 1.0
    made.step("a", "b", "c")
    made.answer("a", defect="non_finite", payload=None)
    assert made.facts(Quarantined) == [Quarantined("a", 1, NON_FINITE_MAX)]
    [stop] = made.sent(Stop, "a")
    assert stop.reason.startswith("failed:") and made.sent(Stop, "b") == []
    assert not made.syncer.finished
    for wait, stops in ((RESEND_S / 2, 1), (RESEND_S / 2, 2)):
        made.now += wait
        made.step("a")
        assert len(made.sent(Stop, "a")) == stops, "it may not have heard"


def test_a_merge_that_is_not_finite_reopens_the_step_and_leaves_the_version() -> None:
    made = reading("a", "b", merges_itself=False)
    made.answer("a", "b")
    made.do(merged(1, finite=False))
    assert made.facts(StepReopened)[0].reason == "the merged update is not finite"
    assert (made.syncer.versions, made.syncer.tokens_committed, made.published) == ([0], 0, [])
    made.merges_itself = True
    made.now = 2.0
    made.step("a", "b")
    made.answer("a", "b")
    assert made.published == [(0, 1)]


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
