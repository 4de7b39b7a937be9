"""The report's series: against what was done by hand on the small run, and against the summary."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learners.protocol.facts import StepFinished
from orchestrator.analysis.checks import check
from orchestrator.analysis.database import filled
from orchestrator.analysis.summary import summarise, summary_of
from orchestrator.analysis.verdicts import Verdict
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, FaultInjected
from orchestrator.report import tables
from orchestrator.report.data import Data, collect
from orchestrator.report.figures import GROUPS, grouped
from tests.orchestrator.histories import BASE, CATEGORIES, altered, history, inserted, is_a, restarted, without

RECIPE: dict[str, Any] = {"name": "small", "sync": {"codec": "bf16"}}


def data(events: list[Event] | None = None, recipe: dict[str, Any] = RECIPE) -> Data:
    log = history() if events is None else events
    return collected(log, summarise(log, recipe, verdicts := check(log)), verdicts)


def collected(log: list[Event], summary: Any, verdicts: list[Verdict]) -> Data:
    database = filled(log)
    summary_of(database, {}, verdicts)
    return collect(database, summary, verdicts)


def test_what_a_later_epoch_repeats_counts_once() -> None:
    once, twice = data(), data(restarted(history()))
    assert twice.waits == once.waits
    assert tables.wire(twice).rows[0][0] == tables.wire(once).rows[0][0]


def test_a_long_series_is_drawn_as_the_medians_and_quantiles_of_neighbours() -> None:
    rng, count = np.random.default_rng(1), 4_804
    losses = rng.normal(5.0, 1.0, count)
    step = next(event for event in history() if isinstance(event.fact, StepFinished))
    events = [
        replace(step, sequence=n, at=BASE + n, fact=replace(step.fact, step=n + 1, loss=float(loss)))
        for n, loss in enumerate(losses)
    ]
    bins = data(events).training
    edges = [n * count // 240 for n in range(241)]
    assert len(bins) == 240
    for found, start, stop in zip(bins, edges, edges[1:], strict=False):
        here = np.sort(losses[start:stop])
        assert (found.low, found.middle, found.high) == tuple(
            here[max(1, math.ceil(share * len(here))) - 1] for share in (0.1, 0.5, 0.9)
        )


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


def test_faults_are_marked_until_their_recovery() -> None:
    kill, freeze = data().marks
    assert (kill.number, kill.kind, kill.target) == (1, "kill", "c")
    assert (kill.at_s, kill.until_s) == pytest.approx((9.5, 18.2), abs=1e-5)
    assert (freeze.number, freeze.kind, freeze.target) == (2, "freeze", "a")
    death, _ = data(without(history(), is_a(FaultInjected, fault_kind="kill"))).marks
    assert (death.kind, death.target) == ("kill", "c"), "though nobody injected it"


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
    assert (first.reason, second.dead) == ("killed", None)
    assert told["a", 1].frozen == (pytest.approx((20.5, 23.5), abs=1e-5),)
    assert told["a", 1].expired == (pytest.approx((22.5, 24.0), abs=1e-5),)


def test_a_learner_that_only_waits_for_a_place_when_the_log_ends_has_a_lane_and_an_account() -> None:
    """A run that fails while a learner is being restarted."""
    events = [event for event in history() if event.at < BASE + 11.6]
    told = data(events)
    assert told.seconds
    assert (told.lanes[-1].incarnation, told.lanes[-1].dead) == (2, None)
    assert "stepping" not in {phase for _, _, phase in told.lanes[-1].phases}


def test_the_bytes_stand_beside_those_of_data_parallel_training() -> None:
    told = data()
    wire, [row] = told.summary["wire_bytes"], tables.wire(told).rows
    all_reduced = told.steps * 2 * 2 / 3 * 30 * 4  # ring, three learners, 30 elements of float32
    assert row[-1] == f"{all_reduced / (wire['up'] + wire['down']):.1f}×"
    assert tables.wire(data(recipe={})).rows[0][0] == tables.wire(data(recipe={})).rows[0][3] == "-"


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
    assert known == set(CATEGORIES), "each category of the accounts has a colour"


def test_the_books_table_has_every_fate_and_sums_to_what_was_processed() -> None:
    rows = {row[0]: int(row[1].replace(",", "")) for row in tables.books(data()).rows}
    assert rows["processed"] == sum(count for fate, count in rows.items() if fate != "processed") == 888


def test_a_very_long_table_says_what_it_leaves_out() -> None:
    told = tables.table("t", "a|b", [(str(n), "x" * 40) for n in range(1000)], (0,))
    assert len(told.rows) == tables.ROWS_MOST
    assert "of 1,000" in told.note
    assert told.long == {1}
