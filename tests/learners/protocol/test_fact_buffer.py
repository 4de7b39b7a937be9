"""Facts ride along, oldest first, until they are acknowledged: none is lost, none is renumbered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.fact_buffer import FactBuffer


def numbers(outbox: FactBuffer) -> list[int]:
    return [sequence for sequence, _, _ in outbox.pending()]


def test_facts_are_numbered_from_zero_and_dated_when_they_are_said() -> None:
    times = iter([5.0, 6.5])
    outbox = FactBuffer(lambda: next(times))
    outbox.add("first")
    outbox.add("second")
    assert outbox.pending() == [(0, 5.0, "first"), (1, 6.5, "second")]
    assert outbox.pending() == outbox.pending(), "riding takes nothing away"


def test_acknowledged_facts_ride_no_more_and_an_old_acknowledgement_takes_nothing_back() -> None:
    outbox = FactBuffer(lambda: 0.0)
    for fact in range(5):
        outbox.add(fact)
    outbox.acknowledge(2)
    assert numbers(outbox) == [3, 4]
    outbox.acknowledge(0)
    outbox.acknowledge(-1)
    assert numbers(outbox) == [3, 4]
    outbox.acknowledge(99)
    assert numbers(outbox) == []
    outbox.add("next")
    assert numbers(outbox) == [5]


def test_beyond_the_limit_the_oldest_ride_first_and_the_rest_follow() -> None:
    outbox = FactBuffer(lambda: 0.0, limit=2)
    for fact in range(5):
        outbox.add(fact)
    seen: list[int] = []
    while riding := numbers(outbox):
        assert len(riding) <= 2
        seen += riding
        outbox.acknowledge(riding[-1])
    assert seen == [0, 1, 2, 3, 4]


@given(st.lists(st.one_of(st.just("add"), st.integers(-1, 20)), max_size=60), st.integers(1, 5))
def test_whatever_rides_is_a_run_without_a_gap_from_the_first_unacknowledged(
    script: list[str | int], limit: int
) -> None:
    outbox, said, acknowledged = FactBuffer(lambda: 0.0, limit), 0, -1
    for move in script:
        if isinstance(move, str):
            outbox.add(said)
            said += 1
        else:
            number = min(move, said - 1)
            outbox.acknowledge(number)
            acknowledged = max(acknowledged, number)
        waiting = list(range(acknowledged + 1, said))
        assert [(sequence, fact) for sequence, _, fact in outbox.pending()] == [(n, n) for n in waiting[:limit]]
