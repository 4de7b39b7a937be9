"""The paper's section 1: learners, fragments, rounds, the two clocks, and the settings of its experiments."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outer.config import OuterConfig, SyncConfig
from outer.protocol.facts import Committed, StepOpened
from outer.protocol.fragments import default_count
from outer.protocol.messages import FragmentCounters
from outer.protocol.schedule import Schedule
from tests.golden.loop import TOKENS, joined
from tests.paper.simulated import history


def test_by_default_everything_is_set_as_in_the_experiments() -> None:
    """Section 1, defaults: H = 24, tau = 2, K = 1, grace on, alpha = 0, RDA but for embeddings."""
    sync, outer = SyncConfig.model_validate({}), OuterConfig.model_validate({})
    assert (sync.round_steps, sync.overlap_steps, sync.quorum, sync.grace) == (24, 2, 1, "adaptive")
    assert (sync.adopt, outer.merge) == ("overwrite", "rda")
    assert default_count(100, sync.round_steps) == 24


@pytest.mark.parametrize(("fragments", "round_steps"), [(24, 24), (4, 24), (5, 7)])
def test_each_fragment_has_an_offset_of_its_own_within_the_round(fragments: int, round_steps: int) -> None:
    """Section 1, offsets t_p: distinct, and each in 0..H-1."""
    schedule = Schedule(fragments, round_steps)
    offsets = [schedule.offset(p) for p in range(fragments)]
    assert sorted(set(offsets)) == offsets and set(offsets) <= set(range(round_steps))


def test_with_as_many_fragments_as_steps_one_leaves_at_every_step() -> None:
    """Section 1, defaults: P = H spreads the traffic evenly."""
    due = [Schedule(24, 24).due(t) for t in range(1, 49)]
    assert None not in due and all(due.count(p) == 2 for p in range(24))


def test_no_more_fragments_are_in_flight_than_the_overlap_allows() -> None:
    """Section 1, overlap: tau = 2 means two in flight at once, and commits keep their order."""
    sync = {"P": 8, "H": 8, "tau": 2, "grace": "infinite"}
    flying, most = set[int](), 0
    for said in history({"a": 1.0, "b": 1.9}, sync, 40, quorum=2):
        if isinstance(said.fact, StepOpened):
            flying.add(said.fact.syncer_step)
        if isinstance(said.fact, Committed):
            assert said.fact.syncer_step == min(flying)
            flying.remove(said.fact.syncer_step)
        most = max(most, len(flying))
    assert most == 2


def test_counters_hold_the_steps_and_tokens_since_the_fragment_was_last_received() -> None:
    """Section 1, c_steps and c_tokens: for each learner and each fragment."""
    loop = joined()
    loop.steps(3)
    loop.deliver(2, 1)
    loop.steps(2)  # adopted at the end of the first of them
    assert loop.counters(0) == FragmentCounters(0, 0, 5, 5 * TOKENS)
    assert loop.counters(1) == FragmentCounters(2, 4, 1, TOKENS)


def test_the_version_of_a_fragment_is_the_syncer_step_that_made_it() -> None:
    """Section 1, Theta_p(t): the version of a fragment is its t, and the one before is H steps older."""
    run = history({"a": 1.0}, {"P": 2, "H": 6, "tau": 1}, 30)
    for fragment in range(2):
        made = [fact for fact in run.facts(Committed) if fact.fragment == fragment]
        assert len(made) == 5
        assert all(
            after.base_version == before.syncer_step == after.syncer_step - 6 for before, after in pairwise(made)
        )
