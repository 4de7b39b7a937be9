"""The report's series: against what was done by hand on the small run, and against the summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from learners.protocol.facts import StepFinished
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import drive
from orchestrator.accounting.summary import summarise
from orchestrator.accounting.time.explanations import RANKS
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import check
from orchestrator.eventlog.block import Block, block_of
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, FaultInjected, LearnerRequested
from orchestrator.report import tables
from orchestrator.report.canvas import labels
from orchestrator.report.data import Data, FaultMark, collect
from orchestrator.report.figures import GROUPS, grouped, share_class
from orchestrator.report.fold import TIMELINE_FIRST, TIMELINE_LAST, ReportFold
from orchestrator.report.series import Series, chunks, merged
from orchestrator.report.tables import timeline
from outer.protocol.facts import LearnerFenced, LeaseExpired
from tests.orchestrator.histories import BASE, END, altered, history, inserted, is_a, without
from tests.orchestrator.order import canonical

RECIPE: dict[str, Any] = {"name": "small", "sync": {"codec": "bf16"}}


def data(events: list[Event] | None = None, recipe: dict[str, Any] = RECIPE) -> Data:
    log = history() if events is None else events
    return collected(log, summarise(log, recipe, verdicts := check(log)), verdicts, recipe)


def collected(log: list[Event], summary: Any, verdicts: list[Verdict], recipe: dict[str, Any] = RECIPE) -> Data:
    return collect(folded(blocks(log)), recipe, summary, verdicts)


def folded(blocks: Iterable[Block]) -> ReportFold:
    accounts = Accounts()
    fold = ReportFold(accounts)
    drive([accounts, fold], blocks)
    return fold


def blocks(events: list[Event], rows: int = 1 << 20) -> Iterator[Block]:
    """These events in the log's order, in blocks of so many rows."""
    ordered = canonical(events)
    return (block_of(ordered[start : start + rows], start) for start in range(0, len(ordered), rows))


