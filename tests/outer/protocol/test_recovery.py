"""Another epoch of the syncer goes on from the journal: nothing durable is lost, nothing is lent or merged twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.events_effects import Append, DrainRequested, Durable, Emit, Fence, StopRequested, Tick
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    Record,
    Refused,
    SpanGranted,
    SpanReturned,
    SyncerStarted,
)
from outer.protocol.messages import STARTING, Attach, Contribution, Drain, Grant, Notice, ReadRequest, Stop
from outer.protocol.recovery import Entry, recover
from outer.protocol.syncer import RESEND_S, Budget
from tests.golden.bench import ALL, MANIFEST, Bench, bench, reading
from tests.property_settings import examples


def lending(*names: str, **change: Any) -> Bench:
    """Each holds a span of 8 samples."""
    made = bench(*names, **change)
    for span, name in enumerate(names):
        made.do(made.peers[name].report(wants_span=True))
        made.peers[name].newest_span = span
    return made


def said_at_start(effects: list[Any]) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(effect, Emit)]


def test_it_goes_on_from_the_newest_version_and_the_count_of_tokens() -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.commit("a", "b")
    before = made.facts(Committed)[-1]
    [started, *_] = said_at_start(made.crash())
    assert isinstance(started, SyncerStarted)
    assert (started.epoch, started.versions, started.tokens_committed) == (2, (3,), before.tokens_committed)
    made.commit("a", "b")
    after = made.facts(Committed)[-1]
    assert (after.epoch, after.syncer_step, after.base_version) == (2, 4, 3)
    assert after.tokens_committed == before.tokens_committed + sum(one.tokens for one in after.participants)


def test_a_commit_that_was_not_durable_is_made_again_and_its_steps_count_once() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    assert [e.record.syncer_step for e in made.log if isinstance(e, Append) and isinstance(e.record, Committed)] == [1]
    made.journals_itself = True
    made.crash()
    made.now += 1.0
    made.step("a", "b")
    made.answer("a", "b")
    [commit] = made.facts(Committed)
    assert (commit.epoch, commit.syncer_step, commit.base_version) == (2, 1, 0)
    assert commit.tokens_committed == 40, "two steps of each, the first ones too"


def test_what_is_durable_counts_though_its_epoch_never_knew_and_no_epoch_repeats_it() -> None:
    made = reading("a", "b", journals_itself=False)
    made.answer("a", "b")
    [append] = [e for e in made.log if isinstance(e, Append)]
    made.journal.append(Entry(1, append.sequence, append.record))
    first = made.crash()
    assert [type(e.fact) for e in first if isinstance(e, Emit)] == [SyncerStarted]
    assert made.syncer.versions == [1]


def test_a_notice_lost_with_the_epoch_is_sent_by_the_next() -> None:
    made = reading("a", "b")
    made.answer("a", "b")
    told = len(made.sent(Notice, "a"))
    made.crash()
    assert [notice.version for notice in made.sent(Notice, "a")[told:]] == [1]
    assert made.sent(Notice, "a")[-1].merged_step == 1, "rebasing still knows what is in it"


def test_messages_of_the_epoch_before_change_nothing() -> None:
    made = reading("a", "b")
    late = made.peers["a"].answer(made.sent(ReadRequest, "a")[-1])
    made.crash()
    made.do(replace(late, epoch=1))
    assert [(refused.message, refused.reason) for refused in made.facts(Refused)] == [("contribution", "stale_epoch")]
    assert isinstance(late, Contribution)


def test_who_is_not_among_the_living_is_fenced_and_what_it_had_returns() -> None:
    made = bench("a", "b")
    made.step("a", wants_span=True)
    made.commit("a", "b")
    del made.peers["a"]
    made.crash(attach=False)
    assert [(fact.learner, fact.incarnation) for fact in made.facts(LearnerFenced)] == [("a", 1)]
    assert [(fact.start, fact.stop) for fact in made.facts(SpanReturned)] == [(4, 8)], "two steps of it are committed"
    made.do(Attach("a", 1, MANIFEST))
    assert made.facts(Refused)[-1].reason == "stale_incarnation"


def test_a_newer_incarnation_among_the_living_fences_the_one_that_the_records_know() -> None:
    made = bench("a", "b")
    made.commit("a", "b")
    made.peers["a"].incarnation = 2
    made.crash(attach=False)
    made.do(Attach("a", 1, MANIFEST))
    assert made.facts(Refused)[-1].reason == "stale_incarnation"
    made.do(Attach("a", 2, MANIFEST))
    assert [fact.incarnation for fact in made.facts(LearnerAttached)][-1] == 2


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


def test_a_step_that_the_epoch_before_has_counted_in_one_fragment_counts_no_more_in_another() -> None:
    made = bench("a", "b", sync={"P": 2, "H": 2, "tau": 1})
    made.commit("a", "b")
    made.crash()
    made.commit("a", "b")
    [first, second] = made.facts(Committed)[-2:]
    assert [one.tokens for one in second.participants] == [20, 20] and first.fragment != second.fragment
    assert (first.tokens_committed, second.tokens_committed) == (20, 40)


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


def test_nothing_is_granted_before_the_grant_is_durable() -> None:
    made = bench("a", "b", journals_itself=False)
    made.step("a", wants_span=True)
    [append] = [e for e in made.log if isinstance(e, Append)]
    assert isinstance(append.record, SpanGranted)
    made.now += 5.0
    made.step("a", wants_span=True)
    assert made.sent(Grant, "a") == [] and made.facts(SpanGranted) == []
    made.do(Durable(append.sequence))
    assert [grant.span for grant in made.sent(Grant, "a")] == [0] and made.facts(SpanGranted) == [append.record]
    made.step("a", wants_span=True)
    assert len(made.sent(Grant, "a")) == 1, "it is on its way"
    made.now += 1.0
    made.step("a", wants_span=True)
    assert len(made.sent(Grant, "a")) == 2, "it seems to be lost"


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


MOVES = st.lists(st.sampled_from(["commit", "span a", "span b", "kill a", "kill b"]), min_size=1, max_size=14)


@examples(60)
@given(moves=MOVES, cut=st.floats(0.0, 1.0), later=MOVES)
def test_wherever_the_journal_ends_no_sample_is_lent_to_two(moves: list[str], cut: float, later: list[str]) -> None:
    """What was never said may be lent again; what was said stays as it was said."""
    made = bench("a", "b", quorum=1)
    play(made, moves)
    kept = round(cut * len(made.journal))
    seen = [entry.record for entry in made.journal[:kept]]
    made.crash(kept, attach=False)
    made.join("a", "b", lease_s=1e9)
    assert made.syncer.versions == [max([0, *(record.syncer_step for record in seen if isinstance(record, Committed))])]
    play(made, later)
    assert_lent_once([entry.record for entry in made.journal])


def play(made: Bench, moves: list[str]) -> None:
    for move in moves:
        what, _, name = move.partition(" ")
        if what == "commit":
            made.commit("a", "b")
        elif what == "span":
            made.peers[name].wants_span = True
            made.do(made.peers[name].report())
            made.peers[name].newest_span = max([-1, *(grant.span for grant in made.sent(Grant, name))])
            made.peers[name].wants_span = False
        else:
            made.do(Fence(name, made.peers[name].incarnation, "killed"))
            made.join(name, lease_s=1e9)
    made.do(Tick())


def assert_lent_once(records: list[Record]) -> None:
    lent: dict[int, tuple[str, int]] = {}
    for record in records:
        if isinstance(record, SpanGranted):
            for sample in range(record.start, record.stop):
                assert sample not in lent, f"{sample} is lent to {lent.get(sample)} and {record}"
                lent[sample] = (record.learner, record.incarnation)
        elif isinstance(record, SpanReturned):
            for sample in range(record.start, record.stop):
                assert lent.pop(sample) == (record.learner, record.incarnation)


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
