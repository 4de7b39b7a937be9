"""The accounts as a fold: however a log is cut into blocks, and wherever the state is saved, results are the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pickle import dumps
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.simulation.cluster import Cluster, make_learner, make_syncer
from chaos.simulation.profile import draw
from learners.protocol.facts import Adopted, StepFinished
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.roster import REMAINS
from orchestrator.accounting.summary import summarise
from orchestrator.accounting.time.explanations import Spans, paint
from orchestrator.accounting.time.fault_table import ROWS
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
)
from outer.protocol.facts import Committed, LearnerFenced
from tests.orchestrator.histories import BASE, END, Script, history, is_a, script
from tests.orchestrator.order import canonical

Log = list[Event]


class Folds:
    """All accounts and checks, as one."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.suite = Suite(self.accounts)

    def take(self, events: Log, start: int) -> None:
        block = block_of(events, start)
        self.accounts.take(block)
        self.suite.take(block)


def folded(events: Log, cuts: Iterable[int] = ()) -> Folds:
    """The folds of a log in its order, cut into blocks at these places."""
    folds = Folds()
    edges = sorted({0, len(events), *cuts})
    for start, stop in pairwise(edges):
        folds.take(events[start:stop], start)
    return folds


def simulated(seed: int, profile: str) -> Log:
    cluster = Cluster(draw(seed, profile), make_syncer, make_learner)
    cluster.run()
    return canonical(cluster.context.events())


def told(folds: Folds) -> tuple[dict[str, Any], list[Verdict]]:
    return summarise(folds.accounts, {}, []), folds.suite.verdicts()


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal, numbers up to the rounding of sums of seconds that are no multiples of 2**-22."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_same(value, other[name], f"{where}.{name}")
    elif isinstance(one, (list, tuple)) and not isinstance(one, Verdict):
        assert len(one) == len(other), where
        for place, (value, another) in enumerate(zip(one, other, strict=True)):
            assert_same(value, another, f"{where}[{place}]")
    else:
        assert one == (pytest.approx(other) if isinstance(one, float) else other), where


# ------------------------------------------------------------------ blocks


@pytest.mark.parametrize(
    ("profile", "seed"),
    [(profile, seed) for profile in ("calm", "membership", "storage", "joining", "lockstep") for seed in (1, 2)],
)
def test_blocks_change_no_result_of_a_simulated_run(profile: str, seed: int) -> None:
    events = simulated(seed, profile)
    rng = Random(seed)
    cuts = [rng.randrange(len(events)) for _ in range(20)]
    whole = told(folded(events))
    assert_same(told(folded(events, cuts)), whole)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 300), max_size=8))
def test_blocks_change_no_result_of_the_small_run(cuts: list[int]) -> None:
    events = canonical(history())
    cuts = [cut for cut in cuts if cut < len(events)]
    assert told(folded(events, cuts)) == told(folded(events))


def test_results_midway_are_those_of_the_log_so_far_and_change_nothing() -> None:
    events = canonical(history())
    folds, half = Folds(), len(events) // 2
    folds.take(events[:half], 0)
    assert told(folds) == told(folded(events[:half]))
    folds.take(events[half:], half)
    assert told(folds) == told(folded(events))


# ------------------------------------------------------------------ bounds


def long_run(rounds: int) -> Script:
    """Learner c dies and is restarted in every round of the small run, `rounds` times over."""
    run = Script()
    run.say(-5.0, is_started())
    for name in "abc":
        run.start(-4.6, name, 1)
        run.join(-0.5, name, 1)
    for number in range(1, rounds + 1):
        for second in range(20 * number - 19, 20 * number + 1):
            for name in "abc":
                run.step(float(second), name)
            run.sync(second, "abc")
        run.say(20 * number + 0.3, LearnerLost("c", number, "died", ""), "orchestrator")
        run.say(20 * number + 0.35, LearnerFenced("c", number, "killed"))
        run.say(20 * number + 0.4, LearnerRequested("c", number + 1, "p", None), "orchestrator")
        run.say(20 * number + 0.45, LearnerStarted("c", number + 1, 1, "n"), "orchestrator")
        run.join(20 * number + 0.46, "c", number + 1)
    return run


def is_started() -> Any:
    return next(event.fact for event in history() if is_a(type(event.fact))(event) and hasattr(event.fact, "quorum"))


