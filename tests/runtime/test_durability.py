"""What outlives what, on real Ray actors: the syncer, its journal, the orchestrator, the whole run."""

import os
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
from outer.journal.door import INVITATION
from outer.journal.object_store import objects
from outer.kill_points import APPLIED, JOURNALED, RECEIVED
from outer.protocol.facts import Committed, FactsLost, StateRebuilt, StoreWaited, SyncerStarted
from tests.runtime.conftest import LEARNERS
from tests.runtime.results import assert_bit_equal, assert_kept, assert_nobody_is_silent
from tests.runtime.script import FOREVER, Script, all_step, kill, more, nothing, said
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.runtime
LEARNERS_ALL = {f"learner-t-{index}" for index in range(LEARNERS)}


def assert_steps_in_outages(result, *learners, since=SyncerLost):
    """Each of these finished steps between every loss of a syncer and the start of its successor.

    `since`: the fact that comes first in an outage; an orchestrator that died too has not seen the syncer's end.
    """
    lost, started = result.of(since), result.of(SyncerStarted)[1:]
    assert len(lost) == len(started) > 0
    for begun, ended in zip(lost, started, strict=True):
        stepped = {event.writer for event in result.of(StepFinished) if begun.at < event.at < ended.at}
        assert stepped >= set(learners), "it waited for the syncer"


@pytest.fixture(scope="module")
def failover(run, tmp_path_factory):
    """The syncer is killed at three points of a commit, then frozen: thawed, it is a zombie beside its successor."""
    folder, zombie = tmp_path_factory.mktemp("failover"), []
    faults = [
        {"kind": "kill", "learner": SYNCER, "point": point, "at_step": step}
        for point, step in ((RECEIVED, 20), (JOURNALED, 50), (APPLIED, 80))
    ]
    faults.append({"kind": "freeze", "learner": SYNCER, "at_step": 110, "duration_s": 20.0})

    def lives(pid):
        return pid is not None and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    def fourth(status):
        return status["syncer"]["epoch"] == 4 and lives(status["syncer"]["pid"])

    def thawed(status):
        """The fifth epoch serves, and the fourth has ended: a frozen process does not."""
        return status["syncer"]["epoch"] == 5 and not lives(zombie[0])

    script = Script(
        folder,
        (fourth, lambda status: zombie.append(status["syncer"]["pid"])),
        (thawed, nothing),
        (all_step(), nothing),
        (more(20), nothing),
    )
    return run("failover", script, folder, budget=FOREVER, chaos={"faults": faults}, run={"syncer_lease_s": 10.0})


def test_the_syncer_is_killed_within_a_commit_and_frozen_and_nothing_is_lost_or_merged_twice(failover):
    assert_kept(failover, "stopped")
    assert [(f.fault_kind, f.target) for f in failover.facts(FaultInjected)] == [("kill", SYNCER)] * 3 + [
        ("freeze", SYNCER)
    ]
    assert [fact.cause for fact in failover.facts(SyncerLost)] == ["died"] * 3 + ["lease_expired"]
    assert [fact.epoch for fact in failover.facts(SyncerStarted)] == [1, 2, 3, 4, 5]
    assert {fact.epoch for fact in failover.facts(Committed)} == {1, 2, 3, 4, 5}
    assert len(failover.outages) == 4 and all(row["recovery_s"] is not None for row in failover.outages)


def test_a_thawed_epoch_acknowledges_nothing_once_its_successor_serves(failover):
    took_over = failover.of(SyncerStarted)[-1].at
    assert [e for e in failover.of(Committed) if e.incarnation == 4 and e.at > took_over] == []
    assert [e for e in failover.of(Committed) if e.incarnation == 5 and e.at > took_over]


def test_learners_step_through_every_outage_of_the_syncer(failover):
    assert {incarnation for _, incarnation in failover.incarnations} == {1}, "none was lost over it"
    assert_steps_in_outages(failover, *LEARNERS_ALL)


def test_after_four_deaths_of_the_syncer_nobody_is_silent_and_no_fact_is_lost(failover):
    """Facts are always on their way; learners keep theirs until they are durable."""
    assert_nobody_is_silent(failover, LEARNERS_ALL, failover.of(SyncerStarted)[-1].at)
    assert failover.facts(FactsLost) == []


def test_a_run_with_five_epochs_is_computed_again_to_the_bit(failover):
    assert_bit_equal(failover.folder)


@pytest.mark.full
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


@pytest.mark.full
def test_a_syncer_that_dies_while_its_store_is_away_goes_on_once_that_is_back_and_nothing_is_lost(run, tmp_path):
    """The store is a folder that is not there for a while, as where a file system is not mounted."""
    folder, store, aside = tmp_path / "away", tmp_path / "store", tmp_path / "aside"

    def away(status):
        os.rename(store, aside)
        kill(status["syncer"]["pid"])

    def told(status):
        conditions = {each["type"]: each for each in status["run"]["conditions"]}
        return "the folder was there and is not" in conditions["Durable"]["message"]

    script = Script(
        folder,
        (all_step(syncer_step=30), away),
        (told, nothing),
        (lambda status: status["syncer"]["down_s"] > 20.0, lambda status: os.rename(aside, store)),
        (all_step(), nothing),
        (more(20), nothing),
    )
    result = run("away", script, folder, budget=FOREVER, durability={"store": str(store)})
    assert_kept(result, "stopped")
    assert result.facts(SyncerLost)[0].cause == "died"
    assert {incarnation for _, incarnation in result.incarnations} == {1}
    waited = [fact for fact in result.facts(StoreWaited) if fact.seconds > 20.0]
    assert waited and "the folder was there and is not" in waited[0].reason
    assert len(result.facts(SyncerStarted)) == 2 and len(result.outages) == 1


@pytest.mark.full
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


@pytest.mark.full
def test_a_run_behind_a_door_goes_on_after_its_syncer_died_and_no_file_has_its_token(run, door, tmp_path):
    """Journal, log and checkpoints pass the door; the run's own folder holds none of them."""
    killed, folder = [], tmp_path / "behind"

    def strike(status):
        if not killed and all_step(syncer_step=20)(status):
            killed.append(status["syncer"]["pid"])
            kill(*killed)

    result = run("door", strike, folder, durability={"store": f"{door}/runs/one", "every_s": 2.0})
    assert_kept(result, "finished")
    assert [fact.epoch for fact in result.facts(SyncerStarted)] == [1, 2]
    assert result.facts(CheckpointWritten)
    assert set(objects(f"{door}/runs/one").folders("")) >= {"checkpoints", "journal", "log"}
    assert not {path.name for path in folder.iterdir()} & {"checkpoints", "journal", "log"}
    secret = os.environ[INVITATION].split(":")[1].encode()
    assert not [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
