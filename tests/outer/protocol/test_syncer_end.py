"""How the syncer ends a run, and what it counts as committed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.events_effects import Durable, StopRequested, Tick
from outer.protocol.facts import (
    Committed,
    Finished,
)
from outer.protocol.messages import ReadRequest, Stop, Welcome
from outer.protocol.syncer import RESEND_S, Budget
from tests.golden.bench import PATIENT, bench, merged, reading
from tests.property_settings import examples


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


def test_a_stop_that_is_lost_is_sent_again_while_the_learner_goes_on() -> None:
    made = bench("a", "b")
    made.do(StopRequested("enough"))
    for now, stops in ((0.5, 1), (RESEND_S, 2), (1.5, 2), (2 * RESEND_S, 3)):
        made.now = now
        made.step("a")
        assert len(made.sent(Stop, "a")) == stops
    assert len(made.sent(Stop, "b")) == 1


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


# ------------------------------------------------------------------ the count of tokens


LIVES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 9), st.sampled_from(["adopt", "keep", "die"])),
    min_size=5,
    max_size=40,
)


@examples(60)
@given(lives=LIVES)
def test_committed_tokens_are_those_of_a_set_of_steps_however_fragments_overlap(
    lives: list[tuple[str, int, int, str]],
) -> None:
    made = bench("a", "b", "c", sync={"P": 3, "H": 3, "tau": 1, "pacing": "quorum"}, quorum=1)
    tokens: dict[tuple[str, int, int], int] = {}
    for name, steps, each, then in lives:
        for _ in range(steps):
            peer = made.peers[name]
            peer.tokens = each
            requests = len(made.sent(ReadRequest, name))
            made.step(name)
            tokens[name, peer.incarnation, peer.step] = each
            if len(made.sent(ReadRequest, name)) > requests:
                made.answer(name)
        if then == "adopt":
            made.adopt(name)
        elif then == "die":
            made.join(name, **PATIENT)
        made.now += 2.0
        made.do(Tick())
    covered = {
        (one.learner, one.incarnation, step)
        for fact in made.facts(Committed)
        for one in fact.participants
        for step in range(one.base_step + 1, one.step + 1)
    }
    assert made.syncer.tokens_committed == sum(tokens[step] for step in covered)
    assert all(isinstance(fact.tokens_committed, int) for fact in made.facts(Committed))
    assert all(before.tokens_committed <= after.tokens_committed for before, after in pairwise(made.facts(Committed)))
