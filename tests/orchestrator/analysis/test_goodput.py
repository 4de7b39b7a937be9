"""The accounts of time: exclusive, exhaustive, and what was done by hand on paper."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.protocol.facts import PhaseEntered, StepFinished
from orchestrator.analysis.summary import summarise
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    PoolScaled,
    RunResumed,
)
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    SyncerStarted,
)
from tests.orchestrator.histories import (
    BASE,
    CATEGORIES,
    END,
    accounts_of,
    altered,
    history,
    is_a,
    renumbered,
    script,
    without,
)


def account(events: list[Event]) -> SimpleNamespace:
    found = accounts_of(events)
    assert found is not None
    return found


def outer_downtime(events: list[Event]) -> float | None:
    downtime: float | None = account(events).outer_downtime_s
    return downtime


CLOSE = {"abs": 1e-5}  # Unix seconds as float64 are exact to a quarter of a microsecond


def waited(seconds: float, waited_s: float, waited_for: str) -> list[Event]:
    change = {"seconds": seconds, "waited_s": waited_s, "waited_for": waited_for}
    return altered(history(), is_a(StepFinished, step=5), **change)


def of_second(event: Event) -> bool:
    """Said by or of the second incarnation of c."""
    fact = event.fact
    return (event.writer, event.incarnation) == ("c", 2) or (
        (getattr(fact, "learner", ""), getattr(fact, "incarnation", 0)) == ("c", 2)
    )


UNHEALED = without(history(), is_a(FaultHealed))
KILL = is_a(FaultInjected, fault_kind="kill")
KILLED = {
    "productive": 8 + 16,  # steps 1 to 8, then those of the second incarnation
    "wasted_killed": 1.5,  # step 9, and half of step 10
    "fault_detect": 1.0,
    "fault_recover": 1.0,
    "provision_wait": 1.0,
    "startup": 1.0,
    "compile": 2.0,
    "bootstrap": 0.5,
    "unattributed": 0.3,  # after the last step
}
SECONDS: dict[str, tuple[list[Event], str, dict[str, float]]] = {  # the log, a learner, and its seconds by category
    "each second of the killed learner has the category of its story": (
        history(),
        "c",
        dict.fromkeys(CATEGORIES, 0.0) | KILLED,
    ),
    "a freeze takes precedence over the step it hit": (
        history(),
        "a",
        {"suspended": 3.0, "wasted_overlap": 1.0, "productive": 28.0},
    ),
    "a cut link is no freeze": (
        altered(history(), is_a(FaultInjected, fault_kind="freeze"), fault_kind="link"),
        "a",
        {"suspended": 0.0},
    ),
    "an incarnation that never found a place waited for one to the end": (
        without(history(), lambda event: of_second(event) and not isinstance(event.fact, LearnerRequested)),
        "c",
        {"provision_wait": END + 0.3 - 11.5},
    ),
    "a learner that is wanted waits also until it is asked for": (
        [
            *history(),
            Event("orchestrator", 9, 0, BASE + 3.0, PoolScaled("pool", 4, ("d",), (), "there is room")),
            Event("orchestrator", 9, 1, BASE + 8.0, LearnerRequested("d", 1, "pool", None)),
        ],
        "d",
        {"provision_wait": END + 0.3 - 3.0, "unattributed": 0.0},
    ),
    "a wait for samples is counted apart from its step": (
        waited(0.6, 0.4, "span"),
        "a",
        {"data_stall": 0.4, "productive": 27.6},
    ),
    "a wait for a version too": (waited(0.6, 0.4, "adoption"), "a", {"sync_blocked": 0.4, "productive": 27.6}),
    "a step that claims more time than there was is cut at the boundary before": (
        waited(3.0, 1.0, "span"),
        "a",
        {"data_stall": 0.0, "productive": 28.0},
    ),
    "a death that nobody injected begins at the last sign of life": (
        without(history(), KILL),
        "c",
        {"fault_detect": 1.5, "wasted_killed": 1.0},
    ),
    "a freeze of which nobody says that it healed lasts as long as it was to": (UNHEALED, "a", {"suspended": 3.0}),
    "a freeze that is given up for dead ends there": (
        altered(UNHEALED, KILL, fault_kind="freeze", duration_s=60.0),
        "c",
        {"suspended": 1.0, "fault_recover": 1.0},
    ),
    "a learner that is never requested again recovers until the end": (
        without(history(), of_second),
        "c",
        {"fault_recover": END + 0.3 - 10.5},
    ),
}


@pytest.mark.parametrize("claim", SECONDS)
def test_the_seconds_of_a_learner(claim: str) -> None:
    events, learner, told = SECONDS[claim]
    accounts = account(events)
    assert (accounts.start, accounts.stop) == pytest.approx((BASE, BASE + END + 0.3), **CLOSE)
    spent = accounts.seconds[learner]
    assert {name: spent.get(name, 0.0) for name in told} == pytest.approx(told, **CLOSE)


def test_the_formulas_by_hand() -> None:
    accounts = account(history())
    configured = 3 * (END + 0.3)
    # c is away from 9.5 until it attaches at 15.6; a is frozen from 20.5 and has its lease again at 24.
    assert accounts.availability == pytest.approx((configured - 6.1 - 3.5) / configured, abs=1e-6)
    assert accounts.goodput_time == pytest.approx((24 + 28 + 32) / configured, abs=1e-6)
    assert accounts.global_downtime_s == 0.0
    assert accounts.outer_downtime_s == pytest.approx(0.0, **CLOSE)


def test_no_lease_anywhere_is_global_downtime() -> None:
    start, stop, events = BASE + 12.0, BASE + 14.5, history()
    for number, name in enumerate("ab"):
        events.append(Event("syncer", 9, 2 * number, start, LeaseExpired(name, 1, "stepping", 3.0)))
        events.append(Event("syncer", 9, 2 * number + 1, stop, LeaseRenewed(name, 1, 5.0)))
    assert account(events).global_downtime_s == pytest.approx(2.5, **CLOSE)


def test_while_everyone_drains_no_learner_steps_and_that_is_global_downtime() -> None:
    run = script()
    for name, unit in run.units.items():
        run.say(END + 0.1, PhaseEntered("draining"), name, unit.incarnation)
    run.say(END + 5.3, Finished(END, run.tokens_committed, "stopped"))
    accounts = account(run.events)
    assert accounts.global_downtime_s == pytest.approx(5.2, **CLOSE)
    assert {name: spent["drain"] for name, spent in accounts.seconds.items()} == pytest.approx(
        dict.fromkeys("abc", 5.2), **CLOSE
    )


def test_outer_downtime_is_what_a_gap_has_beyond_two_median_intervals() -> None:
    events = without(history(), lambda event: is_a(Committed)(event) and 8 <= event.fact.syncer_step <= 14)
    assert outer_downtime(events) == pytest.approx(10 - 2 * 2, **CLOSE)


def test_participation_counts_contributions_against_those_that_could_have_come() -> None:
    told = {"mean": 42 / (16 * 3), "alive_mean": 42 / 43, "by_learner": {"a": 14 / 16, "b": 1.0, "c": 12 / 16}}
    assert summarise(history(), {}, [])["participation"] == told


def test_what_the_log_does_not_tell_is_none() -> None:
    events = history()
    silent = without(events, lambda event: is_a(Committed)(event) or is_a(Finished)(event))
    for log in ([], without(events, is_a(SyncerStarted)), without(events, is_a(StepFinished)), silent):
        assert accounts_of(log) is None
    told = summarise(silent, {}, [])
    assert (told["participation"], told["outer_downtime_s"], told["goodput_categories"]) == (None, None, None)


@pytest.mark.parametrize("noticed", [10.5, 11.4])
def test_from_leaving_in_order_until_its_successor_is_asked_for_is_no_time_without_a_reason(noticed: float) -> None:
    """Learner c leaves at 9.6; that its process has ended is noticed later."""
    gone = {is_a(LearnerFenced, learner="c"): 9.6, is_a(LearnerLost, learner="c"): noticed}
    events = altered(
        without(history(), is_a(FaultInjected, fault_kind="kill")),
        is_a(LearnerFenced, reason="killed"),
        reason="drained",
    )
    dated = [
        next((replace(e, at=BASE + at) for is_it, at in gone.items() if is_it(e) and e.at < BASE + 20), e)
        for e in events
    ]
    told = renumbered(sorted(dated, key=lambda event: event.at))
    assert account(told).seconds["c"]["fault_recover"] == pytest.approx(11.5 - 9.6, **CLOSE)
    assert account(told).seconds["c"]["unattributed"] == account(history()).seconds["c"]["unattributed"]


DROPPABLE = (FaultInjected, FaultHealed, LearnerLost, LearnerFenced, LearnerRequested, LearnerAttached, LeaseRenewed)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.integers(120, 300))
def test_the_shares_sum_to_one_whatever_is_missing_or_off(seed: int, cut: int) -> None:
    chance = Random(seed)
    events = sorted(history(), key=lambda event: event.at)[:cut]
    events = [event for event in events if not (isinstance(event.fact, DROPPABLE) and chance.random() < 0.4)]
    late = [type(e)(e.writer, e.incarnation, e.sequence, e.at + chance.uniform(-2, 2), e.fact) for e in events]
    accounts = account(late)
    assert set(accounts.categories) == set(CATEGORIES)
    assert all(share >= 0 for share in accounts.categories.values())
    assert sum(accounts.categories.values()) == pytest.approx(1.0, abs=1e-9)
    assert 0.0 <= accounts.availability <= 1.0 + 1e-12
    assert 0.0 <= accounts.global_downtime_s <= accounts.wall_s


def test_time_in_which_there_was_nothing_of_a_run_is_nobodys() -> None:
    """Everybody stops at half, and goes on an hour later as the same incarnations."""
    whole, pause_s = account(history()), 3600.0
    events, half = history(), BASE + 20.0
    before = [event for event in events if event.at <= half]
    after = [replace(event, at=event.at + pause_s) for event in events if event.at > half]
    number = 1 + max(event.sequence for event in events if (event.writer, event.incarnation) == ("orchestrator", 1))
    gone_on = Event("orchestrator", 1, number, half + pause_s - 0.2, RunResumed(1, 1, ("a", "b"), ()))
    paused = account([*before, gone_on, *after])
    assert paused.paused_s == pytest.approx(pause_s, abs=1.5)
    assert paused.wall_s == pytest.approx(whole.wall_s, abs=1.5)
    assert sum(paused.categories.values()) == pytest.approx(1.0)
    assert paused.goodput_time == pytest.approx(whole.goodput_time, abs=0.05)
    assert outer_downtime([*before, gone_on, *after]) == pytest.approx(outer_downtime(history()) or 0.0, abs=1.5)
