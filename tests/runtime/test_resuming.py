"""A run that goes on where it was: stopped in order, or dead as a whole, on real Ray actors."""

from __future__ import annotations

import shutil

import pytest

from learners.protocol.facts import Adopted, AdoptionRefused, Resumed, StateReceived, StateSaved
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog.facts import CheckpointWritten, RunResumed
from orchestrator.recipe.config import SYNCER
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore
from outer.kill_points import APPLIED, JOURNALED, RECEIVED
from outer.numeric.formats import named
from outer.protocol.facts import Committed, SnapshotTaken, SyncerStarted
from tests.runtime.results import STOPPED, assert_bit_equal, assert_kept
from tests.runtime.script import Script, all_step, nothing, said

pytestmark = pytest.mark.runtime

BUDGET = {"syncer_steps": 300}
CODED = {
    # Contributions and versions travel in 8 bits, and the syncer is killed at each point of a commit.
    "sync": {"codec": "int8", "downlink": "int8"},
    "chaos": {
        "faults": [
            {"kind": "kill", "learner": SYNCER, "point": point, "at_step": 15 * (1 + number)}
            for number, point in enumerate((RECEIVED, JOURNALED, APPLIED))
        ]
    },
    # Tensors above 100 kB, of steps without a pause: copies that XLA makes in its one thread may wait for ever.
    "model": {"layers": 1, "width": 128, "heads": 2},
    "run": {"start_s": 600.0, "idle_s": 120.0},  # without a commit: then the run has failed
    "budget": {"syncer_steps": 120},
}


@pytest.fixture(scope="module")
def resumed(run, tmp_path_factory):
    """A run that a script stops, and the same once it has gone on with a fourth learner, and without chaos."""
    folder = tmp_path_factory.mktemp("resumed")

    def pools(learners):
        return [{"name": "t", "learners": learners, "batch_size": 2, "slowdown": 1.0}]

    first = run("resumed", Script(folder, (all_step(syncer_step=60), nothing)), folder, pools=pools(3), **CODED)
    reopen(RunStore(folder))
    return first, run("resumed", folder=folder, pools=pools(4), **CODED | {"chaos": {}})


def test_a_run_that_is_stopped_writes_a_last_checkpoint_of_everybody(resumed):
    first, _ = resumed
    assert (first.summary["state"], first.summary["reason"]) == ("stopped", STOPPED)
    (written,) = first.facts(CheckpointWritten)
    assert written.final and written.omitted == ()
    (cut,) = first.facts(SnapshotTaken)
    saved = first.facts(StateSaved)
    assert len(saved) == 3
    assert all(ours >= theirs for fact in saved for ours, theirs in zip(cut.versions, fact.versions, strict=True))
    assert [e for e in first.of(Committed) if e.at > first.of(SnapshotTaken)[0].at] == []


def test_it_goes_on_to_the_bit_and_with_another_learner(resumed):
    _, second = resumed
    assert_kept(second)
    [seal] = [verdict for verdict in check_run(second.folder) if verdict.name == "log.seal"]
    assert seal.status == "pass", "of the chaos actor's log, too, which only the first session had"
    (went_on,) = second.facts(RunResumed)
    assert went_on.exact == ("learner-t-0", "learner-t-1", "learner-t-2") and went_on.damaged == ()
    assert len(second.facts(Resumed)) == 3
    assert second.incarnations == {(f"learner-t-{i}", 1) for i in range(4)}
    assert second.summary["tokens"]["discarded"]["killed"] == 0, "no step was lost over it"
    assert len(second.facts(SyncerStarted)) == 5
    assert_bit_equal(second.folder)


def test_versions_travel_as_deltas_in_eight_bits_also_after_a_failover_and_a_stop(resumed):
    _, second = resumed
    assert {fact.reason for fact in second.facts(AdoptionRefused)} <= {"fetch_failed"}, "while no syncer served"
    sizes = second.facts(SyncerStarted)[0].sizes
    assert min(sizes) > 25_600, "in float32 above 100 kB"
    downloads = [
        (fact, named("int8").bytes(sizes[fact.fragment]), 4 * sizes[fact.fragment]) for fact in second.facts(Adopted)
    ]
    by_deltas = [fact for fact, delta, whole in downloads if fact.bytes % delta == 0 and fact.bytes < whole]
    assert all(fact.bytes == whole for fact, _, whole in downloads if fact.mode == "bootstrap")
    assert len(by_deltas) > 0.8 * len(downloads), "the rest are first versions, and first ones after the stop"
    down, up = (second.summary["wire_bytes"][way] for way in ("down", "up"))
    assert down == sum(fact.bytes for fact, _, _ in downloads)
    assert down < 2 * up


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
