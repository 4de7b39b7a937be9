"""The paper's section 3, algorithm 2: quorum, grace, weights, the outer gradient, and who is told."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from outer.config import OuterConfig
from outer.numeric.parameters import GlobalParameters
from outer.protocol.events_effects import Merge, Tick
from outer.protocol.facts import Committed, Refused, StepOpened, StepPassed
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import FragmentCounters, ReadRequest
from outer.protocol.quorum import adaptive_grace
from tests.golden.bench import ALL, Bench, bench, reading
from tests.paper.simulated import history

PACED = {"P": 2, "H": 4, "tau": 1, "lease_s": 100.0, "grace": 0.0}


# ------------------------------------------------------------------ quorum


def test_the_quorum_counts_learners_with_new_progress_not_messages() -> None:
    """Section 3, algorithm 2, step 1: nothing is read before K learners finished a step, however often one speaks."""
    one = bench("a", "b", quorum=2)
    one.now = 1.0
    one.step("a", "a", "a")
    one.do(one.peers["b"].report())
    assert one.asked(1) == []
    one.step("b")
    assert one.asked(1) == ["a", "b"]


def test_below_the_quorum_nothing_commits_and_above_it_the_same_version_goes_on() -> None:
    """Section 3, algorithm 2, step 1: K is a floor, and a number of learners, not a share of them."""
    one = bench("a", "b", quorum=2)
    one.commit("a", "b")
    versions = list(one.syncer.versions)
    for _ in range(5):
        one.now += 1.0
        one.step("a")
        one.do(Tick())
    assert one.syncer.versions == versions
    one.commit("a", "b")
    assert one.facts(Committed)[-1].base_version == versions[0]


def test_by_the_clock_the_syncer_advances_at_most_once_per_step_time_whether_a_fragment_is_due_or_not() -> None:
    """Section 3, pacing. Departure 0002: with K = 1 the literal loop would advance at every learner's step."""
    one = history(dict.fromkeys("abcd", 1.0), PACED, 40)
    opened = [said.at for said in one if isinstance(said.fact, StepOpened)]
    settled = [after - before for before, after in pairwise(opened)][3:]
    assert settled and min(settled) >= 0.9, "steps take 0.9 s to 1.1 s"
    assert one.facts(StepPassed), "two of four steps have no fragment"


def test_read_literally_the_loop_merges_each_step_of_each_learner_alone() -> None:
    """Section 3, pacing: K = 1 without grace; why the paper's heterogeneous test went badly, and departure 0002."""
    four = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 1.3}
    literal = {"pacing": "quorum", "participants": "reported", "P": 1, "H": 1, "tau": 0}
    alone = [len(fact.participants) for fact in history(four, PACED | literal, 100).facts(Committed)]
    together = [len(fact.participants) for fact in history(four, PACED | {"P": 4}, 100).facts(Committed)]
    assert alone.count(1) >= 0.95 * len(alone)
    assert together[8:].count(4) >= 0.9 * len(together[8:]), "once all have joined"


# ------------------------------------------------------------------ grace


def test_grace_takes_in_learners_that_report_within_it_beyond_the_quorum() -> None:
    """Section 3, algorithm 2, step 1: and the next after it is too late, though it counts for the next step."""
    one = bench("a", "b", "c", quorum=1, sync={"grace": 0.5, "participants": "reported"})
    one.now = 1.0
    one.step("a")
    one.now = 1.4
    one.step("b")
    assert one.asked(1) == []
    one.now = 1.5
    one.do(Tick())
    assert one.asked(1) == ["a", "b"]


def test_grace_ends_early_when_there_is_nobody_left_to_wait_for() -> None:
    """Section 3, algorithm 2, step 1."""
    one = bench("a", "b", quorum=1, sync={"grace": 50.0})
    one.now = 1.0
    one.step("a", "b")
    assert one.asked(1) == ["a", "b"]


def test_adaptive_grace_is_a_share_of_what_the_overlap_leaves() -> None:
    """Section 3, grace: gamma (tau xi_step - (xi_quorum + xi_sync))."""
    assert adaptive_grace(0.5, 2, 1.0, quorum_s=0.75, sync_s=0.25) == 0.5
    assert adaptive_grace(0.25, 2, 1.0, quorum_s=0.75, sync_s=0.25) == 0.25


def test_grace_is_at_most_one_step_long_and_never_below_zero() -> None:
    """Section 3, grace: one step at most is a default of section 1."""
    assert adaptive_grace(0.9, 10, 1.0, quorum_s=0.0, sync_s=0.0) == 1.0
    assert adaptive_grace(0.9, 1, 1.0, quorum_s=0.75, sync_s=0.5) == 0.0


def test_grace_follows_moving_averages_of_how_long_quorums_and_merges_take() -> None:
    """Section 3, grace: xi_quorum and xi_sync."""
    one = bench("a", "b", sync={"P": 4, "H": 4, "tau": 2, "grace": "adaptive", "smoothing": 0.5})
    one.now = 1.0
    one.step("a", "b")
    first = one.syncer.grace_s
    one.now = 1.25
    one.answer("a", "b")
    [commit] = one.facts(Committed)
    assert (commit.quorum_s, commit.sync_s) == (1.0, 0.25)
    assert first == 0.5 * (2 * 1.0 - 1.0)
    assert one.syncer.grace_s == 0.5 * (2 * 1.0 - (1.0 + 0.25))


