"""Plans of faults: pure functions of configuration and seed."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.plans import due, plan, random_faults
from orchestrator.recipe.config import ChaosConfig, FaultConfig, FaultKind, Point
from outer.kill_points import POINTS

LEARNERS = tuple(f"learner-local-{index}" for index in range(4))
PLANNED = ChaosConfig(
    faults=(
        FaultConfig(kind="kill", learner="any", at_step=100),
        FaultConfig(kind="freeze", learner="learner-local-2", at_s=7.5, duration_s=3.0),
        FaultConfig(kind="kill", learner="any", at_s=9.0),
    )
)
RANDOM = ChaosConfig(mtbf_s=20.0, freeze_s=4.0)


def test_each_kind_keeps_the_numbers_that_mean_something_to_it() -> None:
    every = ChaosConfig(
        faults=tuple(
            FaultConfig(kind=kind, learner="any", at_s=1.0, duration_s=3.0, delay_s=0.5) for kind in get_args(FaultKind)
        ),
        kinds=get_args(FaultKind),
        mtbf_s=1.0,
        freeze_s=4.0,
        duration_s=3.0,
        delay_s=0.5,
    )
    lasting = {"freeze": 3.0, "slow": 3.0, "straggle": 3.0, "link": 3.0, "corrupt": 3.0}
    delays = {"slow": 0.5, "straggle": 0.5}
    for fault in plan(every, LEARNERS, 0):
        assert (fault.duration_s, fault.delay_s) == (lasting.get(fault.kind, 0.0), delays.get(fault.kind, 0.0))
    drawn = {fault.kind: fault for fault in islice(random_faults(every, LEARNERS, 0, 0), 200)}
    assert set(drawn) == set(get_args(FaultKind))
    for kind, fault in drawn.items():
        assert (fault.duration_s, fault.delay_s) == ((lasting | {"freeze": 4.0}).get(kind, 0.0), delays.get(kind, 0.0))


def test_old_recipes_get_the_faults_they_always_got_in_every_process() -> None:
    told = [(fault.kind, fault.learner[-1]) for fault in plan(PLANNED, LEARNERS, 7)]
    assert told == [("kill", "0"), ("freeze", "2"), ("kill", "1")]
    drawn = [
        (fault.kind, fault.learner[-1], fault.at_s, fault.duration_s)
        for fault in islice(random_faults(RANDOM, LEARNERS, 7, 3), 4)
    ]
    assert drawn == [
        ("freeze", "0", 2.2058636053625165, 4.0),
        ("kill", "3", 31.70726397181774, 0.0),
        ("kill", "0", 35.8072883272771, 0.0),
        ("kill", "1", 51.42140329405476, 0.0),
    ]


def test_any_process_of_an_island_is_struck_by_what_strikes_one_and_its_learner_by_the_rest() -> None:
    processes = ["learner-i-0", "learner-i-0/1", "learner-a-0"]
    both = [FaultConfig(kind=kind, learner="any", at_step=5) for kind in ("freeze", "link")]
    faults = [plan(ChaosConfig(faults=tuple(both)), processes, seed) for seed in range(64)]
    assert {freeze.learner for freeze, _ in faults} == set(processes)
    assert {link.learner for _, link in faults} == {"learner-i-0", "learner-a-0"}
    random = list(islice(random_faults(ChaosConfig(mtbf_s=1.0, kinds=("kill", "corrupt")), processes, 0, 0), 200))
    assert {fault.target for fault in random if fault.kind == "kill"} >= {("learner-i-0", 0), ("learner-i-0", 1)}
    assert {fault.target[1] for fault in random if fault.kind == "corrupt"} == {0}


def test_a_fault_more_changes_none_of_the_others() -> None:
    longer = PLANNED.model_copy(
        update={"faults": (*PLANNED.faults, FaultConfig(kind="kill", learner="any", at_step=5))}
    )
    for seed in range(16):
        assert plan(longer, LEARNERS, seed)[:3] == plan(PLANNED, LEARNERS, seed)


def test_a_name_that_is_no_learner_is_refused_with_the_fix() -> None:
    wrong = ChaosConfig(faults=(FaultConfig(kind="kill", learner="learner-x", at_step=1),))
    with pytest.raises(
        ValueError, match=r"chaos\.faults\[0\]\.learner is 'learner-x'; allowed are learner-local-0.*any"
    ):
        plan(wrong, LEARNERS, 0)


def test_the_seed_of_the_chaos_section_goes_before_the_runs() -> None:
    own = RANDOM.model_copy(update={"seed": 5})
    draws = {
        (chaos.seed, seed): tuple(islice(random_faults(chaos, LEARNERS, seed, 0), 5))
        for chaos in (RANDOM, own)
        for seed in (5, 6)
    }
    assert draws[(5, 5)] == draws[(5, 6)] == draws[(None, 5)] != draws[(None, 6)]


@given(seed=st.integers(0, 2**63), first=st.integers(0, 1000))
def test_random_faults_are_in_order_numbered_and_of_the_kinds_asked_for(seed: int, first: int) -> None:
    freezes = RANDOM.model_copy(update={"kinds": ("freeze",)})
    faults = list(islice(random_faults(freezes, LEARNERS, seed, first), 30))
    assert [fault.identifier for fault in faults] == list(range(first, first + 30))
    assert all(before.at_s < after.at_s for before, after in pairwise(faults))  # type: ignore[operator]
    assert {(fault.kind, fault.duration_s, fault.at_step) for fault in faults} == {("freeze", 4.0, None)}
    assert {fault.learner for fault in faults} <= set(LEARNERS)


def test_gaps_are_exponential_with_the_mean_time_between_faults() -> None:
    faults = list(islice(random_faults(RANDOM, LEARNERS, 1, 0), 4000))
    times = [0.0, *(fault.at_s or 0.0 for fault in faults)]
    gaps = [after - before for before, after in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(20.0, rel=0.05)
    assert sum(gap > 20.0 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # 1 / e
    shares = [sum(fault.learner == name for fault in faults) / 4000 for name in LEARNERS]
    assert shares == pytest.approx([0.25] * 4, abs=0.03)


def test_what_is_due_fires_once_and_the_rest_waits() -> None:
    faults = plan(PLANNED, LEARNERS, 0)
    assert due(faults, None, 99) == ((), faults)  # no learner has stepped: seconds do not count yet
    assert due(faults, 7.5, 99) == (faults[1:2], (faults[0], faults[2]))
    now, rest = due(faults, 8.0, 100)
    assert (now, rest) == (faults[:2], faults[2:])
    assert due(rest, 9.0, 100) == (faults[2:], ())


def test_the_points_of_a_recipe_are_those_that_a_commit_passes() -> None:
    assert get_args(Point) == POINTS
