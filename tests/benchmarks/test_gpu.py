"""The benchmark of one GPU, on machines without one: its arithmetic, its rows, and the script around it."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu_phases import SETTLE_S, SIZES, measured, recipe_of
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.planner.sizing.model_sizes import shapes_of
from orchestrator.recipe.validation import problems
from outer.protocol.facts import Committed, Participant
from tests.tools import needs, path_of
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"
A, B = "learner-card-0", "learner-card-1"


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_the_recipes_are_valid_and_the_learners_fill_one_gpu(learners: int) -> None:
    recipe = recipe_of("gpu", learners, SIZES["gpu"].batch)
    assert problems(recipe) == []
    assert learners * recipe.pools[0].resources["GPU"] == 1.0 and shapes_of(recipe).elements >= 300_000_000
    assert recipe.pools[0].platform == "gpu" and recipe_of("cpu", 1, 8).pools[0].platform == "cpu"


# ------------------------------------------------------------------ what is computed from a log


def step(at: float, writer: str, incarnation: int = 1, waited_s: float = 0.0) -> Event:
    return Event(writer, incarnation, 0, at, StepFinished(1, 100, 0, 0, 2.0, 0.5, waited_s, ""))


def commit(at: float, *participants: tuple[str, int]) -> Event:
    whose = tuple(Participant(name, number, 1, 0, 1, 100, 1.0, "digest") for name, number in participants)
    return Event("syncer", 1, 0, at, Committed(1, 0, 1, 0, whose, 2, "digest", 1.0, 100, 0.1, 0.0, 0.1, "why"))


def test_rates_are_of_the_time_in_which_all_step_and_a_kill_ends_it() -> None:
    steps = [step(0.5 * n, A, waited_s=0.1) for n in range(1, 41)] + [step(0.5 * n, B) for n in range(5, 61)]
    commits = [commit(9.0, (A, 1)), commit(21.0, (B, 1)), commit(26.0, (A, 2), (B, 1)), commit(27.0, (A, 2))]
    checks = [{"name": "books", "status": "pass"}, {"name": "spans", "status": "violated"}]
    parts = {"committed": 300, "processed": 400}
    summary = {"state": "stopped", "checks": checks, "token_fragments": parts}
    summary |= {"faults": [{"recovery_phases": {"import": 3.0}}]}
    row = measured([*steps, *commits], [(20.0, A)], summary)
    assert (row["from"], row["to"]) == (2.5 + SETTLE_S, 20.0)
    assert row["tokens_per_s"] == pytest.approx(400.0) and row["step_ms"] == pytest.approx(500.0)
    assert (row["state"], row["violated"]) == ("stopped", ["spans"])
    assert row["waited_share"] == pytest.approx(0.1) and row["commits"] == 4
    assert row["committed_share"] == 0.75
    assert row["kill"] == {"contributing_again_s": 6.0, "phases": {"import": 3.0}}
    assert "kill" not in measured(steps, [], summary)
    with pytest.raises(RuntimeError, match="give more --seconds"):
        measured(steps, [(3.0, A)], summary)


# ------------------------------------------------------------------ rows


def bench(tmp_path: Path, deadline_s: float = 600.0) -> gpu.Bench:
    options = argparse.Namespace(
        devices="cpu", deadline_s=deadline_s, seconds=1.0, batch=4, run_dir=tmp_path / "runs", json=True
    )
    return gpu.Bench(options, tmp_path)


def test_a_phase_that_fails_leaves_a_row_and_the_next_ones_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(deadline: float) -> dict[str, Any]:
        raise ValueError("no such card")

    some = bench(tmp_path)
    some.phase("device", fails)
    some.phase("synced-2", lambda deadline: some.synced(2, deadline))
    some.phase("copies", lambda deadline: {"found": 1})
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["phase"] for row in rows] == ["device", "synced-2", "copies"]
    assert rows[0]["error"] == "ValueError: no such card"
    assert "bare-2 has no rate" in rows[1]["error"]
    assert rows[2]["found"] == 1 and "error" not in rows[2]


def test_a_phase_for_which_no_time_is_left_is_not_begun(tmp_path: Path) -> None:
    some = bench(tmp_path, deadline_s=1.0)
    some.phase("copies", lambda deadline: {"found": 1})
    assert "no time is left" in some.rows[0]["error"] and "found" not in some.rows[0]


def state_in(status: Path) -> str:
    """A process's state, from its /proc/PID/stat; Z for one that has ended."""
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Phases' processes run this code instead."""
    popen = subprocess.Popen

    def use(code: str) -> None:
        def start(command: list[str], **how: Any) -> Any:
            return popen([sys.executable, "-u", "-c", code, *command[2:]], **how)

        monkeypatch.setattr(gpu.subprocess, "Popen", start)

    return use


