"""The syncer machine against scripted learners: the order of commits, repetition, fencing, and the end."""

from __future__ import annotations

import pytest

from outer.protocol.events_effects import Append, Durable, Fence, Publish, ReadMissed, Send, Tick
from outer.protocol.facts import (
    Committed,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    ReadFailed,
    Refused,
    StepOpened,
)
from outer.protocol.messages import STOPPED, Attach, Notice, Welcome
from tests.golden.bench import ALL, MANIFEST, PATIENT, bench, reading

# ------------------------------------------------------------------ order and pace


def test_what_is_made_durable_and_then_published_is_what_was_merged() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    [append] = [e for e in made.log if isinstance(e, Append)]
    assert (append.sequence, append.proposal) == (0, "value of 1")
    effects = made.do(Durable(0))
    assert [e for e in effects if isinstance(e, Publish)] == [Publish(0, 1, "value of 1")]


def test_each_message_is_meant_for_one_incarnation() -> None:
    made = bench("a", "b")
    made.join("a", **PATIENT)
    welcomes = [e for e in made.log if isinstance(e, Send) and isinstance(e.message, Welcome)]
    assert [(e.learner, e.incarnation) for e in welcomes] == [("a", 1), ("b", 1), ("a", 2)]


@pytest.mark.parametrize(("tau", "most"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_at_most_tau_steps_are_open_and_never_fewer_than_one_may_be(tau: int, most: int) -> None:
    made = bench("a", "b", sync={"P": 4, "H": 4, "tau": tau, "read_timeout_s": 1e6})
    for _ in range(10):
        made.now += 1.0
        made.step("a", "b")
    assert [fact.syncer_step for fact in made.facts(StepOpened)] == list(range(1, most + 1))


# ------------------------------------------------------------------ what is sent again


def test_a_notice_says_which_read_of_its_receiver_is_in_the_version() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(ReadMissed("c", 1, 1, "timeout"))
    made.answer("b")
    made.join("b", **PATIENT)
    made.answer("a")
    assert [(one.learner, one.incarnation) for one in made.facts(Committed)[0].participants] == [("a", 1), ("b", 1)]
    made.adopt("a", "b", "c")
    made.now = 2.0
    made.step("a", "b", "c")
    made.do(ReadMissed("a", 1, 2, "timeout"))
    made.answer("b", "c")
    told = {name: [notice.merged_step for notice in made.sent(Notice, name)] for name in "abc"}
    assert told == {"a": [1, 1], "b": [None, 1], "c": [None, 2]}, (
        "its own step then; the first b's reads are not the new b's"
    )


# ------------------------------------------------------------------ leases and fences


def test_a_learner_that_reported_and_whose_lease_lapsed_has_reported_still() -> None:
    """Its next sign of life need not be another step."""
    made = bench("a", "b", sync=ALL | {"participants": "reported"}, peers={"lease_s": 1.0})
    made.now = 0.5
    made.step("a")
    for made.now in (1.0, 1.5):
        made.do(Tick())
    assert {fact.learner for fact in made.facts(LeaseExpired)} == {"a", "b"}
    made.now = 2.0
    made.do(made.peers["a"].report())
    made.step("b")
    assert made.asked(1) == ["a", "b"]


def test_a_learner_that_dies_after_its_answer_still_merges() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.answer("a")
    made.do(Fence("a", 1, "killed"))
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["a", "b", "c"]


def test_a_learner_that_says_it_stopped_is_fenced_and_not_waited_for() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.answer("b", "c")
    made.do(made.peers["a"].report(phase=STOPPED))
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "stopped")]
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "stopped")]
    assert len(made.facts(Committed)) == 1


# ------------------------------------------------------------------ attaching


def test_another_manifest_is_refused_with_the_field_that_differs() -> None:
    made = bench("a")
    made.join("b")
    attached = len(made.facts(LearnerAttached))
    made.do(Attach("b", 1, MANIFEST | {"sync.H": 8}))
    [refused] = made.facts(Refused)
    assert (refused.message, refused.reason, refused.detail) == ("attach", "wrong_config", "sync.H: here 4, there 8")
    assert len(made.facts(LearnerAttached)) == attached and len(made.sent(Welcome, "b")) == 1


def test_a_joiner_is_welcomed_with_the_current_versions_and_the_clock() -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.commit("a", "b")
    made.join("c")
    [welcome] = made.sent(Welcome, "c")
    assert (welcome.epoch, welcome.syncer_step, welcome.versions) == (1, 3, (3,))
    assert welcome.progress == 3 / 1000
