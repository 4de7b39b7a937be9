"""Goodput of fleets: the paper's Table 1, islands and their fast path, and islands under the protocol machines."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.studies import fitting
from benchmarks.studies.goodput import main
from benchmarks.studies.islands import (
    YEAR_S,
    ChipFailures,
    Draws,
    Effort,
    Island,
    Leap,
    all_idle_s,
    alone,
    simulate,
    streaming,
    synchronous,
)
from orchestrator.planner.fleet import world as machines
from orchestrator.planner.fleet.description import StepSample, Timing
from outer.config import SyncConfig
from tests.orchestrator.planner.test_fleet import fleet
from tests.property_settings import examples

NEVER = ChipFailures(mtbi_s=1e15)
SHORT = Effort(half_width=0.5, failing=400)

seconds = st.floats(0.5, 60.0)
models = st.builds(
    ChipFailures,
    mtbi_s=st.floats(1e4, YEAR_S),
    step_s=seconds,
    slice_chips=st.sampled_from([1, 16, 256]),
    down_s=st.floats(0.0, 60.0),
    up_s=st.floats(0.0, 60.0),
    outage_s=seconds,
    repair_a=st.floats(0.5, 3.0),
    repair_c=st.floats(0.5, 2.0),
    repair_scale_s=st.floats(1.0, 2000.0),
)
Stall = tuple[float, float]


def stepped(island: Island, steps: int) -> tuple[list[Stall], float, float]:
    """Step by step: the stalls, the end of the last step, and what all of them are worth."""
    now, worth, stalls, end = 0.0, 0.0, [], 0.0
    for _ in range(steps):
        sample = island.sample(now)
        end = now + sample.seconds
        now, worth = end + sample.stall_s, worth + sample.share
        if sample.stall_s:
            stalls.append((end, now))
    return stalls, end, worth


def leapt(island: Island, steps: int) -> tuple[list[Stall], float, float]:
    """The same by the fast path."""
    now, worth, stalls, end = 0.0, 0.0, [], 0.0
    while steps:
        leap = island.leap(now, steps)
        steps -= leap.steps
        end = now + leap.seconds
        now, worth = end + leap.stall_s, worth + leap.worth
        if leap.stall_s:
            stalls.append((end, now))
    return stalls, end, worth


@examples(60)
@given(models, st.integers(1, 20_000), st.integers(0, 2**32), st.booleans(), st.integers(1, 600))
@example(ChipFailures(mtbi_s=1e4, repair_scale_s=2000.0), 300, 1, True, 600)  # one slice: each failure takes all of it
def test_the_fast_path_gives_the_stalls_step_ends_and_worth_of_single_steps(
    failures: ChipFailures, chips: int, seed: int, elastic: bool, steps: int
) -> None:
    slow = stepped(Island(failures, chips, Draws(seed), elastic), steps)
    fast = leapt(Island(failures, chips, Draws(seed), elastic), steps)
    assert len(slow[0]) == len(fast[0])
    for one, other in zip(slow[0], fast[0], strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    assert slow[1:] == pytest.approx(fast[1:], rel=1e-9)


# ------------------------------------------------------------------ fleets that wait


class Scripted:
    """An island with given stalls after its steps."""

    def __init__(self, stalls: dict[int, float]) -> None:
        self.failures, self.stalls, self.begun = ChipFailures(step_s=1.0), stalls, list[float]()

    def sample(self, now: float) -> StepSample:
        self.begun.append(now)
        return StepSample(1.0, self.stalls.get(len(self.begun), 0.0), 1.0)

    def leap(self, now: float, most: int) -> Leap:
        sample = self.sample(now)
        return Leap(1, sample.seconds, sample.stall_s, sample.share)


def test_in_streaming_nobody_is_more_than_tau_steps_ahead_of_the_slowest() -> None:
    slow, fast = Scripted({5: 10.0}), Scripted({})
    streaming([slow, fast], 0.0, 30.0, overlap_steps=2)  # type: ignore[list-item]
    ended = [begin + 1.0 for begin in slow.begun]
    for step, begin in enumerate(fast.begun):
        assert step < 3 or begin >= ended[step - 3]
    assert fast.begun[7] == 7.0 < fast.begun[8] == ended[5]


def test_in_sync_all_wait_for_the_slowest_after_every_round() -> None:
    slow, fast = Scripted({2: 10.0, 4: 5.0}), Scripted({})
    found = synchronous([slow, fast], 0.0, 18.0, round_steps=4)  # type: ignore[list-item]
    assert slow.begun == [0, 1, 12, 13, 19, 20, 21, 22] and fast.begun == [0, 1, 2, 3, 14, 15, 16, 17]
    assert found.goodput == pytest.approx(8 / 23) and found.uptime == pytest.approx(1 - 9 / 23)


# ------------------------------------------------------------------ the same islands under the machines

CHIPS = 400_000  # of each learner: a failing one each 79 s of stepping


def islands(learners: int, seed: int, stall_s: float = 14.8) -> list[Island]:
    model = ChipFailures(down_s=stall_s, up_s=stall_s)
    return [Island(model, CHIPS, Draws(seed, 0, index)) for index in range(learners)]


@pytest.mark.parametrize(("learners", "seed", "stall_s"), [(4, 2, 14.8), (2, 3, 60.0)])
def test_under_the_machines_learners_step_as_they_do_alone_event_by_event(learners, seed, stall_s):
    """What the fast path leaves out, the protocol, takes nothing from anybody's steps in free overlap."""
    until = 4000.0
    made = fleet(islands(learners, seed, stall_s), timing=Timing(hang_s=math.inf))  # standing still is no hang
    outcome, world = machines.simulate(made, until)
    records = [alone(island, 0.0, until) for island in islands(learners, seed, stall_s)]
    for record, steps in zip(records, world.steps.values(), strict=True):
        paused = [(a.ended, b.began) for a, b in pairwise(steps) if b.began > a.ended]
        quick = [pair for pair in zip(record.idle_from, record.idle_until, strict=True) if pair[1] <= steps[-1].began]
        assert len(quick) > 10
        assert np.array(paused) == pytest.approx(np.array(quick), abs=1e-6)
    assert outcome.goodput == pytest.approx(sum(r.useful_s / (r.end - r.begin) for r in records) / learners, abs=0.005)
    assert outcome.uptime == pytest.approx(1.0 - all_idle_s(records, 0.0, until) / until, abs=1e-6)
    assert outcome.participation > (0.9 if stall_s < 20.0 else 0.5), "who stands still gives what it did before"


