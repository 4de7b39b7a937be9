"""A consistent cut at the syncer: every message tells of it, and after the last one of a run nothing merges."""

from __future__ import annotations

from outer.protocol.events_effects import Append, Cut, Durable, Merge, TakeSnapshot
from outer.protocol.facts import Committed, Finished, SnapshotTaken
from outer.protocol.messages import Grant, Notice, ReadRequest, Stop
from outer.protocol.syncer import Budget
from tests.golden.bench import bench, reading


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
