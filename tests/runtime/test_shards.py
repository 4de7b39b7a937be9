"""Fragments spread over shard processes: shards die and fall silent, and a run goes on with another number of them."""

from __future__ import annotations

import os
import signal

import pytest

from learners.protocol.facts import AdoptionRefused
from orchestrator.eventlog.facts import CheckpointWritten, SyncerLost
from orchestrator.recipe.config import SYNCER
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore
from outer.journal.values import FOLDER
from outer.kill_points import MERGING
from outer.protocol.facts import Committed, StateRebuilt, SyncerStarted
from tests.runtime.results import assert_bit_equal, assert_kept
from tests.runtime.script import Script, nothing

pytestmark = pytest.mark.runtime


def epoch(number, syncer_step):
    """This epoch has committed that much."""

    def serves(status):
        syncer = status["syncer"]
        told = syncer["shards"] and all(shard.get("pid") for shard in syncer["shards"])
        return syncer["epoch"] == number and told and status["run"]["syncer_step"] >= syncer_step

    return serves


@pytest.fixture(scope="module")
def sharded(run, tmp_path_factory):
    """One shard is killed within a merge, the other freezes; then the run is stopped, and goes on with one shard."""
    folder = tmp_path_factory.mktemp("sharded")
    script = Script(
        folder,
        (epoch(2, 50), lambda status: os.kill(status["syncer"]["shards"][0]["pid"], signal.SIGSTOP)),
        (epoch(3, 80), nothing),
    )
    settings = {
        "sync": {"downlink": "int8"},
        "budget": {"syncer_steps": 140},
        "chaos": {"faults": [{"kind": "kill", "learner": SYNCER, "point": MERGING, "at_step": 30}]},
    }
    first = run("sharded", script, folder, run={"shards": 2, "syncer_lease_s": 8.0}, **settings)
    left = {path.name: len(list(path.iterdir())) for path in (folder / FOLDER).iterdir()}
    reopen(RunStore(folder))
    return first, left, run("sharded", folder=folder, run={"shards": 1}, **settings)


def test_a_dead_or_silent_shard_ends_its_epoch_and_nothing_is_lost(sharded):
    first, left, _ = sharded
    assert first.summary["state"] == "stopped"
    lost = [fact.detail for fact in first.facts(SyncerLost)]
    assert len(lost) == 2 and all(why.startswith("shard ") for why in lost) and "silent" in lost[1]
    assert first.facts(StateRebuilt) == [], "the journal and its values were enough each time"
    assert {fact.reason for fact in first.facts(AdoptionRefused)} <= {"fetch_failed"}, "from the frozen one"
    assert first.facts(CheckpointWritten)[-1].final
    assert sorted(left) == ["0000", "0001", "0002", "0003"]
    assert max(left.values()) <= 4, "older values are removed; what was merged and not recorded, a later epoch removes"


def test_a_run_goes_on_with_another_number_of_shards_to_the_bit(sharded):
    _, _, second = sharded
    assert_kept(second)
    assert second.facts(StateRebuilt) == []
    assert len(second.facts(SyncerStarted)) == 4
    assert {fact.epoch for fact in second.facts(Committed)} >= {1, 2, 3, 4}
    assert_bit_equal(second.folder)
