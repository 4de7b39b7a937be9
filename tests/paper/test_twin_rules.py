"""Every rule of the syncer gives the answer of its plain twin."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from outer.config import SyncConfig
from outer.protocol.coverage import Coverage, Mark
from outer.protocol.events_effects import Tick
from outer.protocol.facts import Committed
from outer.protocol.fragments import Tensor, balanced
from outer.protocol.messages import FragmentCounters
from outer.protocol.open_step import has_progress, weigh
from outer.protocol.quorum import Average, StepTiming, step_time
from outer.protocol.sample_spans import SpanPool
from outer.protocol.schedule import Schedule
from tests.golden.bench import EVERY_STEP, Bench
from tests.paper import twin
from tests.property_settings import examples

SHAPES = st.integers(1, 30).flatmap(lambda H: st.tuples(st.integers(1, H), st.just(H)))
REPORTED = {"participants": "reported"}
EIGHTHS = st.integers(0, 80).map(lambda n: Fraction(n, 8))  # seconds that a float holds exactly


@given(shape=SHAPES, syncer_step=st.integers(0, 200), steps=st.integers(0, 60))
def test_the_schedule_is_the_table_written_out(shape: tuple[int, int], syncer_step: int, steps: int) -> None:
    schedule = Schedule(*shape)
    assert schedule.due(syncer_step) == twin.due(*shape, syncer_step)
    assert list(schedule.upcoming(syncer_step, steps)) == twin.upcoming(*shape, syncer_step, steps)


@given(values=st.lists(EIGHTHS, max_size=9))
def test_step_time_is_the_median_of_those_that_are_known(values: list[Fraction]) -> None:
    assert step_time(float(value) for value in values) == twin.median(value for value in values if value > 0)


@given(samples=st.lists(EIGHTHS, min_size=1, max_size=12), smoothing=st.sampled_from([0.125, 0.5, 1.0]))
def test_an_average_is_the_sum_of_all_samples_by_age(samples: list[Fraction], smoothing: float) -> None:
    average = Average(smoothing)
    for sample in samples:
        average.add(float(sample))
    assert average.value == twin.average(samples, Fraction(smoothing))


@given(
    gamma=st.sampled_from([0.0, 0.25, 0.5]),
    tau=st.integers(0, 5),
    step_s=EIGHTHS,
    quorum=st.lists(EIGHTHS, max_size=5),
    sync=st.lists(EIGHTHS, max_size=5),
)
def test_grace_is_what_the_overlap_leaves(
    gamma: float, tau: int, step_s: Fraction, quorum: list[Fraction], sync: list[Fraction]
) -> None:
    delays = StepTiming(SyncConfig.model_validate({"tau": tau, "gamma": gamma, "smoothing": 0.5}))
    for sample in quorum:
        delays.quorum_s.add(float(sample))
    for sample in sync:
        delays.sync_s.add(float(sample))
    usual = [twin.average(samples, Fraction(1, 2)) for samples in (quorum, sync)]
    assert delays.grace_s(float(step_s)) == twin.grace(Fraction(gamma), tau, step_s, *usual)


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Fraction], list[tuple[Fraction, str, int]]]:
    """Until when each learner lives, and what it reports until then: (time, learner, its step number).

    No two at once: what comes first is judged first, of which a list of moments knows nothing.
    """
    leases = draw(
        st.dictionaries(st.sampled_from("abcd"), EIGHTHS.map(lambda at: at + 1 + Fraction(1, 16)), min_size=1)
    )
    steps, reports = dict.fromkeys(leases, 0), []
    for at in sorted(draw(st.lists(EIGHTHS.map(lambda at: at + Fraction(1, 8)), max_size=12, unique=True))):
        name = draw(st.sampled_from(sorted(leases)))
        if at < leases[name]:
            steps[name] += draw(st.integers(0, 1))
            reports.append((at, name, steps[name]))
    return leases, reports


@examples(100)
@given(story=stories(), quorum=st.integers(1, 3), grace_s=st.sampled_from([0.0, 0.5, 2.0, "infinite"]))
def test_a_step_merges_when_and_with_whom_the_list_of_reports_says(
    story: tuple[dict[str, Fraction], list[tuple[Fraction, str, int]]], quorum: int, grace_s: float | str
) -> None:
    leases, reports = story
    quorum = min(quorum, len(leases))
    granted = None if grace_s == "infinite" else Fraction(grace_s)
    expected = twin.decided(Fraction(0), reports, leases, quorum, granted)
    assert by_the_syncer(reports, leases, quorum, grace_s) == expected


def by_the_syncer(
    reports: list[tuple[Fraction, str, int]], leases: dict[str, Fraction], quorum: int, grace_s: float | str
) -> twin.Decided | None:
    """Syncer step 1, opened at 0, is all there is; each report lasts as long as its learner's lease."""
    one = Bench(learners=dict.fromkeys(leases, 2), quorum=quorum, sync=EVERY_STEP | REPORTED | {"grace": grace_s})
    for name, until in leases.items():
        one.join(name, lease_s=float(until))
    for at, name, step in [*reports, (Fraction(1000), "", 0)]:
        while (due := one.syncer.wake_at) is not None and due <= at and not one.asked(1):
            one.now = due
            one.do(Tick())
            assert one.syncer.wake_at != due, "what was due is done"
        if one.asked(1) or not name:
            break
        one.now, peer = float(at), one.peers[name]
        peer.step, peer.processed, peer.lease_s = step, 10 * step, float(leases[name] - at)
        one.do(peer.report())
    if not (asked := one.asked(1)):
        return None
    one.answer(*asked)
    [commit] = one.facts(Committed)
    return twin.Decided(Fraction(one.now), frozenset(asked), Fraction(commit.quorum_s))


