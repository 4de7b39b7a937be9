"""The paper's section 1: learners, fragments, rounds, the two clocks, and the settings of its experiments."""

from __future__ import annotations

from itertools import pairwise

from outer.config import OuterConfig, SyncConfig
from outer.protocol.facts import Committed, StepOpened
from outer.protocol.fragments import default_count
from tests.paper.simulated import history


def test_by_default_everything_is_set_as_in_the_experiments() -> None:
    """Section 1, defaults: H = 24, tau = 2, K = 1, grace on, alpha = 0, RDA but for embeddings."""
    sync, outer = SyncConfig.model_validate({}), OuterConfig.model_validate({})
    assert (sync.round_steps, sync.overlap_steps, sync.quorum, sync.grace) == (24, 2, 1, "adaptive")
    assert (sync.adopt, outer.merge, outer.granularity) == ("overwrite", "rda", "tensor")
    assert default_count(100, sync.round_steps) == 24


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


def test_the_version_of_a_fragment_is_the_syncer_step_that_made_it() -> None:
    """Section 1, Theta_p(t): the version of a fragment is its t, and the one before is H steps older."""
    run = history({"a": 1.0}, {"P": 2, "H": 6, "tau": 1}, 30)
    for fragment in range(2):
        made = [fact for fact in run.facts(Committed) if fact.fragment == fragment]
        assert len(made) == 5
        assert all(
            after.base_version == before.syncer_step == after.syncer_step - 6 for before, after in pairwise(made)
        )
