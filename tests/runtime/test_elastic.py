"""Learners join and leave a running job on real Ray actors, and nothing of what they did is lost."""

import os
import signal

import pytest

from learners.facts import StateReceived
from orchestrator.books import settle
from orchestrator.events import LearnerLost, PoolScaled
from orchestrator.scaling import SCALE
from orchestrator.store import RunStore
from outer.facts import DrainStarted, LearnerFenced
from tests.runtime.test_runs import assert_kept, participants

pytestmark = pytest.mark.runtime


def stepping(status):
    return {row["name"] for row in status["learners"] if row["state"] == "stepping"}


def test_a_pool_grows_and_shrinks_while_the_job_runs(run, tmp_path):
    asked = []

    def steer(status):
        names = stepping(status)
        if not asked and status["run"]["syncer_step"] >= 20:
            asked.append(4)
        elif asked == [4] and len(names) == 4 and status["run"]["syncer_step"] >= 60:
            asked.append(2)
        else:
            return
        RunStore(tmp_path / "scale").write_json(SCALE, {"pools": {"t": asked[-1]}})

    result = run("scale", steer, pools=[POOL | {"learners": 2, "max": 4}], budget={"syncer_steps": 700})
    assert_kept(result)
    assert [(fact.learners, fact.added, fact.removed) for fact in result.facts(PoolScaled)] == [
        (4, ("learner-t-2", "learner-t-3"), ()),
        (2, (), ("learner-t-2", "learner-t-3")),
    ]
    joined = [e.fact for e in result.of(StateReceived) if e.writer in ("learner-t-2", "learner-t-3")]
    assert {fact.source for fact in joined} == {"peer"}, "a newcomer starts with a peer's moments"
    shrunk_at = result.of(PoolScaled)[1].at
    assert {name for name, _ in participants(result)} == {f"learner-t-{index}" for index in range(4)}
    assert {fact.learner for fact in result.facts(DrainStarted)} == {"learner-t-2", "learner-t-3"}
    assert {(fact.learner, fact.reason) for fact in result.facts(LearnerFenced)} >= {
        ("learner-t-2", "drained"),
        ("learner-t-3", "drained"),
    }
    assert_nothing_lost(result, "learner-t-2", "learner-t-3")
    assert result.facts(LearnerLost) == []
    gone_at = max(e.at for e in result.of(LearnerFenced) if e.fact.reason == "drained")
    assert gone_at - shrunk_at < 15.0
    assert {name for name, _ in participants(result, after=gone_at)} == {"learner-t-0", "learner-t-1"}
    assert result.summary["goodput_categories"]["unattributed"] <= 0.01


def test_a_learner_whose_process_is_told_to_end_leaves_in_order_and_another_comes(run):
    told = []

    def tell(status):
        row = next((row for row in status["learners"] if row["name"] == "learner-t-1"), None)
        if not told and row and row["state"] == "stepping" and status["run"]["syncer_step"] >= 20:
            told.append(row["pid"])
            os.kill(row["pid"], signal.SIGTERM)

    result = run("sigterm", tell, budget={"syncer_steps": 400})
    assert_kept(result)
    assert told
    (drain,) = result.facts(DrainStarted)
    assert (drain.learner, drain.incarnation) == ("learner-t-1", 1)
    assert ("learner-t-1", 1, "drained") in {(f.learner, f.incarnation, f.reason) for f in result.facts(LearnerFenced)}
    assert_nothing_lost(result, "learner-t-1")
    assert ("learner-t-1", 2) in participants(result)
    assert result.facts(LearnerLost) == []


def assert_nothing_lost(result, *learners):
    """Leaving cost their first incarnations nothing: their last round of steps is in commits, and none was dropped."""
    fates = settle(result.events).fates
    for learner in learners:
        mine = [fates[key] for key in sorted(fates) if key[:2] == (learner, 1)]
        assert len(mine) > 2 * ROUND_STEPS
        assert mine[-ROUND_STEPS:] == ["committed"] * ROUND_STEPS
    assert result.summary["tokens"]["discarded"]["drained"] == 0


ROUND_STEPS = 4
POOL = {"name": "t", "batch_size": 2, "slowdown": 20.0}
