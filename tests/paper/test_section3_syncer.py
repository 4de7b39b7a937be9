"""The paper's section 3, algorithm 2: quorum, grace, weights, the outer gradient, and who is told."""

from __future__ import annotations

from itertools import pairwise

from outer.protocol.events_effects import Tick
from outer.protocol.facts import Committed, StepOpened, StepPassed
from outer.protocol.quorum import adaptive_grace
from tests.paper.simulated import history
from tests.transcripts.syncer_world import bench

PACED = {"P": 2, "H": 4, "tau": 1, "lease_s": 100.0, "grace": 0.0}


# ------------------------------------------------------------------ quorum


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
