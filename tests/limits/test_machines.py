"""What both machines, the controller and the journal's records hold does not grow with the length of a run."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any

import pytest

from benchmarks.machine import ROUND, World
from chaos.simulation.cluster import Cluster
from chaos.simulation.profile import Fault, draw
from learners.protocol.joining import TRANSFERS_MAX, PendingTransfers
from learners.protocol.staged_reads import WAITING_MAX, StagedReads
from orchestrator.lifecycle.controller import Controller
from outer.protocol import coverage, members, sample_spans
from outer.protocol.coverage import INTERVALS_MAX, Coverage, Mark
from outer.protocol.events_effects import Fence
from outer.protocol.facts import Refused
from outer.protocol.members import REFUSED_MAX
from outer.protocol.messages import ReadRequest, Report, StateRequest
from outer.protocol.sample_spans import LENT_MAX, SpanPool
from outer.protocol.sessions import RECORDS_WAITING_MAX
from tests.transcripts.syncer_world import Bench, bench, merged

ROOM, SLACK = 1.25, 64  # a factor and elements, between the largest sizes early and late in a run
LOOKS = 40  # in a run
TROUBLES = ("crash", "crash_joining", "cut_two_way", "loss", "freeze", "scale_out", "drain", "leave", "garbled", "echo")
EPOCHS = ("syncer_crash",)  # what one epoch hands to the next must not grow either


def deep_size(root: Any) -> int:
    """Count the elements of all containers that are reachable through containers and attributes.

    What the simulator puts into the machines' hands, such as values with all their ancestors, is not the machines'.
    """
    total, seen, waiting = 0, set[int](), [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or callable(each) or isinstance(each, str | bytes | int | float | type(None)):
            continue
        if type(each).__module__.startswith(("chaos.", "orchestrator.simulation.")):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            total += len(each)
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            total += len(each)
            waiting += each
        else:
            waiting += getattr(each, "__dict__", {}).values()
            waiting += (getattr(each, name) for name in getattr(each, "__slots__", ()) if hasattr(each, name))
    return total


@pytest.fixture
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bounded is full early in a run."""
    for module, name, most in (
        (coverage, "INTERVALS_MAX", 8),
        (members, "REFUSED_MAX", 8),
        (sample_spans, "RETURNED_MAX", 16),
        (sample_spans, "LENT_MAX", 8),
    ):
        monkeypatch.setattr(module, name, most)


def sizes(virtual_s: float, kinds: tuple[str, ...], **sync: Any) -> list[dict[str, int]]:
    """Simulate a run with these faults all the time; return the sizes of its machines at each of LOOKS moments."""
    chance = Random(0)
    options = draw(1, "calm", syncer_steps=10**6, P=3, H=4, tau=1, grace=0.0, **sync)
    faults = tuple(
        Fault(at + 2.0 * number, kind, chance.choice("abcd"), 3.0, 0.6)
        for at in range(20, int(virtual_s), 40)
        for number, kind in enumerate(kinds)
    )
    step_s = dict.fromkeys(options.step_s, 0.5)
    cluster = Cluster(replace(options, faults=faults, storm_s=virtual_s, quorum=1, step_s=step_s))
    virtual, found = cluster.virtual, []
    virtual.start()
    for look in range(1, LOOKS + 1):
        cluster.context.time.run(virtual_s * look / LOOKS)
        machines = [learner.machine for learner in virtual.learners.values()]
        found.append(
            {
                "syncer": deep_size(virtual.syncer.machine) if virtual.syncer else 0,
                "controller": deep_size(virtual.controller),
                "learners": max(map(deep_size, machines), default=0),
            }
        )
    assert set(kinds) <= cluster.context.fault_counts.keys()
    return found


def assert_flat(found: list[dict[str, int]]) -> None:
    """The largest in the last third of a run is about the largest in the second."""
    third = len(found) // 3
    for part in found[0]:
        before = max(look[part] for look in found[third : 2 * third])
        after = max(look[part] for look in found[-third:])
        assert after <= ROOM * before + SLACK, f"{part} has grown from {before} to {after}"


@pytest.mark.usefixtures("low_bounds")
@pytest.mark.parametrize(("adopt", "kinds"), [("overwrite", TROUBLES), ("rebase", TROUBLES + EPOCHS)])
def test_in_a_run_with_deaths_joins_cuts_refusals_and_epochs_nothing_grows(adopt: str, kinds: tuple[str, ...]) -> None:
    assert_flat(sizes(600.0, kinds, adopt=adopt))


@pytest.mark.full
@pytest.mark.usefixtures("low_bounds")
def test_nor_in_a_run_five_times_as_long() -> None:
    assert_flat(sizes(3000.0, TROUBLES + EPOCHS, adopt="overwrite"))


@pytest.mark.usefixtures("low_bounds")
def test_what_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Controller.advance

    def keep(controller: Controller, now: float) -> Any:
        controller.__dict__.setdefault("kept", []).extend([now] * 10)
        return advance(controller, now)

    monkeypatch.setattr(Controller, "advance", keep)
    with pytest.raises(AssertionError, match="controller has grown"):
        assert_flat(sizes(300.0, ("crash",)))


def bytecodes(learners: int) -> float:
    """How many instructions of outer/protocol a learner's step costs the syncer, in one round."""
    world, counted = World(learners), 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        counted += event == "opcode" and "protocol" in frame.f_code.co_filename
        return trace

    for second in range(2 * ROUND):
        sys.settrace(trace if second >= ROUND else None)
        world.second()
    sys.settrace(None)
    return counted / (ROUND * learners)


def test_a_step_costs_the_syncer_the_same_however_many_learners_there_are() -> None:
    assert bytecodes(60) < 1.1 * bytecodes(15)


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
    back = [span for span, _ in pool.release("a", 1, committed=0)]
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