def test_a_phase_that_is_late_is_ended_with_what_it_started_and_one_that_dies_says_its_last_words(
    tmp_path: Path, instead: Callable[[str], None]
) -> None:
    some = bench(tmp_path)
    note = tmp_path / "pid"
    instead(
        "import subprocess, sys, time\n"
        "started = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(started.pid))\n"
        "time.sleep(600)"
    )
    some.phase("copies", lambda deadline: some.alone("copies", time.monotonic() + 5.0))
    assert some.rows[0]["error"] == "Late: it did not end in time"
    status = Path(f"/proc/{note.read_text()}/stat")
    until(lambda: state_in(status) == "Z", "what it started has ended")
    instead("raise SystemExit('CUDA_ERROR_OUT_OF_MEMORY')")
    some.phase("copies", lambda deadline: some.alone("copies", deadline))
    assert some.rows[1]["error"] == "RuntimeError: code 1: CUDA_ERROR_OUT_OF_MEMORY"
    some.phase("bare-2", lambda deadline: some.bare(2, deadline))
    assert some.rows[2]["error"] == "RuntimeError: code 1: CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.full
@pytest.mark.runtime
def test_on_cpu_devices_every_phase_finds_what_it_looks_for(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--devices", "cpu", "--counts", "2"]
    more = ["--seconds", "2", "--deadline-s", "900", "--run-dir", str(tmp_path), "--json"]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True)
    rows = {row["phase"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert list(rows) == ["device", "copies", "bare-2", "synced-2", "replay"]
    assert rows["device"]["warnings"] == {} and rows["synced-2"]["violated"] == []
    assert rows["synced-2"]["synced_over_alone"] > 0.0
    assert rows["synced-2"]["kill"]["contributing_again_s"] > 0.0
    assert rows["replay"]["bit_equal"] is True


# ------------------------------------------------------------------ the script


@needs("shellcheck", package="shellcheck")
def test_the_script_is_executable_and_well_formed_and_names_no_index() -> None:
    assert SCRIPT.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in SCRIPT.read_text() and "://" not in SCRIPT.read_text()
    subprocess.run([path_of("shellcheck"), SCRIPT], check=True)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def scripted(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with what is in tmp_path/bin in front of the PATH."""
    return subprocess.run(
        [SCRIPT, *arguments],
        env=dict(os.environ) | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fast"], "--fast: no such option"),
        (["--venv"], "--venv needs a value"),
        (["--wheels", "/no/such/folder"], "no such folder"),
        (["--devices", "tpu"], "must be gpu or cpu"),
        (["--minutes", "0"], "must be a whole number above 0"),
        ([], "nvidia-smi does not answer"),
    ],
)
def test_the_script_refuses_wrong_arguments_and_a_machine_without_a_driver(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    executable(tmp_path / "bin" / "nvidia-smi", "exit 9")
    done = scripted(tmp_path, *arguments)
    assert done.returncode == 2 and words in done.stderr


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("550.54.15", "cuda12")])
def test_the_script_installs_jax_for_the_driver_from_the_wheels_and_keeps_the_rows(
    tmp_path: Path, driver: str, extra: str
) -> None:
    """In an environment whose Python only notes how it was called."""
    called, out, wheels = tmp_path / "called", tmp_path / "out" / "rows.jsonl", tmp_path / "wheels"
    wheels.mkdir()
    executable(tmp_path / "bin" / "nvidia-smi", f"echo {driver}")
    executable(
        tmp_path / "venv" / "bin" / "python",
        f'echo "$*" >> {called}\n'
        'case "$*" in *"import jax,"* | *"m.version"*) exit 1 ;; -) cat >/dev/null; echo ray ;;\n'
        '  benchmarks/gpu.py*) echo \'{"phase": "device"}\' ;; esac',
    )
    options = ["--wheels", str(wheels), "--venv", str(tmp_path / "venv"), "--out", str(out)]
    done = scripted(tmp_path, *options, "--", "--counts", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == out.read_text() == '{"phase": "device"}\n'
    lines = called.read_text().splitlines()
    first, second = (line for line in lines if "pip install" in line)
    assert all(f"--constraint constraints.txt --no-index --find-links {wheels}" in line for line in (first, second))
    assert first.endswith("requirements.txt") and second.endswith(f"jax[{extra}]")
    assert re.fullmatch(r"benchmarks/gpu\.py --devices gpu --deadline-s 4\d\d --json --counts 1", lines[-1])
