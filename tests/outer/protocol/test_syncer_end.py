"""How the syncer ends a run."""

from __future__ import annotations

import pytest

from outer.protocol.events_effects import Durable, StopRequested
from outer.protocol.facts import Committed, Finished
from outer.protocol.messages import Stop, Welcome
from outer.protocol.syncer import Budget
from tests.golden.bench import bench, merged, reading


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


def test_a_merge_that_ends_after_the_run_changes_nothing() -> None:
    made = reading("a", "b", merges_itself=False)
    made.answer("a", "b")
    made.do(StopRequested("enough"))
    said = len(made.log)
    made.do(merged(1))
    made.do(Durable(0))
    assert made.log[said:] == [] and made.syncer.versions == [0]
