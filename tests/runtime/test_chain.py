"""A run whose contributions and versions travel in 8 bits, through a failover and a stop, on real Ray actors."""

from __future__ import annotations

import pytest

from learners.protocol.facts import Adopted, AdoptionRefused, Resumed
from orchestrator.recipe.config import SYNCER
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore
from outer.kill_points import JOURNALED
from outer.numeric.formats import named
from outer.protocol.facts import SyncerStarted
from tests.runtime.conftest import LEARNERS
from tests.runtime.replayed import assert_bit_equal
from tests.runtime.script import Script, all_step, nothing
from tests.runtime.test_runs import assert_kept

# Steps without a pause, of tensors above 100 kB: copies that XLA makes in its one thread may wait behind them for ever.
BUSY = [{"name": "t", "learners": LEARNERS, "batch_size": 2, "slowdown": 1.0}]
IDLE = {"start_s": 600.0, "idle_s": 120.0}  # without a commit: then the run has failed

pytestmark = [pytest.mark.runtime, pytest.mark.full]


def test_a_coded_chain_outlives_its_syncer_and_a_stop_and_is_replayed_to_the_bit(run, tmp_path):
    folder, sync = tmp_path / "coded", {"codec": "int8", "downlink": "int8"}
    faults = [{"kind": "kill", "learner": SYNCER, "point": JOURNALED, "at_step": 30}]
    settings = {"sync": sync, "budget": {"syncer_steps": 240}, "chaos": {"faults": faults}}
    settings |= {"model": {"layers": 1, "width": 128, "heads": 2}, "pools": BUSY, "run": IDLE}
    first = run("coded", Script(folder, (all_step(syncer_step=120), nothing)), folder, **settings)
    assert first.summary["state"] == "stopped"
    reopen(RunStore(folder))
    second = run("coded", folder=folder, **settings)
    assert_kept(second)
    assert len(second.facts(SyncerStarted)) == 3 and len(second.facts(Resumed)) == 3
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
    assert_bit_equal(folder)
