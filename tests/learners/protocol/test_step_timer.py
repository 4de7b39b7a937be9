"""How long a step took, apart from what it waited for."""

from __future__ import annotations

from learners.protocol.step_timer import StepTime, StepTimer


def test_all_waits_of_a_lap_are_taken_off_the_step_and_the_next_lap_starts_without_them() -> None:
    watch = StepTimer(0.5)
    watch.start(0.0)
    watch.hold(0.0, "span")
    watch.hold(1.0, "span")
    watch.release(2.0)
    watch.hold(3.0, "span")
    watch.release(3.5)
    assert watch.record_step(5.0) == StepTime(2.5, 2.5, "span")
    assert watch.record_step(6.5) == StepTime(1.5, 0.0, "")
    assert watch.step_s.value == 2.0


def test_of_a_wait_that_began_before_the_start_only_the_rest_counts_and_for_what_came_last() -> None:
    watch = StepTimer(0.5)
    watch.hold(1.0, "")
    watch.start(5.0)
    watch.hold(5.0, "span")
    watch.hold(6.0, "")
    watch.release(8.0)
    assert watch.record_step(9.0) == StepTime(1.0, 3.0, "span")
