"""Whole runs on real Ray actors: without faults, and through deaths and freezes of learners."""

import json
import os
from ipaddress import ip_address

import numpy as np
import psutil
import pytest
import ray

import diloco
from learners.protocol.facts import LoopFailed, PhaseEntered
from orchestrator.analysis.folder import check_run
from orchestrator.eventlog.facts import Evaluated, LearnerLost, RunStarted
from outer.numeric import codec
from outer.protocol.facts import Committed
from tests.runtime.conftest import LEARNERS
from tests.runtime.results import assert_kept

pytestmark = pytest.mark.runtime
LEARNERS_ALL = {f"learner-t-{index}" for index in range(LEARNERS)}


# ------------------------------------------------------------------ without faults


@pytest.fixture(scope="module")
def plain(run, corpus):
    """All learners are in one region, whose node has two cores."""
    asked = {"every": 20, "sets": [{"name": "again", "path": corpus}], "batch_size": 3}
    pools = [{"name": "t", "learners": LEARNERS, "batch_size": 2, "slowdown": 20.0, "region": "eu"}]
    return run("plain", cores=2, pools=pools, budget={"syncer_steps": 80}, eval=asked)


def test_a_run_without_faults_ends_with_exact_books_and_says_so_in_every_file(plain):
    assert_kept(plain)
    assert plain.summary["eval_loss"] < plain.summary["initial_eval_loss"]
    assert plain.facts(LearnerLost) == []
    assert plain.summary["faults"] == []
    assert plain.summary["rounds_per_fragment"] == 20
    assert sum(plain.summary["goodput_categories"].values()) == pytest.approx(1.0, abs=0.01)
    assert plain.summary["goodput_categories"]["unattributed"] <= 0.01
    assert min(plain.summary["participation"]["by_learner"].values()) > 0.5
    assert {row["name"] for row in plain.statuses[-1]["learners"]} == LEARNERS_ALL
    assert plain.statuses[-1]["run"]["state"] == "finished"
    assert json.loads((plain.folder / "summary.json").read_text()) == plain.summary
    sealed = [verdict for verdict in check_run(plain.folder) if verdict.name.startswith("log.")]
    assert [verdict for verdict in sealed if verdict.status != "pass"] == [], "nobody wrote behind the seal"


def test_the_log_names_the_sources_that_made_it_and_every_learners_phases(plain):
    (begun,) = plain.facts(RunStarted)
    assert len(begun.versions["code"]) == 16
    assert {event.writer for event in plain.of(PhaseEntered)} == LEARNERS_ALL


def test_the_files_say_what_the_log_does(plain):
    evaluated = plain.facts(Evaluated)
    assert evaluated[-1].metrics == {"again/loss": evaluated[-1].loss}, "the same text under another name"

    manifest = json.loads((plain.folder / "final" / "manifest.json").read_text())["tensors"]
    newest = {commit.fragment: commit.digest for commit in plain.facts(Committed)}
    with np.load(plain.folder / "final" / "parameters.npz", allow_pickle=False) as arrays:
        for fragment, digest in newest.items():
            names = [name for name, about in manifest.items() if about["fragment"] == fragment]
            flat = b"".join(arrays[name].tobytes() for name in names)
            assert codec.digest(np.frombuffer(flat, np.uint8)) == digest, "final/ holds what was committed last"


def test_python_reads_of_a_run_what_its_files_say(plain, tmp_path):
    run = diloco.open(str(plain.folder))
    assert run.losses().column("loss").to_pylist() == [each.loss for each in plain.facts(Evaluated)]
    assert run.table("SELECT count(*) AS commits FROM commits").to_pylist() == [{"commits": 80}]
    with pytest.raises(diloco.InputError, match="nowhere"):
        run.table("SELECT * FROM nowhere")
    with np.load(plain.folder / "final" / "parameters.npz", allow_pickle=False) as arrays:
        assert {name: values.tobytes() for name, values in run.parameters().items()} == {
            name: arrays[name].tobytes() for name in arrays.files
        }
    assert run.summary == plain.summary and run.status["run"]["state"] == "finished"
    assert run.recipe.budget.syncer_steps == 80
    assert all(verdict.stands for verdict in run.check())
    assert "<html" in run.report(tmp_path / "page.html").read_text()


def test_a_version_leaves_the_syncer_once_for_a_region(plain):
    """Without relays each of the three learners would fetch every version."""
    rows = [[row for row in status["learners"] if row["region"] == "eu"] for status in plain.statuses]
    sent = max(sum(row["counts"]["version_bytes"] for row in learners) for learners in rows)
    assert 0 < sent < 0.6 * plain.summary["wire_bytes"]["down"]


# ------------------------------------------------------------------ deaths of learners


@pytest.mark.full
def test_a_learner_frozen_for_too_long_and_one_whose_loop_raises_are_lost_and_restarted(run, tmp_path):
    """Learner 0 freezes; one of the others takes the sample at which it raises, or learner 0, once it is back."""
    result = run(
        "hang",
        task="tests.runtime.tasks:FailsOnce",
        model={"flag": str(tmp_path / "flag"), "fail_at": 300},
        budget={"syncer_steps": 120},
        run={"hang_s": 12.0},
        chaos={"faults": [{"kind": "freeze", "learner": "learner-t-0", "at_step": 20, "duration_s": 600.0}]},
    )
    assert_kept(result)
    lost = {fact.cause: fact for fact in result.facts(LearnerLost)}
    assert lost.keys() == {"lease_expired", "failed"} and len(result.facts(LearnerLost)) == 2
    assert lost["lease_expired"].learner == "learner-t-0"
    (failed,) = result.facts(LoopFailed)
    assert "this sample cannot be learned" in failed.traceback
    assert "this sample cannot be learned" in lost["failed"].detail
    for each in lost.values():
        assert any(n > each.incarnation for name, n in result.participants() if name == each.learner), "it merges again"


# ------------------------------------------------------------------ where processes listen


def listeners():
    """(process, address) of every TCP port on which this process or one below it listens: docs/decisions/0008."""
    found = []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            ports = [each.laddr.ip for each in process.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN]
            found += [(process.name(), address) for address in ports]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has just ended
    return found


def on_loopback(address):
    return ip_address(address.removeprefix("::ffff:")).is_loopback


def test_every_listener_of_a_local_run_is_on_loopback(ray_cluster):
    assert not on_loopback("::") and not on_loopback("0.0.0.0")
    ray.get(ray.remote(num_cpus=0.01)(lambda: None).remote())  # so that there is a worker
    found = listeners()
    assert {"gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= {name for name, _ in found}
    assert [(name, address) for name, address in found if not on_loopback(address)] == []
    children = psutil.Process().children(recursive=True)
    groups = [os.getpgid(each.pid) for each in children if each.name() in ("gcs_server", "raylet")]
    assert len(groups) == 2 and os.getpgid(0) not in groups, "a signal to our group is ours alone"
