"""The syncer machine against scripted learners: quorum, grace, and what becomes of contributions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outer.facts import (
    Committed,
    LearnerFenced,
    Quarantined,
    ReadFailed,
    Refused,
    SpanGranted,
    StepOpened,
    StepReopened,
)
from outer.messages import DRAINING, STEPPING, STOPPED, Grant, Notice, ReadRequest, Stop
from outer.signals import Append, Durable, Fence, Merge, ReadMissed, Say, Send, Tick
from outer.syncer import NON_FINITE_MAX, REOPEN_S, RESEND_S, Budget
from tests.golden.bench import ALL, PATIENT, bench, merged, reading

# ------------------------------------------------------------------ quorum


def test_below_k_live_learners_no_step_opens_and_nothing_is_waited_for() -> None:
    made = bench("a")
    for _ in range(20):
        made.now += 1.0
        made.step("a")
    assert made.facts(StepOpened) == [] and made.facts(Committed) == []
    assert made.syncer.wake_at == made.now + 1e9, "only the lease can run out"


def test_with_fewer_than_k_current_bases_the_step_reopens_and_commits_once_there_are_k() -> None:
    made = bench("a", "b")
    made.peers["b"].bases[0] = (None, 0, 0)
    made.now = 1.0
    made.step("a", "b")
    assert made.facts(StepReopened) == [StepReopened(1, 0, 0, "1 learners have a current base, the quorum is 2")]
    assert made.asked(1) == []
    made.peers["b"].bases[0] = (0, 1, 10)
    made.step("a", "b")
    assert made.asked(1) == [] and made.syncer.wake_at == 1.0 + REOPEN_S, "it is not judged again at once"
    made.now = 1.0 + REOPEN_S
    made.do(Tick())
    made.answer("a", "b")
    assert [len(fact.participants) for fact in made.facts(Committed)] == [2]


def test_a_read_that_is_not_answered_in_time_reopens_the_step_which_commits_later() -> None:
    made = reading("a", "b")
    made.answer("a")
    assert made.syncer.wake_at == 3.0
    made.now = 3.0
    made.do(Tick())
    assert made.facts(ReadFailed) == [ReadFailed("b", 1, 1, 0, "timeout")]
    assert made.facts(StepReopened) == [StepReopened(1, 0, 1, "1 valid contributions, the quorum is 2")]
    made.answer("b")
    assert [fact.reason for fact in made.facts(Refused)] == ["late"]
    assert made.facts(Committed) == []
    made.now = 4.0
    made.step("a", "b")
    made.answer("a", "b")
    assert [(fact.syncer_step, len(fact.participants)) for fact in made.facts(Committed)] == [(1, 2)]


def test_a_read_that_the_shell_could_not_make_is_waited_for_no_longer() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(ReadMissed("a", 9, 1, "ActorDiedError"))
    made.do(ReadMissed("a", 1, 9, "ActorDiedError"))
    assert made.facts(ReadFailed) == [], "another incarnation's or another step's failure is none of this one"
    made.do(ReadMissed("a", 1, 1, "ActorDiedError"))
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "ActorDiedError")]
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["b", "c"]


def test_participants_eligible_takes_every_current_learner_and_reported_only_those_that_reported() -> None:
    for participants, asked in (("eligible", ["a", "b", "c"]), ("reported", ["a", "b"])):
        made = bench("a", "b", "c", sync={"participants": participants, "grace": 0.5})
        made.now = 0.4
        made.step("a", "b", "c")
        made.answer("a", "b", "c")
        made.adopt("a", "b", "c")
        made.step("c")  # before step 2 opens
        made.now = 1.0
        made.do(Tick())
        made.step("a", "b")
        assert made.asked(2) == [], "grace is open"
        made.now = 1.5
        made.do(Tick())
        assert made.asked(2) == asked


# ------------------------------------------------------------------ grace


def test_grace_opens_with_the_kth_report_and_ends_on_time() -> None:
    made = bench("a", "b", "c", sync={"grace": 5.0})
    made.now = 1.0
    made.step("a")
    assert made.syncer.wake_at is not None and made.syncer.wake_at > 1e8, "before the K-th report time decides nothing"
    made.now = 2.0
    made.step("b")
    assert made.syncer.wake_at == 7.0
    made.now = 6.99
    made.do(Tick())
    assert made.asked(1) == []
    made.now = 7.0
    made.do(Tick())
    assert made.asked(1) == ["a", "b"]
    made.answer("a", "b")
    [fact] = made.facts(Committed)
    assert (fact.quorum_s, fact.grace_s, fact.live) == (2.0, 5.0, 3)


def test_grace_closes_early_when_everyone_has_reported_or_the_missing_one_is_gone() -> None:
    for event in ("report", "death"):
        made = bench("a", "b", "c", sync={"grace": 5.0})
        made.now = 1.0
        made.step("a", "b")
        assert made.asked(1) == []
        made.now = 2.0
        if event == "report":
            made.step("c")
        else:
            made.do(Fence("c", 1, "killed"))
        assert made.asked(1)[:2] == ["a", "b"]


def test_grace_without_end_waits_for_the_last_live_learner() -> None:
    made = bench("a", "b", "c", sync={"grace": "infinite"})
    made.now = 1.0
    made.step("a", "b")
    made.now = 1e6
    made.do(Tick())
    assert made.asked(1) == []
    made.step("c")
    assert made.asked(1) == ["a", "b", "c"]


def test_grace_falls_back_to_waiting_when_too_few_are_left_alive() -> None:
    made = bench("a", "b", "c", sync={"grace": 5.0})
    made.now = 1.0
    made.step("a", "b")
    for name in "bc":
        made.do(Fence(name, 1, "killed"))
    made.now = 100.0
    made.do(Tick())
    assert made.facts(ReadFailed) == [] and made.asked(1) == []
    made.join("b", **PATIENT)
    made.now = 101.0
    made.step("a", "b")
    made.answer("a", "b")
    assert [len(fact.participants) for fact in made.facts(Committed)] == [2]


def test_a_grace_that_lost_its_quorum_does_not_wake_the_shell_for_nothing() -> None:
    made = bench("a", "b", "c", sync={"grace": 5.0})
    made.now = 1.0
    made.step("a", "b")
    made.do(Fence("b", 1, "killed"))  # K = 2 are alive, one of them reported
    made.now = 6.0
    made.do(Tick())
    assert made.asked(1) == []
    assert made.syncer.wake_at is not None and made.syncer.wake_at > 6.0
    made.step("c")
    assert made.asked(1) == ["a", "c"]


@pytest.mark.parametrize(("tau", "expected"), [(1, 0.5), (3, 1.0)])
def test_adaptive_grace_is_half_the_slack_and_at_most_one_step(tau: int, expected: float) -> None:
    made = bench("a", "b", "c", sync={"P": 1, "H": 4, "tau": tau, "grace": "adaptive"})
    assert made.syncer.grace_s == expected
    assert bench("a", sync={"P": 1, "H": 4, "tau": 0, "grace": "adaptive"}).syncer.grace_s == 0.0


def test_a_grace_once_granted_stays_though_the_pace_changes() -> None:
    made = bench("a", "b", "c", sync={"P": 4, "H": 4, "tau": 3, "grace": "adaptive"})
    made.now = 1.0
    made.step("a", "b")
    granted = made.syncer.grace_s
    assert granted == 1.0 and made.syncer.wake_at == 2.0
    made.do(made.peers["a"].report(step_s=8.0))
    made.do(made.peers["b"].report(step_s=8.0))
    assert made.syncer.step_s == 8.0 and made.syncer.grace_s != granted
    made.now = 2.0
    made.do(Tick())
    assert made.asked(1) == ["a", "b"]


@pytest.mark.parametrize("participants", ["eligible", "reported"])
def test_in_strict_overlap_a_learner_counts_once_it_has_reached_the_steps_number(participants: str) -> None:
    strict = {
        "overlap": "strict",
        "grace": "infinite",
        "pacing": "quorum",
        "participants": participants,
        "P": 2,
        "H": 2,
    }
    made = bench("a", "b", sync=strict)
    made.step("a")
    made.step("a")
    assert made.asked(1) == [], "b has not"
    made.do(made.peers["b"].report())
    assert made.asked(1) == [], "nor by another word of its step before"
    made.step("b")
    assert made.asked(1) == ["a", "b"]
    made.answer("a", "b")
    made.step("b")
    assert made.asked(2) == ["a", "b"], "a had reached it before it opened"


# ------------------------------------------------------------------ contributions


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


@pytest.mark.parametrize("phase", [STEPPING, DRAINING])
@pytest.mark.parametrize("count", [0, 2])
def test_a_report_that_knows_of_other_fragments_is_refused_and_shows_nothing(phase: str, count: int) -> None:
    """Of one that leaves it would show that there is nothing left to give."""
    made = bench("a", "b")
    sound = made.peers["a"].report(phase=phase)
    effects = made.do(replace(sound, counters=(sound.counters * 2)[:count]))
    assert effects == [Say(Refused("a", 1, "report", "wrong_counters"))]
    assert made.syncer.view(made.now)[0]["phase"] == STEPPING


def test_a_contribution_based_on_an_older_version_never_merges() -> None:
    made = reading("a", "b", "c", sync=ALL)
    old = made.peers["a"].answer(made.sent(ReadRequest, "a")[-1])
    made.answer("a", "b", "c")
    made.adopt("b", "c")
    made.now = 2.0
    made.step("a", "b", "c")
    assert "a" not in made.asked(2), "who reports an old base is not asked"
    made.do(replace(old, syncer_step=2))
    made.answer("b", "c")
    assert [[one.learner for one in fact.participants] for fact in made.facts(Committed)] == [
        ["a", "b", "c"],
        ["b", "c"],
    ]


def test_a_contribution_may_be_of_one_step_and_one_token() -> None:
    made = bench("a", "b", sync=ALL, peers=PATIENT | {"tokens": 1})
    made.now = 1.0
    made.step("a", "b")
    made.answer("a", "b")
    [fact] = made.facts(Committed)
    assert [(one.steps, one.tokens) for one in fact.participants] == [(1, 1), (1, 1)]
    assert made.syncer.first_step_at == 1.0


def test_no_step_opens_beyond_the_last_and_a_run_has_no_end_before_it() -> None:
    made = bench("a", "b", sync={"P": 4, "H": 4, "tau": 3} | ALL, budget=Budget(None, 1))
    assert made.syncer.finished == ""
    made.now = 1.0
    made.step("a", "b")
    made.now = 2.5
    made.do(Tick())
    assert [fact.syncer_step for fact in made.facts(StepOpened)] == [1]
    made.answer("a", "b")
    assert made.syncer.finished == "syncer step 1 is reached"


def test_what_one_incarnation_reported_counts_for_no_other() -> None:
    made = bench("a", "b", "c")
    made.now = 1.0
    made.step("a")
    made.join("a", **PATIENT)
    made.step("b")
    assert made.asked(1) == [], "only b has finished a step"
    made.step("c")
    assert made.asked(1) == ["b", "c"]


def test_one_that_stops_is_waited_for_no_longer() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(made.peers["a"].report(phase=STOPPED))
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "stopped")]


def test_of_a_version_that_was_never_committed_no_digest_is_told() -> None:
    made = bench("a", "b")
    made.peers["a"].bases[0] = (None, 0, 0)
    made.now = 5.0
    made.step("a")
    assert [(message.version, message.digest) for message in made.sent(Notice, "a")] == [(0, "")]


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


def test_weights_are_tokens_squared_by_steps_normalised_in_the_order_of_names() -> None:
    made = bench("a", "b", "c", sync=ALL)
    made.peers["b"].tokens = 20
    made.step("c", "b")
    made.step("b")
    made.now = 1.0
    made.step("a")
    effects = made.answer("c", "a", "b")
    [fact] = made.facts(Committed)
    raw = {"a": 10**2 / 1, "b": 40**2 / 2, "c": 10**2 / 1}
    assert {one.learner: one.weight for one in fact.participants} == {k: v / 1000 for k, v in raw.items()}
    [merge] = [effect for effect in effects if isinstance(effect, Merge)]
    assert merge.payloads == ("a.1@1", "b.1@2", "c.1@1")
    assert merge.weights == tuple(one.weight for one in fact.participants)


def test_one_that_let_a_read_time_out_is_not_asked_again_before_it_reports() -> None:
    """Fragment 1 is due at odd steps, 0 at even ones."""
    made = reading("a", "b", quorum=1, sync={"P": 2, "H": 2, "read_timeout_s": 2.0, "grace": 0.5})
    made.answer("a")
    made.now = 3.0
    made.do(Tick())  # b's answer did not come
    assert [fact.reason for fact in made.facts_named("ReadFailed")] == ["timeout"]
    for syncer_step, reports in ((2, "a"), (3, "ab")):  # b's lease lasts all the time
        made.adopt(*reports)
        made.now += 2.0
        made.step(*reports)
        made.now += 0.6
        made.do(Tick())
        assert sorted(made.asked(syncer_step)) == list(reports)
        made.answer(*reports)


@pytest.mark.parametrize(("reason", "asked"), [("timeout", ["b"]), ("ActorDiedError", ["a", "b"])])
def test_only_one_whose_read_timed_out_is_asked_for_nothing_before_it_reports(reason: str, asked: list[str]) -> None:
    """Fragment 1 is due at odd steps, 0 at even ones; the second is opened before anyone adopts."""
    made = reading("a", "b", quorum=1, sync={"P": 2, "H": 2, "pacing": "quorum", "grace": 0.5})
    made.do(ReadMissed("a", 1, 1, reason))
    made.answer("b")
    made.now = 2.0
    made.step("b")
    made.now = 2.5
    made.do(Tick())
    assert made.asked(2) == asked


def test_a_fence_ends_the_wait_for_the_incarnation_that_it_names_and_for_no_other() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(Fence("a", 9, "killed"))
    assert made.facts(LearnerFenced) == [] and made.facts(ReadFailed) == []
    made.do(Fence("a", 1, "killed"))
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "killed")]
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "fenced")]
    made.answer("b", "c")
    assert len(made.facts(Committed)) == 1


def test_the_quorum_of_a_step_that_opened_again_counts_in_the_average_from_there() -> None:
    made = reading("a", "b", sync={"P": 2, "H": 2, "tau": 1, "grace": "adaptive", "smoothing": 1.0})
    assert made.syncer.grace_s == 0.0, "the quorum took as long as a step"
    made.now = 3.0
    made.do(Tick())  # no answer came
    made.now = 3.4
    made.step("a", "b")
    assert made.syncer.grace_s == pytest.approx(0.5 * (1.0 - 0.4))


def test_a_run_may_end_with_a_step_at_which_nothing_was_due() -> None:
    made = bench("a", "b", sync={"P": 1, "H": 4, "tau": 1}, budget=Budget(None, 1))
    made.now = 1.0
    made.step("a", "b")
    assert made.syncer.finished and made.syncer.moved_at == 1.0
    made.now += RESEND_S
    made.step("a")
    assert len(made.sent(Stop, "a")) == 2


def test_the_view_is_of_the_moment_and_against_the_versions_of_the_moment() -> None:
    made = reading("a", "b")
    made.answer("a", "b")
    made.now = 2.5
    assert [(row["name"], row["lease_age_s"], row["version_lag"]) for row in made.syncer.view(made.now)] == [
        ("a", 1.5, 1),
        ("b", 1.5, 1),
        ("c", None, None),
    ]


def test_when_the_first_step_was_and_when_the_clock_last_moved_is_kept() -> None:
    made = bench("a", "b")
    assert (made.syncer.first_step_at, made.syncer.moved_at) == (None, None)
    made.now = 1.0
    made.step("a", "b")
    made.now = 1.5
    made.answer("a", "b")
    made.now = 2.0
    made.step("a", "b")
    assert (made.syncer.first_step_at, made.syncer.moved_at) == (1.0, 1.5)
