"""A learner that is cut off from the syncer for ten minutes steps on, is not killed, and takes part again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from chaos.simulation.checks.history import judged
from chaos.simulation.cluster import Cluster
from chaos.simulation.profile import Fault, draw
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.facts import LearnerLost
from outer.protocol.facts import Committed

CUT_AT_S, CUT_S = 60.0, 600.0
HEALED_S = CUT_AT_S + CUT_S


@pytest.mark.parametrize("adopt", ["overwrite", pytest.param("rebase", marks=pytest.mark.full)])
def test_a_learner_that_is_cut_off_for_ten_minutes_steps_on_and_is_the_same_incarnation_afterwards(adopt: str) -> None:
    options = draw(1, "calm", syncer_steps=3600, P=2, H=4, tau=1, grace=0.0, adopt=adopt)
    cut = Fault(CUT_AT_S, "cut_two_way", "a", CUT_S, 1.0)
    step_s = dict.fromkeys(options.step_s, 0.25)
    cluster = Cluster(
        replace(
            options, faults=(cut,), storm_s=HEALED_S + 1.0, quorum=1, hang_s=5.0, unreachable_s=3600.0, ahead_s=3600.0,
            step_s=step_s,
        )
    )  # fmt: skip
    cluster.run()
    context = cluster.context
    assert [*context.oracle.violations, *judged(context.events(), context.fault_counts)] == []
    assert [fact for _, fact in context.facts["orchestrator", 1] if isinstance(fact, LearnerLost)] == []
    steps = [at for at, fact in context.facts["a", 1] if isinstance(fact, StepFinished)]
    assert max(later - earlier for earlier, later in pairwise(steps)) < 2.0, "it never waits"
    merged = [
        (at, one.steps)
        for at, fact in context.facts["syncer", 1]
        if isinstance(fact, Committed)
        for one in fact.participants
        if one.learner == "a"
    ]
    away = [at for at, _ in merged if CUT_AT_S + 5.0 < at < HEALED_S]
    back = [(at, count) for at, count in merged if at > HEALED_S]
    assert away == [] and back, "others go on without it, and it takes part again"
    largest = max(count for _, count in back)
    if adopt == "rebase":
        assert largest > 0.9 * CUT_S / 0.25, "its work of ten minutes merges"
    else:
        assert largest < 100, "the newer versions replace its work"