@given(
    counters=st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 2))
    ),
    version=st.integers(0, 3),
)
def test_who_can_contribute_is_who_has_the_base_and_a_step(
    counters: dict[str, tuple[int | None, int]], version: int
) -> None:
    def member(base: int | None, steps: int) -> Any:
        report = SimpleNamespace(counters=(FragmentCounters(base, 0, steps, 10 * steps),))
        return SimpleNamespace(report=report, merged_step={})

    able = [name for name, each in sorted(counters.items()) if has_progress(member(*each), 0, version, SyncConfig())]
    assert able == twin.eligible(counters, version)


@given(counters=st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**4)), min_size=1, max_size=9))
def test_weights_are_the_exact_shares_to_rounding(counters: list[tuple[int, int]]) -> None:
    contributions: Any = [SimpleNamespace(counters=FragmentCounters(0, 0, steps, tokens)) for tokens, steps in counters]
    assert weigh(contributions, [0] * len(counters), 1) == pytest.approx(
        [float(share) for share in twin.weights(counters)], rel=1e-14
    )


@given(ranges=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=9))
def test_what_is_covered_is_the_set_of_steps(ranges: list[tuple[int, int]]) -> None:
    ends = [(begin, begin + length) for begin, length in ranges]
    coverage = Coverage()
    for index, (begin, end) in enumerate(ends):
        fresh = twin.covered(ends[: index + 1]) - twin.covered(ends[:index])
        assert coverage.add(Mark(begin, begin * 7), Mark(end, end * 7)) == 7 * len(fresh)
    assert coverage.tokens == 7 * len(twin.covered(ends))
    assert coverage.last_step == max(twin.covered(ends), default=0)


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=12), data=st.data())
def test_fragments_are_dealt_largest_tensor_first_into_the_smallest(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    named = {f"t{index}": size for index, size in enumerate(sizes)}
    dealt = balanced([Tensor(name, (size,), "float32") for name, size in named.items()], count)
    assert [[tensor.name for tensor in fragment.tensors] for fragment in dealt] == twin.deal(named, count)


class Spans(RuleBasedStateMachine):
    """The pool against sets of sample numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.twin = SpanPool(), twin.Pool()
        self.incarnation = 1

    @rule(name=st.sampled_from("abc"), batch_size=st.integers(1, 4), batches=st.integers(1, 4))
    def grant(self, name: str, batch_size: int, batches: int) -> None:
        asked = (name, self.incarnation, batch_size * batches, batch_size)
        span = self.pool.grant(*asked)
        assert list(range(span.start, span.stop)) == self.twin.grant(*asked)

    @precondition(lambda self: self.twin.lent)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        borrower = data.draw(st.sampled_from(sorted(self.twin.lent)))
        committed = data.draw(st.integers(0, len(self.twin.lent[borrower])))
        self.pool.trim(*borrower, data.draw(st.integers(0, committed)))
        back = [n for span in self.pool.release(*borrower, committed) for n in range(span.start, span.stop)]
        assert back == self.twin.release(*borrower, committed)
        self.incarnation += 1


Spans.TestCase.settings = examples(80, stateful_step_count=25)
TestSpans = Spans.TestCase


def test_a_large_batch_gets_what_two_small_ones_left_side_by_side() -> None:
    """Found by the comparison above: returned samples are lent before new ones, whichever learner left them."""
    pool = SpanPool()
    for name in ("a", "b"):
        pool.grant(name, 1, 4, 2)
    for name in ("a", "b"):
        pool.release(name, 1, committed=0)
    span = pool.grant("c", 1, 8, 8)
    assert (span.start, span.stop) == (0, 8)
