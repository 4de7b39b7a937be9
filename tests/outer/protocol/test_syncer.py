"""The syncer machine against scripted learners: reports, reads, leases, attaching, quorums, snapshots and the end."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from outer.protocol.events_effects import (
    Append,
    Cut,
    Durable,
    Emit,
    Fence,
    Merge,
    ReadMissed,
    StopRequested,
    TakeSnapshot,
    Tick,
)
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    ReadFailed,
    Refused,
    SnapshotTaken,
)
from outer.protocol.messages import DRAINING, STEPPING, STOPPED, Attach, Grant, Notice, ReadRequest, Stop, Welcome
from outer.protocol.quorum import Average, Decision, decide
from outer.protocol.syncer import Budget
from tests.golden.bench import ALL, MANIFEST, bench, reading

# ------------------------------------------------------------------ quorum


def test_a_read_that_the_shell_could_not_make_is_waited_for_no_longer() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(ReadMissed("a", 9, 1, "ActorDiedError"))
    made.do(ReadMissed("a", 1, 9, "ActorDiedError"))
    assert made.facts(ReadFailed) == [], "another incarnation's or another step's failure is none of this one"
    made.do(ReadMissed("a", 1, 1, "ActorDiedError"))
    assert made.facts(ReadFailed) == [ReadFailed("a", 1, 1, 0, "ActorDiedError")]
    made.answer("b", "c")
    assert [one.learner for fact in made.facts(Committed) for one in fact.participants] == ["b", "c"]


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


# ------------------------------------------------------------------ leases and fences


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


# ------------------------------------------------------------------ the end


@pytest.mark.parametrize("budget", [Budget(None, 3), Budget(60, None), Budget(59, None)])
def test_at_the_end_of_the_budget_all_are_stopped_and_nothing_merges_after(budget: Budget) -> None:
    made = bench("a", "b", budget=budget)
    while not made.syncer.finished:
        made.commit("a", "b")
    [finished] = made.facts(Finished)
    assert (finished.syncer_step, finished.tokens_committed) == (3, 60)
    assert made.syncer.progress == 1.0
    assert all(len(made.sent(Stop, name)) == 1 for name in "ab")
    said = len(made.log)
    made.now += 5.0
    made.step("a", "b")
    made.answer("a", "b")
    assert [type(fact).__name__ for e in made.log[said:] if (fact := getattr(e, "fact", None))] == ["Refused"] * 2
    assert made.published[-1] == (0, 3)


def test_who_attaches_after_the_end_is_told_to_stop() -> None:
    made = bench("a", "b")
    made.do(StopRequested("enough"))
    made.do(StopRequested("twice"))
    assert [fact.reason for fact in made.facts(Finished)] == ["enough"]
    made.join("c")
    assert [stop.reason for stop in made.sent(Stop, "c")] == ["enough"]
    assert len(made.sent(Welcome, "c")) == 1
    assert made.syncer.wake_at == made.now + 3.0, "leases go on"


def test_a_stop_waits_for_the_commit_under_way_so_that_the_count_is_of_what_was_said() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    made.do(StopRequested("enough"))
    made.do(StopRequested("twice"))
    assert made.facts(Finished) == []
    made.do(Durable(0))
    assert [fact.tokens_committed for fact in made.facts(Committed)] == [20]
    assert made.facts(Finished) == [] and made.sent(Stop, "a") == [], "the end has to be durable too"
    made.do(Durable(1))
    assert made.facts(Finished) == [Finished(1, 20, "enough")]
    assert len(made.sent(Stop, "a")) == 1


# ------------------------------------------------------------------ snapshots


def test_from_the_cut_on_every_message_tells_of_it_and_nobody_waits_for_the_next_commit_to_hear() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    assert {notice.snapshot for notice in made.sent(Notice, "a")} == {0}
    effects = made.do(TakeSnapshot(4))
    assert [effect.identifier for effect in effects if isinstance(effect, Cut)] == [4]
    assert made.syncer.marker == 4
    assert made.sent(Notice, "a")[-1].snapshot == made.sent(Notice, "b")[-1].snapshot == 4
    made.step("a", wants_span=True)
    made.commit("a", "b")
    assert made.sent(ReadRequest, "a")[-1].snapshot == made.sent(Grant, "a")[-1].snapshot == 4
    (taken,) = made.facts(SnapshotTaken)
    assert (taken.versions, taken.final) == ((1,), False)


def test_after_the_last_one_nothing_merges_and_everybody_is_told_to_save_and_leave() -> None:
    made = reading("a", "b")
    made.do(TakeSnapshot(1, "for the night"))
    for name in ("a", "b"):
        (stop,) = made.sent(Stop, name)
        assert (stop.reason, stop.suspend, stop.snapshot) == ("for the night", True, 1)
        assert [n for n in made.sent(Notice, name) if n.snapshot] == [], (
            "who hears of it by this would save and step on"
        )
    made.answer("a", "b")
    made.now += 5.0
    made.step("a", "b")
    assert made.facts(Committed) == made.facts(Finished) == [] and not [e for e in made.log if isinstance(e, Merge)]
    assert len(made.sent(Stop, "a")) == 2, "who goes on stepping has not heard"
    assert (made.syncer.suspended, made.syncer.finished) == ("for the night", "")
    assert made.syncer.marker == 0, "nobody hears of it by what it fetches"


def test_a_commit_that_is_being_written_comes_before_the_last_cut() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    (append,) = (e for e in made.log if isinstance(e, Append) and isinstance(e.record, Committed))
    made.do(TakeSnapshot(1, "for the night"))
    assert made.facts(SnapshotTaken) == []
    made.do(Durable(append.sequence))
    assert [type(fact).__name__ for fact in made.facts(Committed) + made.facts(SnapshotTaken)] == [
        "Committed",
        "SnapshotTaken",
    ]
    assert made.facts(SnapshotTaken)[0].versions == (1,)


def test_a_run_that_reaches_its_budget_with_that_commit_is_finished_and_not_suspended() -> None:
    made = reading("a", "b", journals_itself=False, budget=Budget(None, 1))
    made.answer("a", "b")
    (append,) = (e for e in made.log if isinstance(e, Append) and isinstance(e.record, Committed))
    made.do(TakeSnapshot(1, "for the night"))
    made.do(Durable(append.sequence))
    made.do(Durable(append.sequence + 1))
    assert len(made.facts(Finished)) == 1 and made.facts(SnapshotTaken) == []


# ------------------------------------------------------------------ the verdict on an open step (paper section 3)


def test_every_verdict_agrees_with_the_rules_written_out() -> None:
    """All small cases: K, live, reported, before and after the end of grace."""
    for quorum, live, reported in itertools.product(range(1, 4), range(4), range(4)):
        for quorum_at, grace_s, now in itertools.product((None, 5.0), (None, 0.0, 2.0), (5.0, 6.9, 7.0, 9.0)):
            verdict = decide(now, quorum=quorum, live=live, reported=reported, quorum_at=quorum_at, grace_s=grace_s)
            assert verdict.reason
            if min(live, reported) < quorum:
                expected = Decision.WAIT
            elif reported >= live or (quorum_at is None and grace_s == 0.0):
                expected = Decision.MERGE
            elif quorum_at is None:
                expected = Decision.OPEN_GRACE
            else:
                over = grace_s is not None and now >= quorum_at + grace_s
                expected = Decision.MERGE if over else Decision.WAIT
            assert verdict.decision is expected


def test_the_first_sample_counts_whole_and_later_ones_by_their_weight() -> None:
    average = Average(0.25)
    average.add(8.0)
    assert average.value == 8.0
    average.add(0.0)
    assert average.value == 6.0
