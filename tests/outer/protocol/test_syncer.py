"""The syncer machine against scripted learners: quorum, grace, reports, reads and the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outer.protocol.events_effects import Emit, Fence, ReadMissed, Tick
from outer.protocol.facts import Committed, ReadFailed, Refused, StepOpened, StepReopened
from outer.protocol.messages import DRAINING, STEPPING, Notice, Stop
from outer.protocol.syncer import REOPEN_S, RESEND_S, Budget
from tests.golden.bench import ALL, PATIENT, bench, reading

# ------------------------------------------------------------------ quorum


def test_with_fewer_than_k_current_bases_the_step_reopens_and_commits_once_there_are_k() -> None:
    made = bench("a", "b")
    made.peers["b"].bases[0] = (None, 0, 0)
    made.now = 1.0
    made.step("a", "b")
    assert made.facts(StepReopened) == [StepReopened(1, 0, 0, "1 learners have a usable base, the quorum is 2")]
    assert made.asked(1) == []
    made.peers["b"].bases[0] = (0, 1, 10)
    made.step("a", "b")
    assert made.asked(1) == [] and made.syncer.wake_at == 1.0 + REOPEN_S, "it is not judged again at once"
    made.now = 1.0 + REOPEN_S
    made.do(Tick())
    made.answer("a", "b")
    assert [len(fact.participants) for fact in made.facts(Committed)] == [2]


def test_a_read_that_the_shell_could_not_make_is_waited_for_no_longer() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(ReadMissed("a", 9, 1, "ActorDiedError"))
    made.do(ReadMissed("a", 1, 9, "ActorDiedError"))
    assert made.facts(ReadFailed) == [], "another incarnation's or another step's failure is none of this one"
    made.do(ReadMissed("a", 1, 1, "ActorDiedError"))
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "ActorDiedError")]
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["b", "c"]


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


# ------------------------------------------------------------------ reports, reads and the end


@pytest.mark.parametrize("phase", [STEPPING, DRAINING])
@pytest.mark.parametrize("count", [0, 2])
def test_a_report_that_knows_of_other_fragments_is_refused_and_shows_nothing(phase: str, count: int) -> None:
    """Of one that leaves it would show that there is nothing left to give."""
    made = bench("a", "b")
    sound = made.peers["a"].report(phase=phase)
    effects = made.do(replace(sound, counters=(sound.counters * 2)[:count]))
    assert effects == [Emit(Refused("a", 1, "report", "wrong_counters"))]
    assert made.syncer.view(made.now)[0]["phase"] == STEPPING


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


def test_of_a_version_that_was_never_committed_no_digest_is_told() -> None:
    made = bench("a", "b")
    made.peers["a"].bases[0] = (None, 0, 0)
    made.now = 5.0
    made.step("a")
    assert [(message.version, message.digest) for message in made.sent(Notice, "a")] == [(0, "")]


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
