"""Both machines: a learner whose steps are long takes part all the same."""

from __future__ import annotations

from outer.config import SyncConfig
from outer.protocol.facts import Committed
from outer.protocol.syncer import Budget
from tests.golden.world import World


def test_one_whose_steps_outlast_a_read_takes_part_all_the_same() -> None:
    """It is the last to report, so that every read comes right after its boundary; and learners hear of few steps."""
    sync = SyncConfig.model_validate(
        {"P": 2, "H": 12, "tau": 1, "grace": "infinite", "read_timeout_s": 0.25, "lease_s": 2.0}
    )
    world = World(sync=sync, learners={"a": 0.1, "c": 0.3}, quorum=1, budget=Budget(None, 10_000), span_steps=100)
    for name in ("a", "c"):
        world.start(name)
    world.run(60.0)
    late = [said.fact for said in world.said if isinstance(said.fact, Committed) and said.at >= 5.0]
    commits = [[one.learner for one in fact.participants] for fact in late]
    assert len(commits) > 20
    assert sum("c" in names for names in commits) > 0.9 * len(commits)
    assert {count for value in world.values for count in value.values()} == {1}
