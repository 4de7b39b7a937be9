"""`diloco chaos sim`: what it prints, how it fails, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

import outer.protocol.open_step
from chaos.cli import app
from tests.waiting import DEADLINE_S


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["sim", *arguments], catch_exceptions=False)


def test_in_json_it_says_what_scripts_need() -> None:
    done = invoke("--seeds", "1..2", "--profile", "network", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert set(told) == {
        "ok", "profile", "first_seed", "last_seed", "seeds", "events", "commits", "virtual_s", "seconds",
        "seeds_per_s", "digest", "violations", "faults", "facts",
    }  # fmt: skip
    assert (told["ok"], told["seeds"], told["first_seed"], told["last_seed"]) == (True, 2, 1, 2)
    assert told["events"] > 1000 and told["violations"] == [] and len(told["digest"]) == 64
    assert {"seeds", "times"} == set(next(iter(told["faults"].values())))
    assert told["facts"]["Finished"] == 2


def test_a_violation_is_exit_code_5_with_the_command_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer.protocol.open_step, "weigh", lambda each, *_: tuple(1.0 / len(each) for _ in each))
    reproducer = "diloco chaos sim --seed 1 --profile calm --trace"
    done = invoke("--seed", "1", "--profile", "calm")
    assert done.exit_code == 5
    assert "seed 1  merges.weights: " in done.stdout and f"\n    {reproducer}\n" in done.stdout
    in_json = invoke("--seed", "1", "--profile", "calm", "--json")
    [first, *_] = json.loads(in_json.stdout)["violations"]
    assert in_json.exit_code == 5 and (first["seed"], first["reproduce"]) == (1, reproducer)


def test_a_trace_has_a_line_for_everything_in_order() -> None:
    done = invoke("--seed", "1", "--profile", "syncer", "--trace")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert "Options(seed=1, profile='syncer'" in lines[0]
    ends = next(number for number, line in enumerate(lines) if line.startswith("1 seeds of profile"))
    last = 0.0
    for line in lines[:ends]:
        at, who, what = float(line[:10]), line[12:26].split()[0], line[28:]
        assert at >= last and what, line
        assert who in ("options", "fault", "syncer", "orchestrator", "a", "b", "c", "d", "e", "f") or ">" in who
        last = at
    assert any("  syncer 2        SyncerStarted(epoch=2" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "3"], '--seeds = "3": is no range of seeds A..B'),
        (["--seeds", "5..4"], "the first seed is at most the last"),
        (["--profile", "netwrok"], 'did you mean "network"?'),
        (["--trace"], "add --seed N"),
        (["--trace", "--seed", "1", "--json"], "leave out --trace or --json"),
    ],
)
def test_wrong_input_is_refused_with_the_fix(arguments: list[str], says: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2 and says in done.stderr


def test_a_simulated_cluster_needs_neither_ray_nor_jax() -> None:
    code = (
        "import sys, chaos.simulation.cluster as cluster; cluster.simulate(1, 'calm');"
        "print(sorted({'ray', 'jax', 'jaxlib', 'optax', 'numpy'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert told.stdout.strip() in ("[]", "['numpy']")
