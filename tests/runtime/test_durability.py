"""What outlives what, on real Ray actors: the syncer, its journal, the orchestrator, the whole run.

How long an outage takes is measured by benchmarks/failover.py.
"""

import shutil

import psutil
import pytest

from learners.protocol.facts import StepFinished
from orchestrator.eventlog.facts import (
    CheckpointWritten,
    FaultInjected,
    LearnerRequested,
    OrchestratorFollowed,
    SyncerLost,
)
from orchestrator.recipe.config import SYNCER
from outer.kill_points import APPLIED, JOURNALED, RECEIVED
from outer.protocol.facts import Committed, FactsLost, StateRebuilt, SyncerStarted
from tests.runtime.replayed import assert_bit_equal
from tests.runtime.script import FOREVER, Script, all_step, kill, nothing, said
from tests.runtime.test_runs import assert_kept
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.runtime, pytest.mark.full]


def outages(result):
    return [row for row in result.summary["faults"] if row["target"] == SYNCER]


def incarnations(result):
    return {(event.writer, event.incarnation) for event in result.of(StepFinished)}


def assert_steps_in_outages(result, *learners, since=SyncerLost):
    """Each of these finished steps between every loss of a syncer and the start of its successor.

    `since`: the fact that comes first in an outage; an orchestrator that died too has not seen the syncer's end.
    """
    lost, started = result.of(since), result.of(SyncerStarted)[1:]
    assert len(lost) == len(started) > 0
    for begun, ended in zip(lost, started, strict=True):
        stepped = {event.writer for event in result.of(StepFinished) if begun.at < event.at < ended.at}
        assert stepped >= set(learners), "it waited for the syncer"


def test_the_syncer_is_killed_within_a_commit_and_frozen_and_nothing_is_lost_or_merged_twice(run):
    """A zombie is thawed while its successor serves."""
    faults = [
        {"kind": "kill", "learner": SYNCER, "point": point, "at_step": step}
        for point, step in ((RECEIVED, 30), (JOURNALED, 80), (APPLIED, 130))
    ]
    faults.append({"kind": "freeze", "learner": SYNCER, "at_step": 180, "duration_s": 30.0})
    result = run("failover", budget={"syncer_steps": 320}, chaos={"faults": faults}, run={"syncer_lease_s": 10.0})
    assert_kept(result)
    assert [(f.fault_kind, f.target) for f in result.facts(FaultInjected)] == [("kill", SYNCER)] * 3 + [
        ("freeze", SYNCER)
    ]
    assert [fact.cause for fact in result.facts(SyncerLost)] == ["died"] * 3 + ["lease_expired"]
    assert [fact.epoch for fact in result.facts(SyncerStarted)] == [1, 2, 3, 4, 5]
    took_over = result.of(SyncerStarted)[-1].at
    assert [e for e in result.of(Committed) if e.incarnation == 4 and e.at > took_over] == []
    assert {fact.epoch for fact in result.facts(Committed)} == {1, 2, 3, 4, 5}
    assert len(outages(result)) == 4 and all(row["recovery_s"] is not None for row in outages(result))
    assert {incarnation for _, incarnation in incarnations(result)} == {1}, "no learner was lost over it"
    assert_steps_in_outages(result, *(f"learner-t-{i}" for i in range(3)))
    assert_bit_equal(result.folder)


def test_orchestrator_syncer_and_a_learner_are_killed_at_once_and_the_others_step_through_it(run, tmp_path):
    def later_checkpoint(event):
        """Of all learners, and written by the second orchestrator."""
        return isinstance(event.fact, CheckpointWritten) and event.incarnation == 2 and event.fact.omitted == ()

    folder = tmp_path / "headless"
    script = Script(
        folder,
        (
            all_step(syncer_step=30),
            lambda status: kill(status["orchestrator"]["pid"], status["syncer"]["pid"], status["learners"][0]["pid"]),
        ),
        (all_step(2, 1, 1), nothing),
        (said(folder, later_checkpoint), nothing),
    )
    result = run("headless", script, folder, budget=FOREVER, durability={"every_s": 3.0, "keep": 100})
    assert_kept(result, "stopped")
    (followed,) = result.facts(OrchestratorFollowed)
    assert followed.epoch == 0 and followed.learners == ("learner-t-1", "learner-t-2")
    asked = [(fact.learner, fact.incarnation) for fact in result.facts(LearnerRequested)]
    assert asked == [("learner-t-0", 1), ("learner-t-1", 1), ("learner-t-2", 1), ("learner-t-0", 2)]
    assert [fact.epoch for fact in result.facts(SyncerStarted)] == [1, 2]
    assert any(map(later_checkpoint, result.events)), "checkpoints go on"
    assert_steps_in_outages(result, "learner-t-1", "learner-t-2", since=OrchestratorFollowed)


def test_without_its_journal_the_syncer_is_rebuilt_from_what_the_learners_hold_and_says_what_is_lost(run, tmp_path):
    folder, struck = tmp_path / "wiped", []

    def strike(status):
        if not struck and all_step(syncer_step=40)(status):
            struck.append(psutil.Process(status["syncer"]["pid"]))
            struck[0].kill()
            struck[0].wait(DEADLINE_S)  # dead, it adds nothing any more
            shutil.rmtree(folder / "journal")

    result = run("wiped", strike, folder, budget={"syncer_steps": 160})
    assert result.summary["state"] == "finished"
    (rebuilt,) = result.facts(StateRebuilt)
    assert "learner" in rebuilt.sources and "journal" not in rebuilt.sources
    assert set(rebuilt.momentum_lost) == {f for f, source in enumerate(rebuilt.sources) if source == "learner"}
    last = result.of(SyncerStarted)[-1]
    assert max(last.fact.versions) >= 40 and last.fact.tokens_committed == 0, "what was in no segment went with it"
    assert {fact.writer for fact in result.facts(FactsLost)} >= {f"learner-t-{number}" for number in range(3)}
    assert [e for e in result.of(Committed) if e.at > last.at and e.fact.epoch == last.fact.epoch]
