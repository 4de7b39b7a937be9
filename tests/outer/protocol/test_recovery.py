"""Another epoch of the syncer goes on from the journal: nothing durable is lost, nothing is lent or merged twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outer.protocol.events_effects import DrainRequested, Emit, StopRequested, Tick
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    Refused,
    SpanReturned,
)
from outer.protocol.messages import STARTING, Attach, Drain, Notice, Stop
from outer.protocol.recovery import Entry, recover
from outer.protocol.syncer import RESEND_S, Budget
from tests.golden.bench import ALL, MANIFEST, Bench, bench, reading


def lending(*names: str, **change: Any) -> Bench:
    """Each holds a span of 8 samples."""
    made = bench(*names, **change)
    for span, name in enumerate(names):
        made.do(made.peers[name].report(wants_span=True))
        made.peers[name].newest_span = span
    return made


def said_at_start(effects: list[Any]) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(effect, Emit)]


def test_an_epoch_that_goes_on_takes_nothing_before_it_knows_who_lives() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    goes_on = made.epoch(2)
    goes_on.start()
    with pytest.raises(AssertionError, match="is Living"):
        goes_on.handle(0.0, Attach("a", 1, MANIFEST))


def test_a_stop_that_was_told_is_known_to_the_next_epoch() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    made.do(StopRequested("enough"))
    assert made.sent(Stop, "a") != []
    made.crash()
    assert made.syncer.finished == "enough"
    stops = len(made.sent(Stop, "b"))
    made.now += 10.0
    made.step("b")
    assert len(made.sent(Stop, "b")) == stops + 1 and len(made.facts(Committed)) == 1


def test_a_stop_that_was_not_durable_is_as_if_never_asked() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    made.journals_itself = False
    made.do(StopRequested("enough"))
    assert made.facts(Finished) == [] and made.sent(Stop, "a") == []
    made.journals_itself = True
    made.crash()
    made.commit("a", "b")
    assert [fact.syncer_step for fact in made.facts(Committed)] == [1, 2]


def test_one_that_was_lent_nothing_and_not_heard_of_is_gone_at_once_when_it_is_to_leave() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    made.crash(attach=False)
    assert made.facts(Refused) == [], "who is announced again, as it is, is welcome"
    made.do(DrainRequested("a", 1, "scaled down", 30.0))
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "drained")] and made.sent(Drain, "a") == []


def test_one_that_lives_has_time_to_attach_and_is_then_no_more_alive() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    made.crash(attach=False)
    assert made.syncer.wake_at == made.now + 60.0
    assert [(row["alive"], row["phase"]) for row in made.syncer.view(made.now)[:2]] == [(True, STARTING)] * 2
    made.now += 60.0
    made.do(Tick())
    assert [fact.phase for fact in made.facts(LeaseExpired)] == [STARTING] * 2


def test_of_one_that_died_with_the_epoch_exactly_the_uncommitted_part_returns() -> None:
    made = lending("a", "b")
    made.do(made.peers["a"].report(wants_span=True))
    for _ in range(5):
        made.commit("a", "b")
    del made.peers["a"]
    made.crash()
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "killed")]
    assert made.facts(SpanReturned) == [SpanReturned("a", 1, 2, 18, 24)], "5 steps of 2 samples are committed"


def test_the_newest_incarnation_is_known_though_an_older_ones_steps_commit_after_its_first_grant() -> None:
    made = reading("a", "b", sync=ALL)
    made.answer("a")
    made.join("a", lease_s=1e9)
    made.peers["a"].wants_span = True
    made.do(made.peers["a"].report())
    made.answer("b")
    assert [(one.learner, one.incarnation) for one in made.facts(Committed)[0].participants] == [("a", 1), ("b", 1)]
    made.crash(attach=False)
    made.do(Attach("a", 1, MANIFEST))
    assert [(fact.incarnation, fact.reason) for fact in made.facts(Refused)] == [(1, "stale_incarnation")]
    made.do(Attach("a", 2, MANIFEST))
    assert made.facts(LearnerAttached)[-1].incarnation == 2
    assert made.facts(LearnerFenced) == [LearnerFenced("a", 1, "superseded")], "by the epoch before"


def test_one_that_only_borrowed_is_told_of_every_version_with_its_digest() -> None:
    made = lending("a", "b", "c", quorum=2, sync={"P": 2, "H": 2, "tau": 1})
    made.commit("a", "b")
    made.peers["c"].bases = [(None, 0, 0), (None, 0, 0)]
    told = len(made.sent(Notice, "c"))
    made.crash()
    assert [(n.fragment, n.version, n.digest, n.merged_step) for n in made.sent(Notice, "c")[told:]] == [
        (0, 0, "", None),
        (1, 1, "digest", None),
    ]


def test_a_run_whose_budget_was_reached_is_finished_at_once() -> None:
    made = bench("a", "b", budget=Budget(None, 2))
    made.commit("a", "b")
    made.commit("a", "b")
    assert made.syncer.finished
    made.crash()
    assert made.syncer.finished and len(made.facts(Finished)) <= 2
    assert len(set(made.facts(Finished))) == 1


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


def test_one_that_is_to_leave_before_it_was_heard_of_is_told_and_loses_nothing() -> None:
    made = bench("a", "b")
    made.step("a", "b", wants_span=True)
    made.crash(attach=False)
    made.do(DrainRequested("a", 1, "scaled down", 30.0))
    assert made.facts(LearnerFenced) == [] and len(made.sent(Drain, "a")) == 1
    made.now += RESEND_S
    made.do(Attach("a", 1, MANIFEST))
    made.peers["a"].epoch = 2
    made.step("a")
    told = made.sent(Drain, "a")[-1]
    assert (told.epoch, told.deadline_s) == (2, 30.0 - RESEND_S), "it was not there for the first"