def test_hardware_that_stands_still_goes_on_doing_so_under_a_new_incarnation():
    """Held for hanging after 20 s, it is restarted, and cannot step before its slices are taken in."""
    _, world = machines.simulate(fleet(islands(2, 3, 60.0)), 2000.0)
    starts = {name: [step.began for step in steps] for name, steps in world.steps.items()}
    assert max(unit.incarnation for unit in world.learners.values()) > 1
    for island, began in zip(islands(2, 3, 60.0), starts.values(), strict=True):
        stalled = [until for until in alone(island, 0.0, 600.0).idle_until if until < 600.0]
        assert stalled[0] <= next(at for at in began if at > stalled[0] - 60.0 + 1e-6) + 1e-6


def test_in_strict_overlap_the_machines_wait_as_the_streaming_baseline_does():
    rule = SyncConfig(overlap="strict", quorum="all", grace="infinite")
    strict = machines.simulate(fleet(islands(4, 3), sync=rule, quorum=4), 3000.0, 600.0)[0].goodput
    assert strict == pytest.approx(streaming(islands(4, 3), 600.0, 3000.0, rule.overlap_steps).goodput, abs=0.01)
    assert strict < machines.simulate(fleet(islands(4, 3)), 3000.0, 600.0)[0].goodput - 0.04, "waiting costs"


# ------------------------------------------------------------------ the paper's table


def test_the_defaults_come_out_close_to_the_papers_table() -> None:
    """Whole fleets at 1.2m chips, the largest published size; the rest is in docs/studies.md."""
    effort = Effort(half_width=1.0, failing=1000)
    cells = [simulate(*row, 1_200_000, ChipFailures(), effort) for row in fitting.ROWS]
    found = fitting.errors(cells)
    assert found.mean <= 2.0 and found.largest <= 5.0


def test_the_fits_table_is_that_of_whole_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "FAILING", 1000)
    short = fitting.table(ChipFailures(), [600_000], seed=1)[0]
    for (mode, learners), (goodput, uptime) in zip(fitting.ROWS, short, strict=True):
        cell = simulate(mode, learners, 600_000, ChipFailures(), Effort(half_width=1.0, failing=1000))
        assert goodput == pytest.approx(100 * cell.goodput, abs=2.5), (mode, learners)
        assert uptime == pytest.approx(100 * cell.uptime, abs=2.5), (mode, learners)


def test_the_script_prints_the_cells_that_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cells(*given: str) -> list[dict[str, object]]:
        monkeypatch.setattr("sys.argv", ["goodput.py", "--json", "--learners", "1,8", "--chips", "1.2e6", *given])
        main()
        return json.loads(capsys.readouterr().out)

    first, again, other = cells(), cells(), cells("--seed", "1")
    assert first == again != other
    assert [(cell["mode"], round(100 * cell["goodput"])) for cell in first] == [
        ("data_parallel", 26),
        ("elastic", 58),
        ("decoupled", 88),
    ]
