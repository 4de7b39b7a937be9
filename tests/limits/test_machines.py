"""What both machines, the controller and the journal's records hold does not grow with the length of a run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest

from learners.protocol.joining import TRANSFERS_MAX, PendingTransfers
from learners.protocol.staged_reads import WAITING_MAX, StagedReads
from outer.protocol.coverage import INTERVALS_MAX, Coverage, Mark
from outer.protocol.events_effects import Fence
from outer.protocol.facts import Refused
from outer.protocol.members import REFUSED_MAX
from outer.protocol.messages import ReadRequest, Report, StateRequest
from outer.protocol.sample_spans import LENT_MAX, SpanPool
from outer.protocol.sessions import RECORDS_WAITING_MAX
from tests.golden.bench import Bench, bench, merged
from tests.limits.driver import Driver, deep_size

ROOM, SLACK = 1.25, 64  # a factor and elements, between the largest sizes early and late in a run
LOOKS = 40  # in each part


def largest(driver: Driver, begin: int, end: int) -> dict[str, int]:
    """Of each part of the state, its largest size between two syncer steps."""
    driver.run(begin)
    found: dict[str, int] = {}
    for look in range(1, LOOKS + 1):
        driver.run(begin + (end - begin) * look // LOOKS)
        found = {part: max(size, found.get(part, 0)) for part, size in driver.sizes().items()}
    return found


def assert_flat(driver: Driver, early: tuple[int, int], late: tuple[int, int]) -> None:
    before, after = largest(driver, *early), largest(driver, *late)
    assert set(driver.troubles) == set(driver.causes)
    grown = {part: (size, after[part]) for part, size in before.items() if after[part] > ROOM * size + SLACK}
    assert not grown, f"{grown} (before, after)"


@pytest.mark.parametrize("adopt", ["overwrite", "rebase"])
def test_in_twenty_thousand_syncer_steps_of_one_epoch_with_deaths_joins_cuts_and_refusals_nothing_grows(
    adopt: str,
) -> None:
    assert_flat(Driver(adopt=adopt, epochs=False), (5_000, 10_000), (15_000, 20_000))


def test_nor_does_anything_that_one_epoch_hands_to_the_next() -> None:
    assert_flat(Driver(adopt="overwrite"), (2_000, 5_000), (7_000, 10_000))


@pytest.mark.full
@pytest.mark.parametrize(("epochs", "steps"), [(False, 1_000_000), (True, 100_000)])
def test_nor_in_a_million_of_one_epoch_or_a_hundred_thousand_of_many(epochs: bool, steps: int) -> None:
    assert_flat(Driver(adopt="overwrite", epochs=epochs), (10_000, 20_000), (steps - 10_000, steps))


def test_what_grows_is_found() -> None:
    driver = Driver()
    keeps: list[int] = []
    driver.controller.kept = keeps  # type: ignore[attr-defined]
    run = driver.run
    driver.run = lambda until: (run(until), keeps.extend(range(until)))[0]  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(AssertionError, match="controller"):
        assert_flat(driver, (500, 1000), (1500, 2000))


@dataclass
class Odd:
    """With every kind of container."""

    many: Any


def test_the_size_of_a_state_counts_what_every_container_in_it_holds_and_shared_ones_once() -> None:
    shared = [1, 2, 3]
    assert deep_size(Odd({"a": shared, "b": shared})) == 2 + 3
    assert deep_size(Odd([deque([1, 2]), {3}, (4, Odd(frozenset([5])))])) == 3 + 2 + 1 + 2 + 1


# ------------------------------------------------------------------ each bound, driven beyond it


def test_refused_reports_of_endless_strangers_are_remembered_up_to_a_bound_and_each_is_recorded_once() -> None:
    made = Bench()
    for number in range(10 * REFUSED_MAX):
        for _ in range(2):
            made.do(Report(f"stranger-{number}", 1, 1, 1, "stepping", 3.0, 1, 1.0, 10, 0))
    assert len(made.syncer._members._refused) == REFUSED_MAX
    assert len(made.facts(Refused)) == 10 * REFUSED_MAX
    assert not [name for name in made.syncer._members.names if name.startswith("stranger")]


def test_what_an_incarnation_covered_is_kept_until_its_last_contribution_has_merged_and_not_longer() -> None:
    made = bench("a", "b", sync={"grace": "infinite"}, merges_itself=False)
    made.now = 1.0
    made.step("a", "b")
    made.answer("a", "b")  # the merge is being computed
    coverage = made.syncer._members._coverage
    made.do(Fence("a", 1, "killed"))
    [merge] = [effect for effect in made.log if type(effect).__name__ == "Merge"]
    assert len(merge.payloads) == 2  # type: ignore[union-attr]
    made.do(merged(1))
    assert made.syncer.tokens_committed == 20, "the dead one's step counts, once"
    assert set(coverage) == {("b", 1)}


def test_coverage_keeps_the_newest_intervals_and_counts_on() -> None:
    coverage = Coverage()
    for number in range(10_000):  # of every four steps two are discarded
        begin = 4 * number
        assert coverage.add(Mark(begin, 10 * begin), Mark(begin + 2, 10 * begin + 20)) == 20
    assert len(coverage.intervals) == INTERVALS_MAX and coverage.tokens == 200_000
    assert coverage.last_step == 39_998


def test_a_loan_that_no_commit_reaches_keeps_its_newest_spans() -> None:
    pool = SpanPool()
    spans = [pool.grant("a", 1, 8, 2) for _ in range(10 * LENT_MAX)]
    back = pool.release("a", 1, committed=0)
    assert back == spans[-LENT_MAX:]


def test_while_the_journal_is_away_nothing_is_lent_beyond_a_bound() -> None:
    made = Bench(journals_itself=False)
    for _ in range(2 * RECORDS_WAITING_MAX):
        made.join("a", wants_span=True)
    assert made.syncer._out.waiting <= 2 * RECORDS_WAITING_MAX, "a grant, and its return when the incarnation is fenced"
    before = made.syncer._out.waiting
    for _ in range(RECORDS_WAITING_MAX):
        made.join("a", wants_span=True)
    assert made.syncer._out.waiting == before


def test_reads_and_requests_for_state_that_wait_for_a_boundary_are_bounded() -> None:
    reads, transfers = StagedReads(strict=False), PendingTransfers()
    for number in range(10 * WAITING_MAX):
        reads.wait(ReadRequest(1, 1, number, number % 7, 1, 0.0, 10.0), 0.0)
        if not transfers.full:
            transfers.add(StateRequest(1, f"joiner-{number}", 1, "a", 1, 0, 10.0), 0.0)
    assert len(reads._waiting) == WAITING_MAX and reads._waiting[-1].request.syncer_step == 10 * WAITING_MAX - 1
    assert len(transfers.waiting) == TRANSFERS_MAX