def test_neighbours_are_shared_out_evenly_and_drawn_by_median_and_quantiles() -> None:
    assert [list(chunk) for chunk in chunks(range(7), 3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert list(chunks([], 3)) == []
    series = Series(1)
    series.take([0, 1, 2, 3, 4], [5, 1, 3, 2, 4])
    [bin] = series.bins()
    assert (bin.x, *(bin.columns[0].middle(share) for share in (0.5, 0.1, 0.9))) == (2.0, 3.0, 1.0, 5.0)
    series.most = 9
    assert [(bin.x, bin.columns[0].median) for bin in series.bins()] == list(enumerate((5, 1, 3, 2, 4)))


def test_auxiliary_values_are_tabulated_by_their_means_over_the_first_and_the_last_steps() -> None:
    assert not tables.auxiliaries(data()).rows, "a task without any"
    told, steps = [], 0
    for event in history():
        if isinstance(event.fact, StepFinished):
            steps += 1
            event = replace(event, fact=replace(event.fact, aux={"accuracy": float(steps)}))
        told.append(event)
    [(name, first, last, whole)] = tables.auxiliaries(data(told)).rows
    assert name == "accuracy" and float(first) < float(whole) < float(last)


def test_spans_that_nearly_touch_are_one() -> None:
    assert merged([(5.0, 6.0), (0.0, 1.0), (1.2, 2.0), (0.5, 0.6)], 0.3) == [(0.0, 2.0), (5.0, 6.0)]


def test_faults_are_marked_on_the_incarnation_that_they_hit_until_its_recovery() -> None:
    kill, freeze = data().marks
    assert (kill.number, kill.kind, kill.target, kill.incarnation) == (1, "kill", "c", 1)
    assert (kill.at_s, kill.until_s) == pytest.approx((9.5, 18.2), abs=1e-5)
    assert (freeze.number, freeze.kind, freeze.target, freeze.incarnation) == (2, "freeze", "a", 1)


def test_a_death_that_nobody_injected_is_marked_too() -> None:
    death = data(without(history(), is_a(FaultInjected, fault_kind="kill"))).marks[0]
    assert (death.kind, death.target, death.incarnation) == ("kill", "c", 1)
    assert death.at_s == pytest.approx(9.0, abs=1e-5)


def test_a_kind_of_fault_that_the_summary_does_not_list_is_marked_and_listed_behind_the_others() -> None:
    strange = FaultInjected(7, "slow", "b", 1, 1, 2.0)
    events = inserted(history(), is_a(FaultInjected, fault_kind="kill"), strange)
    told = data(events)
    told.summary["faults"][:] = [row for row in told.summary["faults"] if row["target"] != "b"]
    again = collected(events, told.summary, [*told.verdicts])
    assert [(mark.number, mark.kind, mark.target) for mark in again.marks][-1] == (3, "slow", "b")
    assert tables.faults(again).rows[-1][:3] == ("3", "slow", "b")


def test_the_lanes_tell_each_incarnation_from_its_request_to_its_end() -> None:
    told = {(lane.learner, lane.incarnation): lane for lane in data().lanes}
    assert list(told) == [("a", 1), ("b", 1), ("c", 1), ("c", 2)]
    first, second = told["c", 1], told["c", 2]
    assert [phase for _, _, phase in second.phases] == [
        "placing", "importing", "importing", "compiling", "joining", "stepping",
    ]  # fmt: skip
    starts = [start for start, _, _ in second.phases]
    assert [starts[0], *starts[-3:]] == pytest.approx([11.5, 13.5, 15.5, 16.0], abs=1e-5)
    assert first.phases[-1][1] == pytest.approx(9.5, abs=1e-5)
    assert first.dead == pytest.approx((9.5, 11.5), abs=1e-5)
    assert (first.reason, first.steps, second.dead) == ("killed", 9, None)
    assert told["a", 1].frozen == (pytest.approx((20.5, 23.5), abs=1e-5),)
    assert told["a", 1].expired == (pytest.approx((22.5, 24.0), abs=1e-5),)


def test_a_lease_that_expires_ends_with_the_learner() -> None:
    lapses = [
        Event("syncer", 9, number, BASE + at, LeaseExpired(name, 1, "stepping", 3.0))
        for number, (at, name) in enumerate([(9.8, "c"), (15.0, "a")])
    ]
    told = {(lane.learner, lane.incarnation): lane for lane in data([*history(), *lapses]).lanes}
    assert told["c", 1].expired == (), "it was dead by then"
    start, stop = told["a", 1].expired[-1]
    assert stop - start == pytest.approx(END - 15.0, abs=0.5), "to its end"


def test_a_learner_that_only_waits_for_a_place_when_the_log_ends_has_a_lane_and_an_account() -> None:
    """A run that fails while a learner is being restarted."""
    events = [event for event in history() if event.at < BASE + 11.6]
    told = data(events)
    assert told.seconds
    assert (told.lanes[-1].incarnation, told.lanes[-1].begun, told.lanes[-1].dead) == (2, None, None)


def test_each_round_counts_who_took_part() -> None:
    rounds = data().rounds
    assert rounds is not None
    assert rounds.commits == (2,) * 8
    assert rounds.by_learner["b"] == (2,) * 8
    assert rounds.by_learner["c"] == (2, 2, 0, 0, 2, 2, 2, 2)  # dead from 9.5, stepping again from 17
    assert rounds.by_learner["a"] == (2, 2, 2, 2, 2, 0, 2, 2)  # frozen at 22, overwritten at 24


@pytest.mark.parametrize(
    ("taken", "commits", "level"), [(0, 0, 0), (0, 8, 0), (1, 8, 1), (2, 8, 2), (4, 8, 3), (7, 8, 4), (8, 8, 5)]
)
def test_none_and_all_are_shares_of_their_own(taken: int, commits: int, level: int) -> None:
    assert share_class(taken, commits) == level


def test_the_bytes_of_all_links_are_those_of_the_summary() -> None:
    told = data()
    wire = told.summary["wire_bytes"]
    assert sum(link.up or 0 for link in told.links) == wire["up"] > 0
    assert sum(link.down + link.joins for link in told.links) == wire["down"] > 0
    assert {link.learner: link.joins for link in told.links} == {"a": 120, "b": 120, "c": 240}
    a_step = 2 * 2 / 3 * 30 * 4  # ring, three learners, 30 elements of float32
    assert [link.data_parallel for link in told.links] == pytest.approx([link.steps * a_step for link in told.links])
    assert data(recipe={}).links[0].total is None


def test_held_out_losses_stand_where_their_parameters_were_committed() -> None:
    first, last = data().held_out
    assert (first.at_s, first.tokens, first.value) == (0.0, 0, 5.0)
    assert (last.at_s, last.tokens) == pytest.approx((32.2, 864), abs=1e-5)


def test_a_loss_that_is_not_finite_is_left_out_and_counted() -> None:
    told = data(altered(altered(history(), is_a(StepFinished), loss=math.nan), is_a(Evaluated), loss=math.inf))
    assert told.not_finite == 1
    assert len(told.held_out) == 1
    assert all(math.isfinite(bin.middle) for bin in told.training)


def test_every_second_of_the_accounts_is_in_one_colour() -> None:
    for spent in data().seconds.values():
        assert sum(grouped(spent).values()) == pytest.approx(sum(spent.values()))
    assert grouped({"something new": 2.0})["unexplained"] == 2.0
    known = {name for _, names in GROUPS.values() for name in names}
    assert known == set(RANKS), "each category of the accounts has a colour"


def test_the_books_table_has_every_fate_and_sums_to_what_was_processed() -> None:
    rows = {row[0]: int(row[1].replace(",", "")) for row in tables.books(data()).rows}
    assert rows["processed"] == sum(count for fate, count in rows.items() if fate != "processed") == 888


def test_failed_checks_come_first() -> None:
    events = without(history(), is_a(LearnerFenced, reason="killed"))
    results = [
        row[0]
        for row in tables.checks(data(altered(events, is_a(Evaluated, syncer_step=32), loss=math.nan)).verdicts).rows
    ]
    assert results == sorted(results, key=["✗ failed", "? unknown", "✓ passed", "– not exercised"].index)


def test_the_timeline_tells_rare_events_of_any_kind_and_counts_what_it_leaves_out() -> None:
    told = timeline(data())
    kinds = {row[2] for row in told.rows}
    assert {"LearnerLost", "FaultInjected", "LeaseExpired", "RunFinished"} <= kinds
    assert not kinds & {"StepFinished", "Adopted", "Committed"}
    many = [LearnerRequested("b", 2, "pool", None)] * 300
    long = timeline(data(inserted(history(), is_a(LearnerRequested), *many)))
    assert len(long.rows) == TIMELINE_FIRST + TIMELINE_LAST
    assert f"{len(told.rows) + 300 - TIMELINE_FIRST - TIMELINE_LAST:,} between them" in long.note


def test_faults_that_are_too_close_for_numbers_share_them_or_have_none() -> None:
    def mark(number: int) -> FaultMark:
        return FaultMark(number, "kill", "a", 1, 0.0, 0, None)

    assert labels([(mark(1), 0.0), (mark(2), 5.0), (mark(3), 100.0)], 1.0) == [("1,2", 0.0), ("3", 100.0)]
    assert labels([(mark(n), 10.0 * n) for n in range(9)], 1.0) == [], "a chain of them would point nowhere"
    assert labels([(mark(n), 50.0 * n) for n in range(30)], 1.0) == []


def test_a_very_long_table_says_what_it_leaves_out() -> None:
    told = tables.table("t", "a|b", [(str(n), "x" * 40) for n in range(1000)], (0,))
    assert len(told.rows) == tables.ROWS_MOST
    assert "of 1,000" in told.note
    assert told.long == {1}
