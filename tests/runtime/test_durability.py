"""What outlives what, on real Ray actors: the syncer, its store, its journal."""

import os
import shutil

import psutil
import pytest

from orchestrator.eventlog.facts import SyncerLost
from orchestrator.runtime.placement import syncer_name
from outer.protocol.facts import Committed, FactsLost, StateRebuilt, StoreWaited, SyncerStarted
from outer.ray_ports import find
from tests.runtime.conftest import namespace
from tests.runtime.results import assert_kept
from tests.runtime.script import FOREVER, Script, all_step, kill, more, nothing
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.runtime, pytest.mark.full]


def test_a_syncer_that_dies_while_its_store_is_away_goes_on_once_that_is_back_and_nothing_is_lost(run, tmp_path):
    """The store is a folder that is not there for a while, as where a file system is not mounted."""
    folder, store, aside = tmp_path / "away", tmp_path / "store", tmp_path / "aside"

    def away(status):
        os.rename(store, aside)
        kill(status["syncer"]["pid"])

    def told(status):
        conditions = {each["type"]: each for each in status["run"]["conditions"]}
        return "the folder was there and is not" in conditions["Durable"]["message"]

    def refused(status):  # the second epoch, which is over
        over = status["syncer"]["epoch"] == 2 and find(syncer_name(2), namespace("away")) is None
        return over and status["syncer"]["down_s"] > 5.0

    script = Script(
        folder,
        (all_step(syncer_step=30), away),
        (told, nothing),
        (refused, lambda status: os.rename(aside, store)),
        (all_step(), nothing),
        (more(20), nothing),
    )
    result = run("away", script, folder, budget=FOREVER, durability={"store": str(store)})
    assert_kept(result, "stopped")
    assert result.facts(SyncerLost)[0].cause == "died"
    assert {incarnation for _, incarnation in result.incarnations} == {1}
    waited = [fact for fact in result.facts(StoreWaited) if fact.seconds > 5.0]
    assert waited and "the folder was there and is not" in waited[0].reason
    assert len(result.facts(SyncerStarted)) == 2 and len(result.outages) == 1


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
