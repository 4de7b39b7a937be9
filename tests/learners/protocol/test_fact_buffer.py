"""Facts are sent once and in order until they are durable, again when that takes too long, and within a bound."""

from __future__ import annotations

from typing import Any

import pytest

from learners.protocol import fact_buffer
from learners.protocol.fact_buffer import FactBuffer, read_clocks


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def buffer(facts: int = 0, **settings: Any) -> FactBuffer:
    made = FactBuffer(float, **{"monotonic": Clock()} | settings)
    for fact in range(facts):
        made.add(fact)
    return made


def numbers(sent: list[tuple[int, float, Any]] | None) -> list[int]:
    assert sent is not None
    return [sequence for sequence, _, _ in sent]


def test_facts_are_numbered_from_zero_dated_when_they_are_said_and_sent_once() -> None:
    times = iter([5.0, 6.5])
    facts = FactBuffer(lambda: next(times))
    facts.add("first")
    facts.add("dated", 2.0)
    facts.add("second")
    assert facts.pending() == [(0, 5.0, "first"), (1, 2.0, "dated"), (2, 6.5, "second")]
    assert facts.pending() == []


def test_too_many_facts_for_one_answer_have_to_be_uploaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_buffer, "ANSWER_MAX", 3)
    facts = buffer(4)
    assert facts.behind
    assert facts.everything() is None
    assert numbers(facts.pending(4)) == [0, 1, 2, 3], "a refused answer has sent nothing"
    facts.acknowledge(0)
    assert not facts.behind
    assert numbers(facts.everything()) == [1, 2, 3]


def test_a_full_buffer_drops_the_oldest_facts_and_counts_them() -> None:
    facts = buffer(3, limit=3)
    facts.pending(1)
    facts.add(3)
    facts.add(4)
    assert (facts.oldest, facts.dropped, numbers(facts.everything())) == (2, 2, [2, 3, 4])


def test_a_resumed_incarnation_continues_its_numbers() -> None:
    facts = buffer(2, first=7)
    assert (facts.oldest, numbers(facts.pending())) == (7, [7, 8])


def test_two_clocks_are_read_as_of_one_moment_though_the_process_is_frozen_between_them() -> None:
    now = [0.0]

    def wall() -> float:
        now[0] += 12.0 if now[0] < 12.0 else 0.001  # frozen before the first reading
        return 1000.0 + now[0]

    read, at = read_clocks(lambda: now[0], wall)
    assert at - read == pytest.approx(1000.0, abs=0.01)
