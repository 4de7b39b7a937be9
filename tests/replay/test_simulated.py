"""The log of a simulated run is a tape, whatever fails in it but the log itself: it holds all that a replay needs."""

from __future__ import annotations

from collections import Counter

from chaos.simulation.cluster import Cluster, make_learner, make_syncer
from chaos.simulation.profile import draw
from orchestrator.replay.incarnation import Give
from orchestrator.replay.tape import record

SEEDS = (1, 2, 3, 4, 6)  # at which nothing of the log is lost


def test_the_log_of_every_seed_is_a_tape_though_learners_donors_and_syncers_die() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        cluster = Cluster(draw(seed, "mixed"), make_syncer, make_learner, None)
        cluster.run()
        tape = record(cluster.context.events())
        found["commits"] += len(tape.commits)
        for incarnation in tape.incarnations.values():
            found["states"] += sum(isinstance(moment, Give) for moment in incarnation.moments)
    assert found["commits"] > 50 * len(SEEDS) and found["states"] > len(SEEDS)