def test_time_in_which_too_few_were_alive_is_no_quorum_delay() -> None:
    """Section 3, grace: not in the paper; an outage would shrink the grace of all steps after it."""
    sync = {"P": 2, "H": 2, "tau": 1, "grace": "adaptive", "smoothing": 0.5}
    one = bench("a", "b", sync=sync, peers={"lease_s": 100.0, "step_s": 2.0})
    one.now = 1.0
    one.step("a", "b")
    one.answer("a", "b")
    before = one.syncer.grace_s
    one.peers["b"].lease_s = 3.0
    one.adopt("a", "b")
    for second in range(2, 50):
        one.now = float(second)
        one.step("a")
    one.step("b")
    assert one.asked(2) == ["a", "b"]
    assert one.syncer.grace_s == before == 0.5


# ------------------------------------------------------------------ participants and weights


def test_every_live_learner_with_a_current_base_is_read_or_by_choice_those_that_reported() -> None:
    """Section 3, algorithm 2, step 2: the paper reads the set M_t of step 1, `participants = "reported"`."""
    for participants, asked in (("eligible", ["a", "b"]), ("reported", ["a"])):
        one = bench("a", "b", quorum=1, sync={"participants": participants})
        one.now = 0.5
        one.step("a")
        one.answer("a")
        one.adopt("a", "b")
        one.step("b")
        one.now = 1.0
        one.do(Tick())  # step 2 opens; b has something to give, and a reports first
        one.now = 1.5
        one.step("a")
        assert one.asked(2) == asked


def test_the_weight_of_a_learner_is_its_tokens_times_its_tokens_per_step() -> None:
    """Section 3, algorithm 2, step 3: quantity times quality."""
    one = reading("a", "b", sync=ALL)
    counters = {"a": FragmentCounters(0, 0, 4, 40), "b": FragmentCounters(0, 0, 2, 60)}
    for name, each in counters.items():
        one.answer(name, step=each.steps, processed=each.tokens, counters=each)
    [commit] = one.facts(Committed)
    raw = {"a": Fraction(40 * 40, 4), "b": Fraction(60 * 60, 2)}
    shares = {part.learner: part.weight for part in commit.participants}
    assert shares == pytest.approx({name: float(w / sum(raw.values())) for name, w in raw.items()}, rel=1e-15)
    [merge] = [effect for effect in one.log if isinstance(effect, Merge)]
    assert merge.weights == tuple(shares.values()), "what is recorded is what was used"


def test_an_absent_learner_has_weight_zero_in_that_merge_and_nothing_else_changes() -> None:
    """Section 3, algorithm 2, step 3."""
    one = bench("a", "b", "c", quorum=2)
    one.commit("a", "b")
    commit = one.facts(Committed)[-1]
    assert {part.learner for part in commit.participants} == {"a", "b"}
    assert sum(part.weight for part in commit.participants) == pytest.approx(1.0, rel=1e-15)


# ------------------------------------------------------------------ the outer step


def parameters(**outer: Any) -> GlobalParameters:
    fragment = Fragment(0, (Tensor("w", (2, 2), "float32"),))
    config = OuterConfig.model_validate({"lr": 1.0, "momentum": 0.0} | outer)
    return GlobalParameters([fragment], [np.array([1, 2, 3, 4], np.float32)], config, "fp32", {"w": "avg"})


def test_the_outer_gradient_is_anchored_at_what_the_syncer_itself_holds() -> None:
    """Section 3, algorithm 2, steps 4 and 5: Theta - theta_m, so a step of length 1 gives a lone learner's value."""
    held, theta = parameters(), np.array([0.5, -1.5, 3.25, 1e-3], np.float32)
    first = held.propose(0, [theta], [1.0])
    assert np.array_equal(first.theta, theta)
    assert first.norm == pytest.approx(float(np.linalg.norm(np.array([1, 2, 3, 4.0]) - theta)), rel=1e-12)
    held.install(first, 4)
    assert np.array_equal(held.propose(0, [theta], [1.0]).theta, theta), "and is zero where nothing was learned"


def test_a_contribution_that_grew_from_another_version_weighs_nothing() -> None:
    """Section 3, algorithm 2, step 4. Departure 0001: against the syncer's value it would count a step twice."""
    one = reading("a", "b", quorum=1, sync=ALL)
    stale = FragmentCounters(-1, 0, 1, 10)
    one.answer("a", counters=stale)
    one.answer("b")
    assert [(fact.learner, fact.reason) for fact in one.facts(Refused)] == [("a", "stale_base")]
    assert [part.learner for part in one.facts(Committed)[-1].participants] == ["b"]


def test_a_new_version_is_announced_to_every_connected_learner() -> None:
    """Section 3, algorithm 2, step 6: to those, too, that took no part."""
    one = bench("a", "b", "c", quorum=1)
    one.commit("a")
    told = [learner for learner, version in one.notices if version == 1]
    assert sorted(told) == ["a", "b", "c"]


def test_versions_are_published_in_the_order_of_the_clock() -> None:
    """Section 3, algorithm 2, loop over t: though two steps are open at once."""
    one = Bench(learners={"a": 2, "b": 2}, quorum=1, sync={"P": 4, "H": 4, "tau": 2} | ALL)
    one.join("a", "b", lease_s=1e9)
    for second in (1, 2):
        one.now = float(second)
        one.step("a", "b")
    assert one.asked(1) == one.asked(2) == ["a", "b"]
    peers, requests = one.peers, {t: read(one, t) for t in (1, 2)}
    for name in ("a", "b"):
        one.do(peers[name].answer(requests[2][name]))
    assert one.published == []
    for name in ("a", "b"):
        one.do(peers[name].answer(requests[1][name]))
    assert [version for _, version in one.published] == [1, 2]


def read(one: Bench, syncer_step: int) -> dict[str, ReadRequest]:
    """What each was sent for this step."""
    return {
        name: next(request for request in one.sent(ReadRequest, name) if request.syncer_step == syncer_step)
        for name in one.peers
    }
