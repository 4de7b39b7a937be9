"""The books: every token has one fate, for the reason the log gives."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.analysis.summary import REASONS
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import LearnerLost, RunFinished
from outer.protocol.facts import Committed, Finished, LearnerFenced, Refused, SetAside, StepOpened, SyncerStarted
from tests.orchestrator.histories import history, inserted, is_a, losing, parts, script, settle, without

A_MISSES = frozenset((second, "a") for second in (4, 6, 8))  # a's steps 3 to 7 are overwritten unread


def nothing(**reasons: int) -> dict[str, int]:
    return dict.fromkeys(REASONS, 0) | reasons


def test_a_run_with_a_kill_and_a_freeze_in_exact_tokens() -> None:
    books = settle(history())
    # c 1 finished steps 1 to 9 of 16 tokens, the last read was at 8; a's step 21 met two fragments at once.
    assert (books.processed, books.committed, books.in_flight) == (888, 864, 0)
    assert books.discarded == nothing(killed=16, overlap=8)
    assert books.fates[("c", 1, 9)] == "killed"
    assert books.fates[("a", 1, 21)] == "overlap"
    assert books.by_learner["b"].processed == books.by_learner["b"].committed == 32 * 8


def test_a_step_counts_once_however_many_fragments_it_is_merged_through() -> None:
    books = settle(history())
    assert books.committed < sum(share.committed for share in books.token_fragments)
    assert all(share.processed == books.processed for share in books.token_fragments)
    assert [share.committed for share in books.token_fragments] == [680, 592]


def test_a_step_on_samples_that_were_set_aside_with_its_incarnation_has_that_fate() -> None:
    aside = inserted(history(), is_a(LearnerFenced, learner="c"), SetAside("c", 1, 0, 0, 16, step=9))
    for books in (settle(aside), settle(parts(aside, 7))):
        assert books.balanced and books.discarded == nothing(set_aside=16, overlap=8)
        assert books.fates[("c", 1, 9)] == "set_aside"
        before = settle(history()).token_fragments
        for share, without_it in zip(books.token_fragments, before, strict=True):
            lost = without_it.discarded["killed"] - share.discarded["killed"]
            assert share.balanced and lost == share.discarded["set_aside"]
    elsewhere = inserted(history(), is_a(LearnerFenced, learner="c"), SetAside("c", 1, 0, 0, 16))
    assert settle(elsewhere).discarded == nothing(killed=16, overlap=8), "no step finished on them"


def test_what_every_fragment_overwrote_unread_is_overlap() -> None:
    fates = settle(history(A_MISSES)).fates
    assert {step for (name, _, step), fate in fates.items() if (name, fate) == ("a", "overlap")} == {3, 4, 5, 6, 7, 21}


def test_rebasing_overwrites_nothing() -> None:
    events = [
        replace(event, fact=replace(event.fact, mode="rebase")) if is_a(Adopted)(event) else event
        for event in history(A_MISSES)
    ]
    books = settle(events)
    assert books.discarded["overlap"] == 0
    assert books.fates[("a", 1, 5)] == "run_ended"


@pytest.mark.parametrize(
    ("reason", "fate"),
    [("stale_base", "stale_base"), ("non_finite", "refused"), ("bad_digest", "refused"), ("doubled", "overlap")],
)
def test_a_refused_contribution_gives_its_reason_to_the_steps_it_surely_covered(reason: str, fate: str) -> None:
    refused = Refused("a", 1, "contribution", reason, 6, 1)  # fragment 1 was last adopted after step 3
    fates = settle(inserted(history(A_MISSES), is_a(StepOpened, syncer_step=6), refused)).fates
    assert [fates[("a", 1, step)] for step in (3, 4, 5, 6, 7)] == ["overlap", fate, fate, fate, "overlap"]


@pytest.mark.parametrize("refused", [("a", 1, "report", "stale_epoch"), ("b", 1, "contribution", "stale_base")])
def test_a_refused_report_is_no_reason_nor_is_what_may_still_be_committed_through_another(refused: Any) -> None:
    for events in (history(), history(A_MISSES)):
        told = inserted(events, is_a(StepOpened, syncer_step=6), Refused(*refused, 6, 1))
        assert settle(told).fates == settle(events).fates


def test_a_running_log_has_steps_in_flight_and_an_ended_one_none() -> None:
    running = script().events
    last = is_a(Committed, syncer_step=32)
    events = without(running, last)
    assert settle(events).in_flight > 0
    ended = inserted(events, is_a(StepOpened, syncer_step=32), Finished(31, 0, "stopped"))
    assert settle(ended).in_flight == 0
    assert settle(ended).discarded["run_ended"] == settle(events).in_flight


def test_a_learner_that_ends_with_the_run_is_not_killed() -> None:
    events = without(history(), is_a(Committed, syncer_step=32))
    assert any(is_a(LearnerFenced, reason="stopped")(event) for event in events)
    assert settle(events).discarded["killed"] == 16
    assert settle(events).discarded["run_ended"] > 0


@pytest.mark.parametrize("kind", [LearnerFenced, LearnerLost])
def test_one_word_that_an_incarnation_is_dead_suffices(kind: type) -> None:
    assert settle(without(history(), is_a(kind, learner="c", incarnation=1))).discarded["killed"] == 16


def test_a_log_without_rules_discards_nothing_as_overwritten_and_an_empty_one_has_empty_books() -> None:
    books = settle(without(script().events, is_a(SyncerStarted)))
    assert (books.token_fragments, books.discarded["overlap"], books.balanced) == ((), 0, True)
    books = settle([])
    assert (books.processed, books.committed, books.in_flight, books.discarded) == (0, 0, 0, nothing())


def plainly(events: list[Event]) -> int:
    """Committed tokens by the definition itself."""
    commits = [event.fact for event in events if isinstance(event.fact, Committed)]
    return sum(
        event.fact.tokens
        for event in events
        if isinstance(event.fact, StepFinished)
        and any(
            (one.learner, one.incarnation) == (event.writer, event.incarnation)
            and one.base_step < event.fact.step <= one.step
            for commit in commits
            for one in commit.participants
        )
    )


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 300))
def test_every_prefix_of_every_run_balances_and_commits_what_the_definition_says(seed: int, cut: int) -> None:
    chance = Random(seed)
    absent = [(second, name) for second in range(2, 33) for name in "abc" if chance.random() < 0.3]
    events = sorted(history(absent), key=lambda event: event.at)[:cut]
    books = settle(events)
    tables = [books, *books.by_learner.values(), *books.token_fragments]
    assert all(table.balanced for table in tables)
    assert books.committed == plainly(events)
    assert sum(ledger.processed for ledger in books.by_learner.values()) == books.processed
    if any(isinstance(event.fact, Finished | RunFinished) for event in events):
        assert books.in_flight == 0


# ------------------------------------------------------------------ facts that are lost


@pytest.mark.parametrize("size", [1, 13, 10_000])
def test_lost_steps_are_committed_with_the_count_of_their_contribution_or_else_unknown(size: int) -> None:
    """Unknown with the tokens of the next step."""
    books, whole = settle(parts(losing(history(), "b", range(5, 8)), size)), settle(history())
    assert books.balanced and all(share.balanced for share in books.token_fragments)
    assert (books.processed, books.committed, books.unknown) == (whole.processed, whole.committed, 0)
    assert [share.committed for share in books.token_fragments] == [share.committed for share in whole.token_fragments]
    books, whole = settle(parts(losing(history(A_MISSES), "a", range(4, 6)), size)), settle(history(A_MISSES))
    assert books.balanced and all(share.balanced for share in books.token_fragments)
    assert books.unknown == books.by_learner["a"].unknown == 2 * 8
    assert books.discarded["overlap"] == whole.discarded["overlap"] - 2 * 8
    assert books.processed == whole.processed
