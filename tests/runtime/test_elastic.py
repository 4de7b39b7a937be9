"""Learners join and leave a running job on real Ray actors, and nothing of what they did is lost."""

import os
import signal

import pytest

from learners.protocol.facts import StateReceived
from orchestrator.eventlog.facts import LearnerLost, PoolScaled
from orchestrator.lifecycle.pools import request_file
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import DrainStarted, LearnerFenced
from tests.orchestrator.histories import settle
from tests.runtime.results import assert_bit_equal, assert_kept
from tests.runtime.script import FOREVER, Script, more, nothing, stepping

pytestmark = [pytest.mark.runtime, pytest.mark.full]

ROUND_STEPS = 4
POOL = {"name": "t", "learners": 2, "max": 4, "batch_size": 2, "slowdown": 20.0}
NEWCOMERS = ("learner-t-2", "learner-t-3")


@pytest.fixture(scope="module")
def elastic(run, tmp_path_factory):
    """Two learners; then four; then one of the first two is told to end by its host; once it is back, two again.

    The run is stopped two rounds after the last have left.
    """
    folder = tmp_path_factory.mktemp("elastic")

    def scale(learners):
        return lambda status: RunStore(folder).write_json(request_file("t"), {"learners": learners})

    def tell_to_end(status):
        [pid] = (row["pid"] for row in status["learners"] if row["name"] == "learner-t-1")
        os.kill(pid, signal.SIGTERM)

    def four_step(incarnation):
        return lambda status: len(found := stepping(status)) == 4 and found["learner-t-1"] == incarnation

    script = Script(
        folder,
        (lambda status: status["run"]["syncer_step"] >= 20, scale(4)),
        (four_step(1), tell_to_end),
        (four_step(2), scale(2)),
        (lambda status: len(status["learners"]) == len(stepping(status)) == 2, nothing),
        (more(2 * ROUND_STEPS), nothing),
    )
    return run("elastic", script, folder, pools=[POOL], budget=FOREVER)


def test_all_checks_pass_and_time_is_accounted_for_while_learners_come_and_go(elastic):
    assert_kept(elastic, "stopped")
    assert elastic.facts(LearnerLost) == []
    assert elastic.summary["goodput_categories"]["unattributed"] <= 0.01
    assert sum(elastic.summary["goodput_categories"].values()) == pytest.approx(1.0, abs=1e-6)
    assert assert_bit_equal(elastic.folder)["equal"]["state"] >= 3, "two newcomers, and one that came back"


def test_a_pool_grows_with_learners_that_start_from_a_peers_state(elastic):
    first, _ = elastic.facts(PoolScaled)
    assert (first.learners, first.added, first.removed) == (4, NEWCOMERS, ())
    joined = [event.fact.source for event in elastic.of(StateReceived) if event.writer in NEWCOMERS]
    assert joined == ["peer", "peer"]
    assert {(name, 1) for name in NEWCOMERS} <= elastic.participants()


def test_a_pool_shrinks_by_learners_that_leave_without_a_loss(elastic):
    _, second = elastic.facts(PoolScaled)
    assert (second.learners, second.added, second.removed) == (2, (), NEWCOMERS)
    left = {event.fact.learner: event.at for event in elastic.of(LearnerFenced) if event.fact.reason == "drained"}
    assert set(NEWCOMERS) <= set(left)
    assert_nothing_lost(elastic, *NEWCOMERS)
    gone_at = max(left[name] for name in NEWCOMERS)
    assert {name for name, _ in elastic.participants(after=gone_at)} == {"learner-t-0", "learner-t-1"}


def test_a_learner_whose_process_is_told_to_end_leaves_in_order_and_another_comes(elastic):
    drains = [(fact.learner, fact.incarnation) for fact in elastic.facts(DrainStarted)]
    assert ("learner-t-1", 1) in drains
    assert ("learner-t-1", 1, "drained") in {(f.learner, f.incarnation, f.reason) for f in elastic.facts(LearnerFenced)}
    assert_nothing_lost(elastic, "learner-t-1")
    assert ("learner-t-1", 2) in elastic.participants()


def assert_nothing_lost(result, *learners):
    """Leaving cost their first incarnations nothing: their last rounds are in commits, none was dropped for leaving.

    On a busy machine a learner may be behind the syncer's clock. Then, as with those that stay, every fragment can be
    overwritten after a step and before it is read, for a whole round, the newest one too.
    """
    fates = settle(result.events).fates
    for learner in learners:
        mine = [fates[key] for key in sorted(fates) if key[:2] == (learner, 1)]
        assert len(mine) > 2 * ROUND_STEPS
        assert {"committed"} <= set(mine[-2 * ROUND_STEPS :]) <= {"committed", "overlap"}
    assert result.summary["tokens"]["discarded"]["drained"] == 0
