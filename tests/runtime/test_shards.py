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
from tests.runtime.replayed import assert_bit_equal
from tests.runtime.script import Script, nothing
from tests.runtime.test_runs import assert_kept

pytestmark = [pytest.mark.runtime, pytest.mark.full]


def strike(shard: int, sign: signal.Signals):
    """Send a signal to a shard's process."""
    return lambda status: os.kill(status["syncer"]["shards"][shard]["pid"], sign)


def epoch(number: int, syncer_step: int):
    """This epoch has committed that much."""

    def serves(status):
        syncer = status["syncer"]
        told = syncer["shards"] and all(shard.get("pid") for shard in syncer["shards"])
        return syncer["epoch"] == number and told and status["run"]["syncer_step"] >= syncer_step

    return serves


def test_a_dead_or_silent_shard_ends_its_epoch_and_nothing_is_lost(run, tmp_path):
    folder = tmp_path / "sharded"
    script = Script(
        folder,
        (epoch(2, 60), strike(1, signal.SIGKILL)),
        (epoch(3, 90), strike(0, signal.SIGSTOP)),
        (epoch(4, 120), nothing),
    )
    settings = {
        "sync": {"downlink": "int8"},
        "budget": {"syncer_steps": 240},
        "chaos": {"faults": [{"kind": "kill", "learner": SYNCER, "point": MERGING, "at_step": 30}]},
    }
    shards = {"shards": 2, "syncer_lease_s": 6.0}
    first = run("sharded", script, folder, run=shards, **settings)
    assert first.summary["state"] == "stopped"
    lost = [fact.detail for fact in first.facts(SyncerLost)]
    assert len(lost) == 3 and all(why.startswith("shard ") for why in lost) and "silent" in lost[2]
    assert first.facts(StateRebuilt) == [], "the journal and its values were enough each time"
    assert {fact.reason for fact in first.facts(AdoptionRefused)} <= {"fetch_failed"}, "from the frozen one"
    assert first.facts(CheckpointWritten)[-1].final
    kept = {path.parent.name: path for path in (folder / FOLDER).rglob("*") if path.is_file()}
    assert sorted(kept) == ["0000", "0001", "0002", "0003"]
    left = [len(list((folder / FOLDER / name).iterdir())) for name in kept]
    assert max(left) <= 4, "older values are removed; what was merged and not recorded, a later epoch removes"

    reopen(RunStore(folder))
    second = run("sharded", folder=folder, run={"shards": 1}, **settings)
    assert_kept(second)
    assert second.facts(StateRebuilt) == []
    assert len(second.facts(SyncerStarted)) == 5
    assert {fact.epoch for fact in second.facts(Committed)} >= {1, 2, 3, 4, 5}
    assert_bit_equal(folder)