def test_the_state_does_not_grow_with_the_log() -> None:
    sizes = []
    for rounds in (30, 60):
        events = canonical(long_run(rounds).events)
        folds = folded(events, range(0, len(events), 200))
        accounts = folds.accounts
        assert len(accounts.roster.table) <= 6 and accounts.roster.dropped >= rounds - 3
        # These have bounds of their own, which take longer to reach.
        for bounded in (accounts.roster.remains, accounts.faults._finished, accounts.books._refusals._opened):
            bounded.clear()
        for kept in (accounts.records._commits, accounts.records._spans):
            kept.clear()
        timed = folds.suite._timed
        timed._versions, timed._made = timed._versions[:0], timed._made[:0]
        suite = folds.suite
        sizes.append(len(dumps((accounts, suite._liveness, suite._isolation, suite._timed))))
    assert sizes[1] < 1.1 * sizes[0]
    assert Accounts().roster.remains.maxlen == REMAINS


def test_older_rows_of_faults_are_counted_by_kind() -> None:
    events = script().events
    faults = [
        Event("chaos", 9, 2 * number + later, BASE + 5.0 + number / 1000 + later / 2000, fact)
        for number in range(ROWS + 30)
        for later, fact in enumerate(
            (FaultInjected(99 + number, "freeze", "a", 1, 1, 0.0005), FaultHealed(99 + number, "a"))
        )
    ]
    events = canonical([*events, *faults])
    summary = summarise(folded(events, range(0, len(events), 100)).accounts, {}, [])
    own = len(summarise(Accounts.of(script().events), {}, [])["faults"])
    assert len(summary["faults"]) == ROWS
    assert sum(sums["rows"] for sums in summary["faults_left_out"].values()) == 30 + own
    assert summary["faults_left_out"]["freeze"]["tokens_lost"] == 0


# ------------------------------------------------------------------ painting


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 40), st.integers(0, 4)),
        max_size=30,
    )
)
def test_each_second_counts_for_the_highest_rank_and_only_where_it_is_wanted(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    spans = [(who, float(start), float(stop), rank) for who, start, stop, rank in drawn if start < stop]
    painted = np.zeros((3, 5))
    for who in range(3):
        for second in range(40):
            ranks = [rank for one, start, stop, rank in spans if one == who and start <= second < stop]
            if 0 in ranks:
                painted[who, max(ranks)] += 1
    assert paint(Spans.of(spans), 3, 5).tolist() == painted.tolist()


def test_the_downtime_of_many_gaps_is_known_to_one_percent() -> None:
    rng = Random(1)
    gaps = [rng.expovariate(1.0) + 0.01 for _ in range(3000)]
    commit = next(event for event in history() if is_a(Committed)(event))
    at = BASE + np.concatenate([[0.0], np.cumsum(gaps)])
    events = [
        replace(commit, sequence=number, at=float(date), fact=replace(commit.fact, syncer_step=4 * number + 4))
        for number, date in enumerate(at)
    ]
    accounts = Accounts()
    accounts.take(block_of(events))
    allowed = 2 * float(np.median(gaps))
    exact = sum(max(0.0, gap - allowed) for gap in gaps)
    assert accounts.times.outer_downtime == pytest.approx(exact, rel=0.01)


def test_the_roster_forgets_who_is_gone_and_keeps_what_the_report_shows() -> None:
    events = canonical(history())
    roster = folded(events, range(0, len(events), 10)).accounts.roster
    assert [one.key for one in roster.remains] == [("c", 1)]
    assert roster.remains[0].died == pytest.approx(BASE + 9.5)
    assert ("c", 1) not in roster.table
    late = Event("syncer", 1, 10**6, BASE + END, LearnerFenced("c", 1, "superseded"))
    roster.take(block_of([late]))
    assert ("c", 1) not in roster.table, "what is said of it later has no effect"


def test_adopted_bytes_and_steps_are_counted_once() -> None:
    events = history()
    accounts = folded(canonical(events), range(0, len(events), 7)).accounts
    assert accounts.tallies.adoptions.total() == sum(is_a(Adopted)(event) for event in events)
    assert sum(one.steps for one in [*accounts.roster.table.values(), *accounts.roster.remains]) == sum(
        is_a(StepFinished)(event) for event in events
    )
