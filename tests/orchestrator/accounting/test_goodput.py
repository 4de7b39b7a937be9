"""The accounts of time: exclusive, exhaustive, and what was done by hand on paper."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import PhaseEntered, StepFinished
from orchestrator.accounting.accounts import Accounts, Participation
from orchestrator.accounting.time.accounts import Goodput
from orchestrator.accounting.time.explanations import RANKS
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, LearnerLost, LearnerRequested, RunResumed
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    SyncerStarted,
)
from tests.orchestrator.histories import BASE, END, altered, history, is_a, script, without


def account(events: list[Event]) -> Goodput | None:
    return Accounts.of(events).results().goodput


def outer_downtime(events: list[Event]) -> float | None:
    return Accounts.of(events).times.outer_downtime


def participation(events: list[Event]) -> Participation | None:
    return Accounts.of(events).tallies.participation


CLOSE = {"abs": 1e-5}  # Unix seconds as float64 are exact to a quarter of a microsecond


def test_each_second_of_the_killed_learner_has_the_category_of_its_story() -> None:
    accounts = account(history())
    assert accounts is not None
    assert (accounts.start, accounts.stop) == pytest.approx((BASE, BASE + END + 0.3), **CLOSE)
    seconds = accounts.seconds["c"]
    assert {name: spent for name, spent in seconds.items() if spent} == pytest.approx(
        {
            "productive": 8 + 16,  # steps 1 to 8, then those of the second incarnation
            "wasted_killed": 1.5,  # step 9, and half of step 10
            "fault_detect": 1.0,
            "fault_recover": 1.0,
            "provision_wait": 1.0,
            "startup": 1.0,
            "compile": 2.0,
            "bootstrap": 0.5,
            "unattributed": 0.3,  # after the last step
        },
        **CLOSE,
    )


def test_a_freeze_takes_precedence_over_the_step_it_hit() -> None:
    accounts = account(history())
    assert accounts is not None
    assert accounts.seconds["a"]["suspended"] == pytest.approx(3.0, **CLOSE)
    assert accounts.seconds["a"]["wasted_overlap"] == pytest.approx(1.0, **CLOSE)
    assert accounts.seconds["a"]["productive"] == pytest.approx(28.0, **CLOSE)


def test_an_incarnation_that_never_found_a_place_waited_for_one_to_the_end() -> None:
    gone = without(
        history(),
        lambda event: (
            (event.writer, event.incarnation) == ("c", 2)
            or (
                (getattr(event.fact, "learner", ""), getattr(event.fact, "incarnation", 0)) == ("c", 2)
                and not isinstance(event.fact, LearnerRequested)
            )
        ),
    )
    accounts = account(gone)
    assert accounts is not None
    requested = next(event.at for event in gone if is_a(LearnerRequested, learner="c", incarnation=2)(event))
    assert accounts.seconds["c"]["provision_wait"] == pytest.approx(accounts.stop - requested, **CLOSE)


def test_the_formulas_by_hand() -> None:
    accounts = account(history())
    assert accounts is not None
    configured = 3 * (END + 0.3)
    # c is away from 9.5 until it attaches at 15.6; a is frozen from 20.5 and has its lease again at 24.
    assert accounts.availability == pytest.approx((configured - 6.1 - 3.5) / configured, abs=1e-6)
    assert accounts.goodput_time == pytest.approx((24 + 28 + 32) / configured, abs=1e-6)
    assert accounts.global_downtime_s == 0.0
    assert accounts.outer_downtime_s == pytest.approx(0.0, **CLOSE)


def test_waits_are_counted_apart_from_the_step_they_delayed() -> None:
    for waited_for, category in (("span", "data_stall"), ("adoption", "sync_blocked")):
        change = {"seconds": 0.6, "waited_s": 0.4, "waited_for": waited_for}
        accounts = account(altered(history(), is_a(StepFinished, step=5), **change))
        assert accounts is not None
        assert accounts.seconds["a"][category] == pytest.approx(0.4, **CLOSE)
        assert accounts.seconds["a"]["productive"] == pytest.approx(27.6, **CLOSE)


def test_steps_that_claim_more_time_than_there_was_are_cut_at_the_boundary_before() -> None:
    events = altered(history(), is_a(StepFinished, step=5), seconds=3.0, waited_s=1.0, waited_for="span")
    accounts = account(events)
    assert accounts is not None
    assert accounts.seconds["a"]["productive"] == pytest.approx(28.0, **CLOSE)
    assert accounts.seconds["a"]["data_stall"] == 0.0


def test_a_death_that_nobody_injected_begins_at_the_last_sign_of_life() -> None:
    accounts = account(without(history(), is_a(FaultInjected, fault_kind="kill")))
    assert accounts is not None
    assert accounts.seconds["c"]["fault_detect"] == pytest.approx(1.5, **CLOSE)
    assert accounts.seconds["c"]["wasted_killed"] == pytest.approx(1.0, **CLOSE)


def test_a_freeze_of_which_nobody_says_that_it_healed_lasts_as_long_as_it_was_to() -> None:
    accounts = account(without(history(), is_a(FaultHealed)))
    assert accounts is not None
    assert accounts.seconds["a"]["suspended"] == pytest.approx(3.0, **CLOSE)


def test_a_freeze_that_is_given_up_for_dead_ends_there() -> None:
    events = without(history(), is_a(FaultHealed))
    events = altered(events, is_a(FaultInjected, fault_kind="kill"), fault_kind="freeze", duration_s=60.0)
    accounts = account(events)
    assert accounts is not None
    assert accounts.seconds["c"]["suspended"] == pytest.approx(1.0, **CLOSE)
    assert accounts.seconds["c"]["fault_recover"] == pytest.approx(1.0, **CLOSE)


def test_a_learner_that_is_never_requested_again_recovers_until_the_end() -> None:
    events = [event for event in history() if (event.writer, event.incarnation) != ("c", 2)]
    events = without(events, lambda event: getattr(event.fact, "incarnation", 0) == 2)
    accounts = account(events)
    assert accounts is not None
    assert accounts.seconds["c"]["fault_recover"] == pytest.approx(END + 0.3 - 10.5, **CLOSE)


def test_no_lease_anywhere_is_global_downtime() -> None:
    events = history()
    start, stop = BASE + 12.0, BASE + 14.5
    for name in "ab":
        events = [
            *events,
            *(
                type(events[0])("syncer", 9, number, at, fact)
                for number, (at, fact) in enumerate(
                    [
                        (start, LeaseExpired(name, 1, "stepping", 3.0)),
                        (stop, LeaseRenewed(name, 1, 5.0)),
                    ],
                    start=2 * "ab".index(name),
                )
            ),
        ]
    accounts = account(events)
    assert accounts is not None
    assert accounts.global_downtime_s == pytest.approx(2.5, **CLOSE)


def test_while_everyone_drains_no_learner_steps_and_that_is_global_downtime() -> None:
    run = script()
    for name, unit in run.units.items():
        run.say(END + 0.1, PhaseEntered("draining"), name, unit.incarnation)
    run.say(END + 5.3, Finished(END, run.tokens_committed, "stopped"))
    accounts = account(run.events)
    assert accounts is not None
    assert accounts.global_downtime_s == pytest.approx(5.2, **CLOSE)
    assert {name: spent["drain"] for name, spent in accounts.seconds.items()} == pytest.approx(
        dict.fromkeys("abc", 5.2), **CLOSE
    )


def test_outer_downtime_is_what_a_gap_has_beyond_two_median_intervals() -> None:
    events = without(history(), lambda event: is_a(Committed)(event) and 8 <= event.fact.syncer_step <= 14)
    assert outer_downtime(events) == pytest.approx(10 - 2 * 2, **CLOSE)


def test_participation_counts_contributions_against_those_that_could_have_come() -> None:
    share = participation(history())
    assert share is not None
    assert share.mean == 42 / (16 * 3)
    assert share.alive_mean == 42 / 43
    assert share.by_learner == {"a": 14 / 16, "b": 1.0, "c": 12 / 16}


def test_what_the_log_does_not_tell_is_none() -> None:
    events = history()
    assert account([]) is None
    assert account(without(events, is_a(SyncerStarted))) is None
    assert account(without(events, is_a(StepFinished))) is None
    nothing_committed = without(events, lambda event: is_a(Committed)(event) or is_a(Finished)(event))
    assert account(nothing_committed) is None
    assert participation(nothing_committed) is None
    assert outer_downtime(nothing_committed) is None


DROPPABLE = (FaultInjected, FaultHealed, LearnerLost, LearnerFenced, LearnerRequested, LearnerAttached, LeaseRenewed)


@given(seed=st.integers(0, 2**32), cut=st.integers(120, 300))
def test_the_shares_sum_to_one_whatever_is_missing_or_off(seed: int, cut: int) -> None:
    chance = Random(seed)
    events = sorted(history(), key=lambda event: event.at)[:cut]
    events = [event for event in events if not (isinstance(event.fact, DROPPABLE) and chance.random() < 0.4)]
    late = [type(e)(e.writer, e.incarnation, e.sequence, e.at + chance.uniform(-2, 2), e.fact) for e in events]
    accounts = account(late)
    assert accounts is not None
    assert set(accounts.categories) == set(RANKS)
    assert all(share >= 0 for share in accounts.categories.values())
    assert sum(accounts.categories.values()) == pytest.approx(1.0, abs=1e-9)
    assert 0.0 <= accounts.availability <= 1.0 + 1e-12
    assert 0.0 <= accounts.global_downtime_s <= accounts.wall_s


def test_almost_all_time_of_a_fully_told_run_is_explained() -> None:
    accounts = account(history())
    assert accounts is not None
    assert accounts.categories["unattributed"] < 0.01


def test_time_in_which_there_was_nothing_of_a_run_is_nobodys() -> None:
    """Everybody stops at half, and goes on an hour later as the same incarnations."""
    whole, pause_s = account(history()), 3600.0
    events, half = history(), BASE + 20.0
    before = [event for event in events if event.at <= half]
    after = [replace(event, at=event.at + pause_s) for event in events if event.at > half]
    number = 1 + max(event.sequence for event in events if (event.writer, event.incarnation) == ("orchestrator", 1))
    gone_on = Event("orchestrator", 1, number, half + pause_s - 0.2, RunResumed(1, 1, ("a", "b"), ()))
    paused = account([*before, gone_on, *after])
    assert whole is not None and paused is not None
    assert paused.paused_s == pytest.approx(pause_s, abs=1.5)
    assert paused.wall_s == pytest.approx(whole.wall_s, abs=1.5)
    assert sum(paused.categories.values()) == pytest.approx(1.0)
    assert paused.goodput_time == pytest.approx(whole.goodput_time, abs=0.05)
    assert outer_downtime([*before, gone_on, *after]) == pytest.approx(outer_downtime(history()) or 0.0, abs=1.5)
