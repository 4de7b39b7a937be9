"""Pools on a cluster of fake accelerators: who runs where, who cannot and why, and that no place is kept afterwards."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli.terminal import LiveView
from orchestrator.eventlog.facts import LearnerLost
from orchestrator.eventlog.reader import read_run
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import ENDING
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.runtime, pytest.mark.full]

ROOT = Path(__file__).parents[2]
TYPE, POD = "ray.io/accelerator-type", "ray.io/tpu-pod-type"
SLICE, WORKER = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("islands")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("islands.py")), str(folder)],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["ended"] == ["stopped", "seen enough"]
    return result


def test_regions_accelerators_and_slices_are_honoured_and_a_slice_is_taken_whole_in_the_order_of_its_hosts(
    found: dict[str, Any],
) -> None:
    placed = found["placed"]
    assert (placed["learner-h100-0"]["region"], placed["learner-h100-0"][TYPE]) == ("east", "H100")
    assert placed["learner-gpu-west-0"]["region"] == "west"
    assert (placed["learner-v6e-0"][POD], placed["learner-v5p-0"][POD]) == ("v6e-8", "v5p-8")
    hosts = [placed["learner-slice-0"], *found["ranks"]["learner-slice-0"]]
    assert [(host[SLICE], host[WORKER]) for host in hosts] == [("whole", "0"), ("whole", "1")]


def test_a_pool_without_a_place_is_reported_with_what_is_there_instead_while_the_others_train(
    found: dict[str, Any],
) -> None:
    assert found["lost"] == []
    assert found["waits"]["LearnersPlaced"] == (
        "pool none: 1 of 1 learners wait for a place: no living node has the labels region = west, "
        "ray.io/accelerator-type = TPU-V6E, ray.io/tpu-pod-type = v6e-4; there, region is east, west; "
        "ray.io/accelerator-type is A100, H100, TPU-V5P, TPU-V6E; ray.io/tpu-pod-type is v5p-16, v5p-8, v6e-8"
    )
    assert len(found["placed"]) == 5


def test_a_node_that_gives_notice_is_left_without_a_loss_and_its_learner_comes_back_elsewhere(
    found: dict[str, Any],
) -> None:
    [notice] = found["notices"]
    assert (notice["node"], notice["learners"]) == (found["preempted"], ["learner-gpu-west-0"])
    assert 0 < notice["remaining_s"] <= 120
    assert ["learner-gpu-west-0", 1, "drained"] in found["fenced"]
    assert found["discarded"]["drained"] == found["discarded"]["killed"] == 0
    [(node, labels)] = found["moved"]
    assert node != found["preempted"]
    assert (labels["region"], labels[TYPE]) == ("west", "A100")


def test_places_bear_the_learners_names_and_none_is_left_afterwards(found: dict[str, Any]) -> None:
    placed = {f"learner-{pool}-0": "CREATED" for pool in ("h100", "gpu-west", "v6e", "v5p", "slice")}
    assert found["groups"] == placed | {"learner-slice-0.head": "CREATED", "learner-none-0": "PENDING"}
    assert found["groups_after"] == {}


def test_what_needs_the_runs_folder_stays_on_the_nodes_meant_for_it_or_nothing_starts(found: dict[str, Any]) -> None:
    roles = {name: labels.get("role") for name, labels in found["bound"].items()}
    assert roles == dict.fromkeys(("syncer.1", "orchestrator", "chaos", "metrics"), "control")
    assert "run.control" in found["control"]
    assert "no living node has the label role = controll; there, role is control" in found["control"]


def test_a_learner_that_shares_a_gpu_sees_it_and_gets_its_part_of_the_memory_beside_the_jobs_own_settings(
    found: dict[str, Any],
) -> None:
    seen = {"visible devices": "ok"}  # CUDA_VISIBLE_DEVICES names what Ray grants
    assert found["settings"] == {"XLA_CLIENT_MEM_FRACTION": "0.450", "JOB": "here"} | seen


NOWHERE = ("learner-none-0", "learner-none-1")


def test_a_run_whose_pool_has_no_place_says_so_with_the_quorum_that_is_impossible_and_waits_on(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """It gives up neither when the start of a learner times out, nor when nothing was committed for `idle_s`."""
    printed, limits = io.StringIO(), {"start_s": 4.0, "idle_s": 1.0}
    view = LiveView(console=Console(file=printed, width=200))
    told: dict[str, tuple[int, str]] = {}  # by type: how many statuses came before, two a second at most; message
    states: dict[float, str] = {}  # by when the status was written

    def lost() -> set[str]:
        return {event.fact.learner for event in read_run(tmp_path) if isinstance(event.fact, LearnerLost)}

    def watch(status: Any) -> None:
        view.update(status)
        states[status["written_at"]] = status["run"]["state"]
        age_s = status["written_at"] - status["run"]["started_at"]
        for each in status["run"]["conditions"]:
            if each["reason"] == "NoPlace":
                told.setdefault(each["type"], (len(states) - 1, each["message"]))
        if age_s > 4.0 * sum(limits.values()) and lost() == set(NOWHERE):
            RunStore(tmp_path).write_json("stop", {"reason": "seen enough"})

    pool = {"name": "none", "learners": 2, "resources": {"CPU": 1.0, "moonstone": 3.0}}
    result = run("no-place", watch, tmp_path, pools=[pool], run=limits, sync={"quorum": 2})
    why = "pool none: 2 of 2 learners wait for a place: of 1 living nodes none has 3 moonstone: the largest has 0"
    assert told["LearnersPlaced"][1] == why
    assert told["QuorumMet"][1] == "the quorum of 2 cannot be reached: 0 of 2 learners have a place; the run waits"
    assert max(before for before, _ in told.values()) <= 2 * 5, "within 5 s"
    lines = printed.getvalue().splitlines()
    assert lines.count(why) == lines.count(told["QuorumMet"][1]) == 1
    assert set(states.values()) <= {"starting", "running", ENDING, "stopped"}
    assert result.summary["state"] == "stopped"
    assert lost() == set(NOWHERE), "it tries again"
