"""A run as a Ray job on a cluster of two regions, by token: who lives where, what survives what, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.eventlog.facts import LearnerStarted
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.toml_text import load, stored_hash
from orchestrator.recipe.validation import resolve
from orchestrator.store.run_store import RunStore
from tests.runtime.clusters import BIN, Cluster, cluster
from tests.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.runtime, pytest.mark.full]
ROOT = Path(__file__).parents[2]
REGIONS = ("us-east", "us-west")
RECIPE = """
name = "ends"
task = "own:Model"        # in no folder but the one that is sent
model = {{ layers = 1, width = 16, heads = 2 }}
data = {{ path = "{corpus}", sequence_length = 16, held_out = 0.25 }}
sync = {{ P = 4, H = 4, tau = 2, quorum = "all" }}
run = {{ start_s = 600.0, hang_s = 120.0, syncer_lease_s = 60.0 }}
budget = {{ syncer_steps = {steps} }}
eval = {{ every = 0, sequences = 8 }}
[[pools]]
name = "us-east"
region = "us-east"
batch_size = 2
slowdown = 20.0
resources = {{ CPU = 0.5 }}
[[pools]]
name = "us-west"
region = "us-west"
batch_size = 2
slowdown = 20.0
resources = {{ CPU = 0.5 }}
"""
OWN = "from learners.training.models.causal_lm import CausalLM\n\n\nclass Model(CausalLM):\n    pass\n"
LEARNERS = ["learner-us-east-0", "learner-us-west-0"]


def folder(where: Path, corpus: str, steps: int) -> Path:
    """A working directory: a recipe and a task of one's own."""
    where.mkdir()
    (where / "recipe.toml").write_text(RECIPE.format(corpus=corpus, steps=steps))
    (where / "own.py").write_text(OWN)
    return where


