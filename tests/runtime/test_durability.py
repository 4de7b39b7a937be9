"""What outlives what, on real Ray actors: the syncer, its journal, the orchestrator, the whole run."""

import os
import shutil

import psutil
import pytest

from learners.protocol.facts import StepFinished
from orchestrator.eventlog.facts import (
    CheckpointWritten,
    LearnerRequested,
    OrchestratorFollowed,
    SyncerLost,
)
from outer.journal.door import INVITATION
from outer.journal.object_store import objects
from outer.protocol.facts import Committed, FactsLost, StateRebuilt, StoreWaited, SyncerStarted
from tests.runtime.conftest import LEARNERS
from tests.runtime.results import assert_kept
from tests.runtime.script import FOREVER, Script, all_step, kill, more, nothing, said
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.runtime
LEARNERS_ALL = {f"learner-t-{index}" for index in range(LEARNERS)}


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
    ((lost,), (_, started)) = result.of(OrchestratorFollowed), result.of(SyncerStarted)
    stepped = {event.writer for event in result.of(StepFinished) if lost.at < event.at < started.at}
    assert stepped >= {"learner-t-1", "learner-t-2"}, "they waited for the syncer"


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
