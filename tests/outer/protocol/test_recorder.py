"""Each fact enters the log once and in order, gaps are named, and nobody is silenced by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.fact_buffer import FactBuffer
from outer.protocol.facts import FactsLost, StepPassed
from outer.protocol.recorder import NO_LONGER_HELD, Recorder, Run, runs_of


def facts(first: int, last: int) -> list[tuple[int, float, Any]]:
    return [(number, 0.5, f"fact {number}") for number in range(first, last + 1)]


def lost(first: int, last: int, incarnation: int = 1) -> FactsLost:
    return FactsLost("a", incarnation, first, last, NO_LONGER_HELD)


def test_what_the_sender_no_longer_holds_is_named_as_lost_once_and_it_goes_on() -> None:
    recorder = Recorder()
    recorder.take("a", 1, 0, facts(0, 1))
    assert recorder.take("a", 1, 5, facts(5, 6)) == (facts(5, 6), lost(2, 4))
    assert recorder.take("a", 1, 5, facts(5, 6)) == ([], None)
    assert recorder.take("a", 1, 9, []) == ([], lost(7, 8))
    assert recorder.take("a", 1, 9, facts(9, 9)) == (facts(9, 9), None)


def test_facts_in_the_message_itself_are_not_lost() -> None:
    """The oldest number was read after the facts, and an acknowledgement of an earlier epoch came in between."""
    assert Recorder().take("a", 1, 3, facts(0, 4)) == (facts(0, 4), None)


def test_the_two_newest_incarnations_of_a_writer_are_known_and_older_ones_refused() -> None:
    recorder = Recorder()
    for incarnation in (1, 2, 3):
        recorder.take("a", incarnation, 0, facts(0, 1))
        recorder.mark_durable([Run("a", incarnation, 1)])
    assert [recorder.durable("a", incarnation) for incarnation in (1, 2, 3)] == [-1, 1, 1]
    assert recorder.take("a", 1, 2, facts(2, 3)) == ([], None)
    recorder.mark_durable([Run("a", 1, 3)])
    assert recorder.take("a", 2, 0, facts(2, 3)) == (facts(2, 3), None), "the last facts of the one before"
    assert recorder.state() == [["a", 2, 1], ["a", 3, 1]]


def test_the_runs_of_a_group_cover_the_losses_in_it() -> None:
    own = [(7, 0.5, StepPassed(3)), (8, 0.5, lost(2, 4)), (9, 0.5, StepPassed(4))]
    assert runs_of("syncer", 2, own) == [Run("a", 1, 4), Run("syncer", 2, 9)]
    assert runs_of("b", 1, []) == []
    successor = Recorder()
    successor.mark_durable(runs_of("syncer", 2, own))
    assert successor.take("a", 1, 5, facts(5, 5)) == (facts(5, 5), None), "the gap is not named twice"


@given(
    st.lists(
        st.sampled_from(["say", "send", "lose", "deliver", "again", "flush", "acknowledge", "lose the tail"]),
        max_size=80,
    )
)
def test_with_any_faults_each_fact_is_in_the_log_once_in_order_or_named_as_lost(script: list[str]) -> None:
    buffer, recorder = FactBuffer(float, limit=6, monotonic=float), Recorder()
    log: list[tuple[int, int]] = []  # (first, last), durable up to `flushed`
    sent: list[tuple[int, list[Any]]] = []
    flushed = said = 0

    def deliver() -> None:
        oldest, carried = sent.pop()
        fresh, gone = recorder.take("a", 1, oldest, carried)
        log.extend([(gone.first, gone.last)] if gone else [])
        log.extend((number, number) for number, _, _ in fresh)

    def flush() -> None:
        nonlocal flushed
        flushed = len(log)
        recorder.mark_durable([Run("a", 1, last) for _, last in log[-1:]])

    for move in script:
        if move == "say":
            buffer.add(said)
            said += 1
        elif move == "send":
            sent.append((buffer.oldest, buffer.pending(2)))
        elif move == "lose" and sent:
            sent.pop()
        elif move == "deliver" and sent:
            deliver()
        elif move == "again":
            buffer.rewind()
        elif move == "flush":
            flush()
        elif move == "acknowledge":
            buffer.acknowledge(recorder.durable("a", 1))
        elif move == "lose the tail":  # with the epoch that wrote it, and what that had not flushed
            log[:] = log[: max(0, flushed - 2)]
            flushed = len(log)
            recorder = Recorder([["a", 1, last] for _, last in log[-1:]])
    while buffer.recorded is None:
        buffer.rewind()
        sent.append((buffer.oldest, buffer.pending()))
        deliver()
        flush()
        buffer.acknowledge(recorder.durable("a", 1))
    sent.append((buffer.oldest, []))
    deliver()
    numbers = [number for first, last in log for number in range(first, last + 1)]
    assert numbers == list(range(said))
