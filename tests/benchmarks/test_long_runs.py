"""What the benchmarks of long runs compute from a log and from samples."""

from __future__ import annotations

import random

import pytest

from benchmarks.cut_off import VICTIM, measure
from benchmarks.soak import FIGURES, WARM_S, Sample, slope, slopes
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed, FaultInjected
from outer.protocol.facts import Committed, Participant, Refused


def step(at: float, number: int, writer: str = VICTIM) -> Event:
    return Event(writer, 1, number, at, StepFinished(number, 10, 0, number, 2.0, 1.0, 0.0, ""))


def commit(at: float, base: int, number: int) -> Event:
    one = Participant(VICTIM, 1, number, base, number - base, 10 * (number - base), 1.0, "digest")
    return Event("syncer", 1, 0, at, Committed(1, 0, 1, 0, (one,), 2, "digest", 1.0, 10, 0.1, 0.0, 0.1, "why"))


def test_of_the_steps_of_the_cut_those_in_a_commit_are_merged_and_the_others_replaced() -> None:
    cut = Event("chaos", 1, 0, 10.0, FaultInjected(0, "link", VICTIM, 1, 7, 20.0, 0.0))
    healed = Event("chaos", 1, 1, 30.0, FaultHealed(0, VICTIM))
    refused = Event("syncer", 1, 1, 31.0, Refused(VICTIM, 1, "contribution", "late"))
    steps = [step(float(number), number) for number in range(1, 36)]
    other = step(15.0, 3, "learner-local-1")
    told = measure([commit(9.0, 0, 8), cut, *steps, other, healed, refused, commit(32.0, 19, 31)])
    assert (told["cut_s"], told["steps"], told["merged"], told["replaced"]) == (20.0, 20, 10, 10)
    assert told["longest_gap_s"] == 1.0 and told["contributing_again_s"] == 2.0
    assert told["refused"] == {"contribution: late": 1} and told["steps_of_others"] == {"learner-local-1": 1}


def test_the_slope_of_a_role_is_that_within_its_processes_and_its_interval_has_it() -> None:
    chance = random.Random(1)

    def process(begin: float, level: float, per_s: float) -> list[tuple[float, float]]:
        return [(begin + 30.0 * n, level + 30.0 * n * per_s + chance.gauss(0.0, 1.0)) for n in range(40)]

    restarted = slope([process(0.0, 500.0, 0.0), process(1200.0, 900.0, 0.0)])
    assert restarted is not None and restarted.within is not None
    assert abs(restarted.per_hour) < 2.0 * restarted.within, "a process that begins larger does not grow"
    grows = slope([process(0.0, 500.0, 0.01), process(1200.0, 900.0, 0.01)])
    assert grows is not None and grows.per_hour == pytest.approx(36.0, abs=3.0 * (grows.within or 0.0))
    assert slope([[(0.0, 1.0)]]) is None, "one sample has no slope"


def test_the_first_minute_of_a_process_is_left_out() -> None:
    taken = [Sample(at, 100.0 * min(at, WARM_S), 1.0, 2.0, 3.0) for at in (float(5 * n) for n in range(100))]
    found = slopes({("syncer", 1): taken, ("learner", 2): taken[:5]})
    assert set(found) == {"syncer"} and set(found["syncer"]) == set(FIGURES)
    assert found["syncer"]["rss"]["per_hour"] == pytest.approx(0.0)
    assert found["syncer"]["threads"]["mean"] == 3.0
