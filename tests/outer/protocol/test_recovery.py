"""Another epoch of the syncer goes on from the journal: nothing durable is lost, nothing is lent or merged twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outer.journal.groups import decode_replay, encode_replay
from outer.protocol.events_effects import Fence
from outer.protocol.facts import Finished, SetAside
from outer.protocol.messages import Attach
from outer.protocol.recovery import Entry, JournalReplay, recover
from outer.protocol.schedule import Budget
from tests.transcripts.syncer_world import MANIFEST, bench


def test_an_epoch_that_goes_on_takes_nothing_before_it_knows_who_lives() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    goes_on = made.epoch(2)
    goes_on.start()
    with pytest.raises(AssertionError, match="is Living"):
        goes_on.handle(0.0, Attach("a", 1, MANIFEST))


@pytest.mark.parametrize("between", [False, True])
def test_samples_that_were_set_aside_or_ended_one_are_so_in_the_next_epoch_and_count_there(between: bool) -> None:
    made = bench("a", "b")

    def fails_twice() -> None:
        for _ in range(2):
            made.step("a", wants_span=True)
            made.step("a")
            made.do(Fence("a", made.peers["a"].incarnation, "failed"))
            made.join("a")
            if between:
                made.crash()

    fails_twice()
    [aside] = made.facts(SetAside)
    assert (aside.learner, aside.incarnation, aside.start, aside.stop) == ("a", 2, 4, 6)
    replay = JournalReplay.empty(1)
    for entry in made.journal:
        replay.apply(entry)
    found = decode_replay(encode_replay(replay)).found
    assert found.set_aside == 1 and list(found.suspects) == [(4, 6)]
    assert sorted(found.spans.state()[2]) == [(0, 4), (6, 8)], "the rest of the span returned"
    made.crash()
    fails_twice()
    assert made.facts(SetAside) == [aside], "no more than the run may set aside"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda entries: entries[:1] + entries[2:], "entry 2 of epoch 1 where entry 1 of epoch 1"),
        (lambda entries: [entries[1], entries[0]], "entry 1 of epoch 1 where entry 0 of epoch 1"),
        (lambda entries: [replace(entries[0], epoch=2), *entries], "entry 0 of epoch 1 where entry 1 of epoch 2"),
    ],
)
def test_a_journal_with_a_gap_is_refused(broken: Callable[[list[Entry]], list[Entry]], message: str) -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.commit("a", "b")
    with pytest.raises(ValueError, match=message):
        recover(broken(made.journal), 1)


def test_a_run_that_ended_at_a_step_without_a_fragment_goes_on_only_if_its_budget_is_raised() -> None:
    made = bench("a", "b", sync={"P": 1, "H": 2}, budget=Budget(None, 3))
    made.commit("a", "b")
    while not made.syncer.finished:
        made.now += 1.0
        made.step("a", "b")
    assert made.facts(Finished)[0].syncer_step == 3 > made.syncer.versions[0] == 2
    assert made.epoch(2).finished and made.epoch(2, reopened=True).finished
    made.budget = Budget(None, 5)
    assert made.epoch(2).finished and not made.epoch(2, reopened=True).finished
