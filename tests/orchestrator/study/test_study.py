"""`diloco study`: seeds in processes of their own, as run folders that every tool takes; killed and continued."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from learners.training.devices.device import device_taken
from orchestrator.checkers.suite import check_run
from orchestrator.cli.app import build
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.replay.environment import STACKED, needed
from orchestrator.replay.incarnation import TapeError
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import record
from orchestrator.study import seed_run
from orchestrator.study.results import difference
from orchestrator.study.seed_run import ROW_FILE, STATE_FILE, SeedRun, finished_row
from tests.replay.shaken import Points, recipe

ROOT = Path(__file__).resolve().parents[3]
WANTED = recipe(30)


def seeded(seed: int = 0, **changes: Any) -> Recipe:
    """Points' parameters do not depend on the seed; the learning rate does here, so that losses differ."""
    plain = WANTED.canonical() | {"seed": seed, "inner": {"lr": 0.05 + 0.01 * seed}}
    return Recipe.model_validate(plain | changes)


def trained(folder: Path, wanted: Recipe, stacked: bool = False) -> dict[str, Any]:
    return SeedRun(wanted, folder, stacked).train(lambda news: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("study") / "seed-0"
    return folder, trained(folder, seeded())


def test_a_seeds_folder_passes_every_check_and_is_replayed_to_the_bit(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, row = whole
    assert {verdict.name for verdict in check_run(folder) if verdict.status in ("violated", "unknown")} == set()
    assert row["ok"] and row["eval_loss"] == row["evaluations"][-1][1] < row["evaluations"][0][1]
    replayer = Replayer(record(read_run(folder)), seeded(), Points(WANTED.data, WANTED.seed))
    list(replayer.play())
    assert replayer.finish() == row["digest"] and replayer.tally.bit_equal is True


def test_a_seed_that_was_killed_continues_with_the_same_log_and_bits(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, row = whole
    monkeypatch.setattr(seed_run, "SAVE_S", 0.0)
    killed = SeedRun(seeded(), tmp_path, False)
    plain, saved = SeedRun._save, [0]

    def save(run: SeedRun) -> None:
        plain(run)
        saved[0] += 1
        if saved[0] == 11:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SeedRun, "_save", save)
        with pytest.raises(KeyboardInterrupt):
            killed.train(lambda news: None)
    assert (tmp_path / STATE_FILE).exists() and finished_row(tmp_path, seeded()) is None
    again = trained(tmp_path, seeded())
    assert again["processes"] == 2 and again["digest"] == row["digest"]
    assert not (tmp_path / STATE_FILE).exists()
    assert [repr(event) for event in read_run(tmp_path)] == [repr(event) for event in read_run(folder)]


@pytest.mark.parametrize("damage", [b"", b"no head\n", b"{}\nrest", None])
def test_a_state_that_cannot_be_used_begins_the_seed_anew(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, damage: bytes | None
) -> None:
    run = SeedRun(seeded(), tmp_path, False)
    (tmp_path / STATE_FILE).write_bytes(json.dumps(run._about_state).encode() + b"\nrest" if damage is None else damage)
    row = run.train(lambda news: None)
    assert (row["processes"], row["digest"]) == (1, whole[1]["digest"])


def test_learners_that_step_as_one_program_are_near_and_their_log_says_why_it_is_not_replayed(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    row = trained(tmp_path, seeded(), stacked=True)
    assert row["eval_loss"] == pytest.approx(whole[1]["eval_loss"], rel=1e-5)
    tape = record(read_run(tmp_path))
    assert {device.settings[STACKED] for device in tape.devices.values()} == {"1"}
    assert STACKED not in device_taken(1).settings
    with pytest.raises(TapeError, match="--no-vmap"):
        needed(tape)


def test_two_seeds_differ_and_differences_are_paired() -> None:
    rows = [{"seed": seed, "eval_loss": 2.0 + 0.1 * seed} for seed in range(4)]
    others = [{"seed": seed, "eval_loss": 1.9 + 0.1 * seed} for seed in (1, 2, 3, 7)]
    found = difference(rows, others)
    assert found is not None and found.seeds == (1, 2, 3)
    assert found.mean == pytest.approx(0.1) and found.half_width == pytest.approx(0.0, abs=1e-9)
    assert difference(rows[:1], others) is None
    one = difference(rows[1:2], others)
    assert one is not None and one.half_width is None


# ------------------------------------------------------------------ the command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "points.toml"
    path.write_text(dump(seeded()))
    return path


def test_the_command_trains_seeds_once_and_compares(file: Path, tmp_path: Path) -> None:
    def command(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "study", str(file), "--json", *words],
            cwd=ROOT,
            env=os.environ,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    first = command("--seeds", "3,5", "--out", str(tmp_path / "a"))
    assert [row["seed"] for row in first["seeds"]] == [3, 5]
    written = (tmp_path / "a/seed-3" / ROW_FILE).stat().st_mtime_ns
    again = command("--seeds", "3", "--out", str(tmp_path / "a"), "--against", str(tmp_path / "a"), "--set", "seed=3")
    assert (tmp_path / "a/seed-3" / ROW_FILE).stat().st_mtime_ns == written, "it is finished"
    assert [row["seed"] for row in again["seeds"]] == [3, 4, 5]
    assert (again["against"]["seeds"], again["against"]["each"]) == ([3, 5], [0.0, 0.0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--seeds", "x"], "--seeds"),
        (["--against", "nowhere"], "holds no finished seed"),
        (["--set", "pools.0.devices=2", "--set", "pools.0.batch_size=4"], "the one device of a study"),
    ],
)
def test_what_cannot_be_studied_is_refused(file: Path, tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(build(), ["study", str(file), "--out", str(tmp_path / "out"), *words])
    assert done.exit_code == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "out/seed-0").mkdir(parents=True)
    (tmp_path / "out/seed-0/notes").write_text("mine")
    done = CliRunner().invoke(build(), ["study", str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and "holds no study" in done.stderr
    (tmp_path / "out/seed-0/notes").unlink()
    (tmp_path / "out/seed-0/config.toml").write_text(dump(seeded(seed=0, name="other")))
    done = CliRunner().invoke(build(), ["study", str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and "another recipe" in done.stderr
