"""A run whose syncer and shards die, and that goes on where it was: stopped in order, or dead as a whole."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from learners.protocol.facts import Adopted, AdoptionRefused, Resumed, StateReceived, StateSaved
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog.facts import CheckpointWritten, RunResumed, SyncerLost
from orchestrator.recipe.config import SYNCER
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore
from outer.journal.values import FOLDER as VALUES
from outer.kill_points import JOURNALED, MERGING
from outer.numeric.formats import named
from outer.protocol.facts import Committed, SnapshotTaken, StateRebuilt, SyncerStarted
from tests.runtime.results import STOPPED, assert_bit_equal, assert_kept
from tests.runtime.script import Script, nothing, said, stepping

pytestmark = pytest.mark.runtime

BUDGET = {"syncer_steps": 300}
KILLED_AT = (MERGING, JOURNALED)  # of a commit: a shard; the syncer, when the commit is durable and nobody knows it
CODED = {
    # Contributions and versions travel in 8 bits.
    "sync": {"codec": "int8", "downlink": "int8"},
    "chaos": {
        "faults": [
            {"kind": "kill", "learner": SYNCER, "point": point, "at_step": 12 * (1 + number)}
            for number, point in enumerate(KILLED_AT)
        ]
    },
    # Tensors above 100 kB, of one learner's steps without a pause: copies that XLA makes in its one thread may wait
    # for ever.
    "model": {"layers": 1, "width": 128, "heads": 2},
    "budget": {"syncer_steps": 120},
}
LIMITS = {"start_s": 600.0, "idle_s": 120.0, "syncer_lease_s": 8.0}  # idle: without a commit; then the run has failed
EPOCHS = 2 + len(KILLED_AT)  # of the first session: a shard is frozen, too


def epoch(number, syncer_step):
    """This epoch has committed, that much with those before it, with two shards, and all learners step."""
    seen = []  # syncer steps, while this epoch serves; those before it may have committed more than asked

    def serves(status):
        syncer = status["syncer"]
        if syncer["epoch"] == number:
            seen.append(status["run"]["syncer_step"])
        there = [shard for shard in syncer["shards"] or () if shard.get("pid")]
        all_there = len(there) == 2 and len(stepping(status)) == 3
        return bool(seen) and seen[-1] >= max(syncer_step, seen[0] + 2) and syncer["epoch"] == number and all_there

    return serves


@pytest.fixture(scope="module")
def resumed(run, tmp_path_factory):
    """One of two shards is killed, then the syncer, then a shard freezes, then a script stops the run.

    It goes on with one shard, a fourth learner, and without chaos. (first session, objects of values by fragment at
    its end, second session).
    """
    folder = tmp_path_factory.mktemp("resumed")

    def pools(learners):
        paced = {"name": "p", "learners": learners - 1, "batch_size": 2, "slowdown": 10.0}
        return [{"name": "t", "batch_size": 2, "slowdown": 1.0}, paced]

    script = Script(
        folder,
        (epoch(EPOCHS - 1, 35), lambda status: os.kill(status["syncer"]["shards"][0]["pid"], signal.SIGSTOP)),
        (epoch(EPOCHS, 45), nothing),
    )
    first = run("resumed", script, folder, pools=pools(3), run=LIMITS | {"shards": 2}, **CODED)
    left = {path.name: len(list(path.iterdir())) for path in (folder / VALUES).iterdir()}
    reopen(RunStore(folder))
    return first, left, run("resumed", folder=folder, pools=pools(4), run=LIMITS, **CODED | {"chaos": {}})


def test_a_dead_or_silent_shard_or_syncer_ends_its_epoch_and_nothing_is_lost(resumed):
    first, left, _ = resumed
    lost = [fact.detail for fact in first.facts(SyncerLost)]
    assert len(lost) == EPOCHS - 1 and lost[0].startswith("shard ") and "silent" in lost[-1]
    assert first.facts(StateRebuilt) == [], "the journal and its values were enough each time"
    assert sorted(left) == ["0000", "0001", "0002", "0003"]
    assert max(left.values()) <= 4, "older values are removed; what was merged and not recorded, a later epoch removes"


def test_a_run_that_is_stopped_writes_a_last_checkpoint_of_everybody(resumed):
    first, _, _ = resumed
    assert (first.summary["state"], first.summary["reason"]) == ("stopped", STOPPED)
    (written,) = first.facts(CheckpointWritten)
    assert written.final and written.omitted == ()
    (cut,) = first.facts(SnapshotTaken)
    saved = first.facts(StateSaved)
    assert len(saved) == 3
    assert all(ours >= theirs for fact in saved for ours, theirs in zip(cut.versions, fact.versions, strict=True))
    assert [e for e in first.of(Committed) if e.at > first.of(SnapshotTaken)[0].at] == []


def test_it_goes_on_to_the_bit_and_with_another_learner_and_another_number_of_shards(resumed):
    _, _, second = resumed
    assert_kept(second)
    [seal] = [verdict for verdict in check_run(second.folder) if verdict.name == "log.seal"]
    assert seal.status == "pass", "of the chaos actor's log, too, which only the first session had"
    (went_on,) = second.facts(RunResumed)
    assert sorted(went_on.exact) == ["learner-p-0", "learner-p-1", "learner-t-0"] and went_on.damaged == ()
    assert len(second.facts(Resumed)) == 3
    assert second.incarnations == {(f"learner-{name}", 1) for name in ("t-0", "p-0", "p-1", "p-2")}
    assert second.summary["tokens"]["discarded"]["killed"] == 0, "no step was lost over it"
    assert len(second.facts(SyncerStarted)) == EPOCHS + 1
    assert {fact.epoch for fact in second.facts(Committed)} >= {1, EPOCHS, EPOCHS + 1}
    assert second.facts(StateRebuilt) == []
    assert_bit_equal(second.folder)


def test_versions_travel_as_deltas_in_eight_bits_also_after_a_failover_and_a_stop(resumed):
    _, _, second = resumed
    assert {fact.reason for fact in second.facts(AdoptionRefused)} <= {"fetch_failed"}, "while no syncer served"
    sizes = second.facts(SyncerStarted)[0].sizes
    assert min(sizes) > 25_600, "in float32 above 100 kB"
    downloads = [
        (fact, named("int8").bytes(sizes[fact.fragment]), 4 * sizes[fact.fragment]) for fact in second.facts(Adopted)
    ]
    by_deltas = [fact for fact, delta, whole in downloads if fact.bytes % delta == 0 and fact.bytes < whole]
    assert all(fact.bytes == whole for fact, _, whole in downloads if fact.mode == "bootstrap")
    firsts = (EPOCHS + 1) * len(sizes) * 4  # of every epoch, for every learner
    assert len(downloads) - len(by_deltas) <= firsts < len(by_deltas), "no other travels whole"
    assert second.summary["wire_bytes"]["down"] == sum(fact.bytes for fact, _, _ in downloads)


@pytest.mark.full
def test_of_a_run_that_died_as_a_whole_the_learners_moments_come_from_its_checkpoint(run, tmp_path):
    """Everything written after that checkpoint is removed, as if the run had never come to an orderly end."""
    folder, durability = tmp_path / "dead", {"every_s": 2.0, "keep": 1000}

    def whole(event):
        return isinstance(event.fact, CheckpointWritten) and event.fact.omitted == () and not event.fact.final

    first = run("dead", Script(folder, (said(folder, whole), nothing)), folder, budget=BUDGET, durability=durability)
    kept = [event.fact.snapshot for event in first.events if whole(event)][-1]
    later = [path for path in (folder / "checkpoints").iterdir() if int(path.name) > kept]
    assert later, "the final one"
    for path in later:
        shutil.rmtree(path)
    reopen(RunStore(folder))
    second = run("dead", folder=folder, budget=BUDGET, durability=durability)
    assert_kept(second)
    (resumed,) = second.facts(RunResumed)
    assert (resumed.snapshot, resumed.exact) == (kept, ())
    received = [event.fact for event in second.of(StateReceived) if event.incarnation == 2]
    sources = [(fact.source, fact.donor_incarnation) for fact in received]
    assert sources[0] == ("peer", 1), "the first to join has nobody to ask"
    assert len(sources) == 3 and set(sources) <= {("peer", 1), ("peer", 2)}, "a later one may find the first stepping"
    assert_bit_equal(folder)