def diloco(there: Cluster, cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    return there.run(sys.executable, "-m", "orchestrator", *arguments, cwd=cwd, PYTHONPATH=str(ROOT))


def ended(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and what was printed on stdout; on failure of the wait, nothing is left behind: see Cluster.close."""
    out, err = client.communicate(timeout=DEADLINE_S)
    print(err, file=sys.stderr)
    return client.returncode, out


def stepping(store: RunStore, *incarnations: int) -> bool:
    rows = (store.read_json("status.json") or {}).get("learners") or []
    return [row["incarnation"] for row in rows if row["state"] == "stepping"] == list(incarnations)


def job(there: Cluster, run: str) -> dict[str, Any]:
    """The job of a run of this name, as the dashboard shows it."""
    (found,) = [row for row in there.get("/api/jobs/")[1] if (row["metadata"] or {}).get("run") == run]
    return dict(found)


def actors(there: Cluster, run: str) -> dict[str, tuple[str, str]]:
    """Living actors of a run by name: what the dashboard calls them, and the region of their node."""
    regions = there.regions()
    return {
        row["name"]: (row["repr_name"], regions[row["node_id"]])
        for row in there.state("actors")
        if row["ray_namespace"].startswith(f"diloco-{run}-") and row["state"] == "ALIVE"
    }


def violated(summary: dict[str, Any]) -> list[Any]:
    return [check for check in summary["checks"] if check["status"] == "violated"]


def test_runs_submitted_as_jobs_live_in_their_regions_and_outlive_client_and_driver(
    tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = {run: RunStore(tmp_path / run) for run in ("ends", "orphan", "halted")}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    work = folder(tmp_path / "work", corpus, steps=400)
    long = folder(tmp_path / "long", corpus, steps=100_000)
    for room in ("outer", "learners", "orchestrator", "chaos"):
        (long / room).symlink_to(ROOT / room)  # as a checkout has them

    with cluster(REGIONS, cpus=4, **cache) as there:
        # ---------------------------------------- diloco submit; its client dies; the run goes on to its end
        place = ("--address", there.address, "--set", f"run.folder=file://{stores['ends'].root}")
        client = diloco(there, work, "submit", "recipe.toml", *place)
        until(lambda: client.poll() or stepping(stores["ends"], 1, 1), "both learners step")
        assert client.poll() is None, client.communicate()
        client.kill()

        living = actors(there, "ends")
        for name, region in zip(LEARNERS, REGIONS, strict=True):
            assert living[name] == (name, region)
        assert {living[name][0] for name in ("syncer.1", "orchestrator")} == {"syncer", "orchestrator"}
        assert {row["name"] for row in there.state("placement_groups") if row["state"] == "CREATED"} == set(LEARNERS)
        assert there.get("/api/v0/actors", token=False)[0] == there.get("/api/jobs/", token=False)[0] == 401
        submitted = job(there, "ends")
        assert submitted["submission_id"].startswith("diloco-ends-")
        assert submitted["status"] == "RUNNING" and submitted["metadata"]["job_name"] == "ends"
        monkeypatch.syspath_prepend(work)
        here = resolve(load(work / "recipe.toml")).config_hash
        assert (
            here == submitted["metadata"]["config_hash"] == stored_hash(stores["ends"].read_text("config.toml") or "")
        )

        # ---------------------------------------- ray job submit; driver and a learner die; the run goes on
        command = ["ray", "job", "submit", "--address", there.address, "--working-dir", ".", "--no-wait"]
        command += ["--metadata-json", json.dumps({"run": "orphan"}), "--", "python", "-m", "orchestrator", "run"]
        command += ["recipe.toml", "--set", "name=orphan", "--set", f"run.folder={stores['orphan'].root}"]
        by_ray = there.run(BIN / command[0], *command[1:], cwd=long)

        command = ["job", "logs", "--follow", "--address", there.address, submitted["submission_id"]]
        code, out = ended(there.run(BIN / "ray", *command, cwd=long))
        assert code == 0
        kept = re.search(r"checks +(\d+) of (\d+) passed, (\d+) not exercised", out)
        assert kept is not None and kept[1] == kept[2], out
        submitted = until(lambda: (row := job(there, "ends"))["status"] != "RUNNING" and row, "the job has ended")
        assert (submitted["status"], submitted["driver_exit_code"]) == ("SUCCEEDED", 0)
        summary = stores["ends"].read_json("summary.json")
        assert (summary["state"], summary["ok"]) == ("finished", True)
        regions = there.regions()
        begun = [event.fact for event in read_run(stores["ends"].root) if isinstance(event.fact, LearnerStarted)]
        assert {fact.learner: regions[fact.node] for fact in begun} == dict(zip(LEARNERS, REGIONS, strict=True))

        assert ended(by_ray)[0] == 0
        until(lambda: stepping(stores["orphan"], 1, 1), "both learners step")
        driver = psutil.Process(int(job(there, "orphan")["driver_info"]["pid"]))
        driver.kill()
        driver.wait(DEADLINE_S)
        until(lambda: job(there, "orphan")["status"] == "FAILED", "the job has ended with its driver")
        rows = stores["orphan"].read_json("status.json")["learners"]
        psutil.Process(next(row["pid"] for row in rows if row["name"] == LEARNERS[1])).kill()

        # ---------------------------------------- diloco submit, and ray job stop
        place = ("--address", there.address, "--set", f"run.folder={stores['halted'].root}")
        west = ("--set", 'run.control={region="us-west"}')
        halted = diloco(
            there, long, "submit", "recipe.toml", *place, "--set", "name=halted", "--no-wait", "--json", *west
        )
        code, out = ended(halted)
        assert code == 0
        identifier = json.loads(out)["submission_id"]

        until(lambda: stepping(stores["orphan"], 1, 2), "the replacement steps, on sources that outlive the job")
        assert f"{LEARNERS[1]}.2" in actors(there, "orphan")
        follower = diloco(there, work, "status", "--follow", str(stores["orphan"].root), "--json")
        assert ended(diloco(there, work, "stop", str(stores["orphan"].root)))[0] == 0
        code, out = ended(follower)
        assert code == 0
        assert (json.loads(out)["state"], violated(json.loads(out))) == ("stopped", [])

        until(lambda: stepping(stores["halted"], 1, 1), "both learners step")
        living, regions = actors(there, "halted"), there.regions()
        (driver_node,) = [row["node_id"] for row in there.state("actors") if (row["name"] or "").endswith(identifier)]
        assert {living["syncer.1"][1], living["orchestrator"][1], regions[driver_node]} == {"us-west"}
        assert there.get(f"/api/jobs/{identifier}/stop", method="POST")[0] == 200
        summary = until(lambda: stores["halted"].read_json("summary.json"), "the run has closed its books")
        assert (summary["state"], violated(summary)) == ("stopped", [])
        assert (
            until(lambda: (row := job(there, "halted"))["status"] != "RUNNING" and row, "ended")["status"] == "STOPPED"
        )
