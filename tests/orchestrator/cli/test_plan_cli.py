"""`diloco plan`: its exit codes, its output, that it agrees with `run`, and that it starts and leaves nothing."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestrator.cli import plan as command
from orchestrator.cli.app import build
from orchestrator.cli.planview import LINES_MOST
from orchestrator.cli.recipes import prepare
from orchestrator.planner import forecast
from orchestrator.runtime import launch
from tests.orchestrator import calling
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
LOCAL = str(ROOT / "deploy" / "recipes" / "local.toml")
DEMO = str(ROOT / "deploy" / "recipes" / "demo.toml")


@pytest.fixture(autouse=True)
def shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts of fewer steps: what they come to is in tests/orchestrator/planner."""
    monkeypatch.setattr(forecast, "STEPS_MAX", 600)


def invoke(*arguments: str, **options: Any) -> Any:
    return calling.invoke("plan", *arguments, **options)


def test_a_model_of_5_billion_parameters_is_planned_within_seconds_without_ray_or_its_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = (
        "import resource, sys\nfrom orchestrator.cli.app import build\n"
        "try:\n    build()()\nfinally:\n"
        "    print('ray' in sys.modules, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    large = ["--set", "model={layers=32,width=3584,heads=28}", "--set", "sync.P=24", "--set", "sync.H=24"]
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", LOCAL, *large, "--json", "--node", "CPU=64,memory=4000"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30.0, "about 2 s of work"
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["model"]["elements"] == 32 * (4 * 3584**2 + 3 * 3584 * 9560 + 2 * 3584) + 3584 + 256 * 3584
    assert told["traffic"]["joining_bytes"] == 4 * told["model"]["elements"]
    loaded, resident_kib = done.stderr.split()
    assert loaded == "False"
    assert int(resident_kib) < 2 * 2**20  # 20 GB is one copy of it
    assert list(tmp_path.iterdir()) == []


def test_plan_and_run_resolve_a_recipe_to_the_same_hash() -> None:
    given = ["--set", "sync.P=", "--set", "pools.0.learners=2"]
    told = json.loads(invoke(LOCAL, "--set", "name=mine", *given, "--json").stdout)
    overrides = ["sync.P=", "pools.0.learners=2", 'name="mine"']
    recipe = prepare(Path(LOCAL), overrides)
    assert told["config_hash"] == recipe.config_hash
    assert told["recipe"] == recipe.canonical()


def test_wrong_options_are_refused_with_exit_code_2() -> None:
    result = invoke(LOCAL, "--node", "regoin=us")
    assert result.exit_code == 2 and "fix: " in result.stderr


def test_a_plan_that_finds_no_place_exits_with_6_says_why_and_offers_no_command() -> None:
    result = invoke(LOCAL, "--node", "CPU=3")
    assert result.exit_code == 6
    assert "room for 1 of 4" in result.stdout
    assert "CANNOT RUN AS PLANNED" in result.stdout
    told = json.loads(invoke(LOCAL, "--node", "CPU=3", "--json").stdout)
    assert (told["ok"], told["commands"], told["placement"]["shortfalls"][0]["units"]) == (False, [], 3)


def test_everything_is_printed_for_a_reader(tmp_path: Path) -> None:
    fleet = """
[fleet]
step_s = 0.1
links = [{between = ["west", "east"], gbit_s = 0.01, latency_ms = 20}]
pools = [{name = "local", price_per_hour = 2.0}, {name = "far", price_per_hour = 1.0}]
[[pools]]
name = "far"
learners = 2
region = "east"
"""
    (tmp_path / "two.toml").write_text(Path(LOCAL).read_text() + fleet)
    node = ["--node", "name=west,CPU=9,region=us-west,labels.rack=7"]
    one = [DEMO, *node, "--set", "fleet.step_s=0.1", "--full"]
    two = ["two.toml", "--full", "--set", 'pools.0.region="west"', "--set", "sync.quorum=5"]
    two += ["--node", "CPU=9,region=west", "--node", "CPU=9,region=east"]
    for given, code, parts in (
        (
            one,
            0,
            (
                "demo: can be placed, config hash ",
                "CPU=9, rack=7",
                "4 x local",
                "syncer on west",
                "12 fragments of 29 tensors, 357,024 elements",
                "86.8 rounds",
                "Mbit/s",
                "18 times as much as here",
                "fetches parameters and inner optimizer, 2.82 MiB, from a peer, or 1.36 MiB from the syncer",
                "versions last received",
                "warnings: none",
            ),
        ),
        (
            two,
            6,
            (
                "2, east - west",
                "10 Mbit/s, 20 ms",
                "for a billion committed tokens",
                "fleet.links east - west",
            ),
        ),
        (
            [LOCAL, "--set", "sync.quorum=all", "--node", "CPU=9"],
            0,
            ('sync.quorum = "all": is every one of 4 learners',),
        ),
    ):
        shown = invoke(*given)
        assert "config hash" in shown.stdout.splitlines()[0], "the verdict is the first line"
        assert shown.exit_code == code, "warnings do not change it"
        assert [part for part in parts if part not in shown.stdout] == []


def test_a_plan_is_short_with_its_verdict_first_unless_all_of_it_is_asked_for() -> None:
    short, full = (invoke(DEMO, "--node", "CPU=9", *more).stdout.splitlines() for more in ([], ["--full"]))
    assert short[0] == full[0] and short[0].startswith("demo: can be placed")
    assert len(short) <= LINES_MOST < len(full) and short[-1].endswith("details: --full")


def test_every_command_that_it_offers_is_one_that_this_build_understands(tmp_path: Path) -> None:
    given = ["--set", "name=a-b", "--set", "inner.options={beta=0.9}"]
    for more in ([], ["--set", f"run.folder={tmp_path}/a folder"], ["--address", "10.0.0.1:6379"]):
        commands = json.loads(invoke(LOCAL, *given, *more, "--node", "CPU=9", "--json").stdout)["commands"]
        assert len(commands) >= 3
        for line in commands:
            words = shlex.split(line)
            assert words[0] == "diloco"
            root: Any = typer.main.get_command(build())
            sub = root.imported()[words[1]]()
            sub.make_context(words[1], words[2:])  # raises UsageError for what it does not know


def test_a_folder_of_this_host_is_not_taken_for_a_network_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mount:
        def __init__(self, mountpoint: str, fstype: str) -> None:
            self.mountpoint, self.fstype = mountpoint, fstype

    mounts = [Mount("/", "ext4"), Mount(str(tmp_path.resolve()), "nfs4")]
    monkeypatch.setattr(command.psutil, "disk_partitions", lambda all: mounts)
    assert command.on_network(tmp_path / "runs" / "new")
    assert not command.on_network(Path("/elsewhere"))


def test_an_unreachable_cluster_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, namespace: str) -> None:
        raise launch.ClusterUnreachable(f"no Ray cluster answers at {address!r}")

    monkeypatch.setattr(launch, "connect", refuse)
    assert invoke(LOCAL, "--address", "10.0.0.1:1").exit_code == 3
