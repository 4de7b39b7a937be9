"""A run that goes on where it was: stopped in order, or dead as a whole, on real Ray actors."""

from __future__ import annotations

import shutil

import pytest

from learners.protocol.facts import Resumed, StateReceived, StateSaved
from orchestrator.eventlog.facts import CheckpointWritten, RunResumed
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import Committed, SnapshotTaken
from tests.runtime.replayed import assert_bit_equal
from tests.runtime.script import Script, all_step, nothing, said
from tests.runtime.test_durability import incarnations
from tests.runtime.test_runs import assert_kept

pytestmark = [pytest.mark.runtime, pytest.mark.full]

BUDGET = {"syncer_steps": 300}


def test_a_run_that_was_stopped_goes_on_to_the_bit_and_with_another_learner(run, tmp_path):
    folder = tmp_path / "stopped"

    script = Script(folder, (all_step(syncer_step=40), nothing))
    first = run("stopped", script, folder, budget=BUDGET)
    assert (first.summary["state"], first.summary["reason"]) == ("stopped", "the script is over")
    (written,) = first.facts(CheckpointWritten)
    assert written.final and written.omitted == ()
    (cut,) = first.facts(SnapshotTaken)
    assert len(first.facts(StateSaved)) == 3
    assert all(
        ours >= theirs
        for fact in first.facts(StateSaved)
        for ours, theirs in zip(cut.versions, fact.versions, strict=True)
    )
    assert [e for e in first.of(Committed) if e.at > first.of(SnapshotTaken)[0].at] == []

    reopen(RunStore(folder))
    pools = [{"name": "t", "learners": 4, "batch_size": 2, "slowdown": 20.0}]
    second = run("stopped", folder=folder, budget=BUDGET, pools=pools)
    assert_kept(second)
    (resumed,) = second.facts(RunResumed)
    assert resumed.exact == ("learner-t-0", "learner-t-1", "learner-t-2") and resumed.damaged == ()
    assert len(second.facts(Resumed)) == 3
    assert {f"learner-t-{i}" for i in range(4)} == {name for name, _ in incarnations(second)}
    assert {incarnation for _, incarnation in incarnations(second)} == {1}
    assert second.summary["tokens"]["discarded"]["killed"] == 0, "no step was lost over it"
    assert_bit_equal(folder)


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
