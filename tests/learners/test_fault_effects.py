"""What a learner can be made to suffer: each kind does its one thing, and ends by itself."""

from __future__ import annotations

import numpy as np
import pytest

from learners.fault_effects import KINDS, STRAGGLING, FaultEffects, flipped


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disturbance(clock: Clock) -> FaultEffects:
    return FaultEffects(clock)


def state(disturbance: FaultEffects) -> tuple[float, float, bool, bool]:
    return disturbance.delay_s(), disturbance.link_down_s(), disturbance.corrupts(), disturbance.pop_poison()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_does_its_one_thing_and_has_healed_at_its_end(
    disturbance: FaultEffects, clock: Clock, kind: str
) -> None:
    assert state(disturbance) == (0.0, 0.0, False, False)
    disturbance.begin(kind, 5.0, 100.0, "seed 4")  # of this seed the first step is late
    delay_s, link_down_s, corrupts, poison = state(disturbance)
    late = {"slow": "delay", "straggle": "delay"}.get(kind, kind)
    suffered = {"delay": delay_s > 0, "link": link_down_s > 0, "corrupt": corrupts, "non_finite": poison}
    assert [name for name, does in suffered.items() if does] == [late]
    clock.now += 5.0
    assert state(disturbance) == (0.0, 0.0, False, False)


def test_a_slow_step_takes_the_same_delay_every_time_and_none_outlasts_the_fault(
    disturbance: FaultEffects, clock: Clock
) -> None:
    disturbance.begin("slow", 5.0, 2.0)
    assert [disturbance.delay_s() for _ in range(3)] == [2.0, 2.0, 2.0]
    clock.now += 4.0
    assert disturbance.delay_s() == 1.0


def test_a_straggler_is_late_with_a_share_of_its_steps_and_by_the_delay_on_average(disturbance: FaultEffects) -> None:
    disturbance.begin("straggle", 1e9, 0.3, "seed")
    delays = [disturbance.delay_s() for _ in range(20_000)]
    assert sum(delay > 0 for delay in delays) / len(delays) == pytest.approx(STRAGGLING, abs=0.01)
    assert sum(delays) / len(delays) == pytest.approx(0.3, rel=0.05)
    assert max(delays) > 3 * 0.3 / STRAGGLING, "some are very late"


def test_the_same_seed_is_late_at_the_same_steps(clock: Clock) -> None:
    drawn = {}
    for seed in ("one", "two", "one again"):
        each = FaultEffects(clock)
        each.begin("straggle", 1e9, 0.3, seed.split()[0])
        drawn[seed] = [each.delay_s() for _ in range(50)]
    assert drawn["one"] == drawn["one again"] != drawn["two"]


def test_a_second_fault_of_a_kind_never_ends_the_first_sooner(disturbance: FaultEffects, clock: Clock) -> None:
    disturbance.begin("link", 5.0)
    disturbance.begin("link", 1.0)
    assert disturbance.link_down_s() == 5.0
    disturbance.begin("link", 9.0)
    assert disturbance.link_down_s() == 9.0
    clock.now += 2.0
    assert disturbance.link_down_s() == 7.0
    disturbance.begin("slow", 5.0, 2.0)
    disturbance.begin("slow", 5.0, 1.0)
    assert disturbance.delay_s() == 1.0, "the newest delay counts"


def test_poison_is_taken_once(disturbance: FaultEffects, clock: Clock) -> None:
    disturbance.begin("non_finite", 0.0)
    clock.now += 1e6  # a step that begins late is spoiled all the same
    assert [disturbance.pop_poison() for _ in range(3)] == [True, False, False]


def test_what_is_no_kind_is_refused_with_the_kinds_there_are(disturbance: FaultEffects) -> None:
    with pytest.raises(
        ValueError, match="'kill' is not a fault that a learner can carry out; known are slow, straggle"
    ):
        disturbance.begin("kill", 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("size", [1, 6, 1001])
def test_one_bit_of_a_copy_is_flipped(dtype: type, size: int) -> None:
    payload = np.arange(size).astype(dtype)
    payload.flags.writeable = False
    damaged = flipped(payload)
    assert (payload == np.arange(size).astype(dtype)).all()
    assert (damaged.dtype, damaged.shape) == (payload.dtype, payload.shape)
    assert np.unpackbits(damaged.view(np.uint8) ^ payload.view(np.uint8)).sum() == 1
