"""`diloco compare`: its numbers, its tables, and the command with a stand-in for training."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.harness.seed_run import SeedRun
from orchestrator.cli.app import build
from orchestrator.compare import comparison, runs
from orchestrator.compare.comparison import Comparison, compared
from orchestrator.compare.runs import ComparedRun, IdealRing, RunOutcome, all_reduced, ideal_ring, loaded, save
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.store.run_store import RunStore, alone
from tests.orchestrator.calling import invoke
from tests.replay.shaken import recipe

ROOT = Path(__file__).resolve().parents[3]
ALIKE = Recipe.model_validate(recipe(30).canonical() | {"pools": [{"name": "a", "learners": 3, "batch_size": 4}]})


def ended(losses: list[float], tokens: int = 1000, seconds: float = 10.0) -> RunOutcome:
    last = len(losses) - 1
    curve = tuple((tokens * at // last, seconds * at / last, loss) for at, loss in enumerate(losses))
    return RunOutcome(
        "hash", True, "finished", "nats", losses[-1], curve, tokens, 20.0, seconds, tokens / seconds, 0.9, 0.8, 4e6, 2e6
    )


def of(ours: RunOutcome, theirs: RunOutcome) -> Comparison:
    return compared({"decoupled": ours, "data_parallel": theirs})


@pytest.fixture(scope="module")
def result() -> Comparison:
    return of(ended([6.0, 4.0, 2.0], seconds=8.0), ended([6.0, 4.0, 2.2], 1200))


def test_losses_are_compared_where_every_run_still_was(result: Comparison) -> None:
    assert (result.tokens, result.seconds) == (1000, 8.0)
    ours, theirs = result.rows
    assert theirs.at_tokens == pytest.approx(2.2 + 1.8 * 200 / 600), "interpolated where it is not at its end"
    assert theirs.at_seconds == pytest.approx(4.0 - 1.8 * 3 / 5) and ours.at_seconds == 2.0
    assert result.difference == (pytest.approx(-0.8), pytest.approx(-0.8 / 2.8))


def test_a_run_that_failed_or_diverged_moves_no_other_row_and_has_no_difference() -> None:
    failed = replace(ended([6.0, 5.0], 10, 0.1), state="failed", ok=False)
    result = of(failed, ended([6.0, 2.0]))
    assert (result.tokens, result.rows[0].at_tokens, result.rows[1].at_tokens) == (1000, None, 2.0)
    diverged = replace(ended([6.0, 5.0], 10, 0.1), eval_loss=None)
    for each in (result, of(diverged, ended([6.0, 2.0]))):
        assert each.tokens == 1000 and each.difference is None
        assert "did not both finish" in comparison.sentence(each)


def test_an_outcome_is_the_same_when_it_is_read_back_without_losses_that_are_not_finite(tmp_path: Path) -> None:
    one = ended([6.0, 2.0])
    save(RunStore(tmp_path), one)
    assert loaded(json.loads((tmp_path / "outcome.json").read_text())) == one
    save(RunStore(tmp_path), ended([6.0, float("nan"), float("inf")]))
    again = loaded(json.loads((tmp_path / "outcome.json").read_text()))
    assert again.curve == ((0, 0.0, 6.0),) and again.eval_loss is None
    assert all_reduced(100, 1) == 0 and all_reduced(100, 4) == 600, "a ring sends it twice less one share"


def test_the_tables_and_the_sentence_say_what_came_out(result: Comparison) -> None:
    def cells(found: Comparison, ring: IdealRing | None = None) -> str:
        console = Console(width=200, file=StringIO(), record=True)
        for table in comparison.tables(found, ring):
            console.print(table)
        return console.export_text()

    assert re.search(r"decoupled +2.0000 +2.0000", cells(result)) and "ideal ring" not in cells(result)
    assert re.search(r"ideal ring, 0.250 s a step +4,000 .* 8.000 +8.000", cells(result, IdealRing(0.25, 8e6, 4000.0)))
    told = "At equal tokens the held-out loss of decoupled is 0.8000 (28.57%) below that of data_parallel."
    assert comparison.sentence(result) == told
    assert "(5.0000)" in cells(of(replace(ended([6.0, 5.0]), state="failed"), ended([6.0, 2.0])))


def test_an_ideal_ring_waits_for_its_slowest_link_and_passes_all_hops_but_one_twice() -> None:
    pools = [{"name": name, "region": name, "batch_size": 4} for name in "abc"]
    links = [
        {"between": tuple(pair), "gbit_s": rate, "latency_ms": 5.0}
        for pair, rate in (("ab", 1.0), ("bc", 0.5), ("ca", 2.0))
    ]

    def found(**fleet: Any) -> IdealRing | None:
        return ideal_ring(Recipe.model_validate(ALIKE.canonical() | {"pools": pools, "fleet": fleet}))

    ring = found(links=links)
    assert ring is not None
    assert ring.seconds == pytest.approx(8 * ring.bytes / 0.5e9 + 2 * 0.010)
    assert ring.tokens_per_s * ring.seconds == pytest.approx(3 * 4 * 4), "of three batches of samples of four tokens"
    pools.append(pools[2] | {"name": "d"})
    assert (ring := found(links=links)) is not None
    assert ring.seconds == pytest.approx(8 * ring.bytes / 0.5e9 + 2 * 0.015), "a value skips the hop in region c"
    assert found(links=links[:2]) is None and ideal_ring(ALIKE) is None, "nothing is said of a link"


# ------------------------------------------------------------------ the command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "points.toml"
    path.write_text(dump(ALIKE))
    return path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways in which the command had a recipe trained: in lock-step, where production starts Ray."""
    names: list[str] = []

    def train(run: ComparedRun, on_news: Any, address: Any) -> None:
        names.append(run.mode)
        if run.mode == "data_parallel":
            run.store.create()
            run.store.write_text("config.toml", dump(run.recipe))
            save(run.store, replace(ended([6.0, 4.0, 2.0], 1440), config_hash=run.recipe.config_hash))
            return
        SeedRun(run.recipe, run.store.root).train()
        run.store.write_json("status.json", {"run": {"state": "finished"}})

    monkeypatch.setattr(runs, "train", train)
    return names


def test_the_command_trains_each_run_once_and_sets_them_side_by_side(
    file: Path, tmp_path: Path, trained: list[str]
) -> None:
    words = ["compare", str(file), "--out", str(tmp_path / "out"), "--set", "eval.every=6"]
    first = invoke(*words)
    assert first.exit_code == 0, first.output
    assert "decoupled" in first.stdout and "data_parallel" in first.stdout
    assert trained == ["decoupled", "data_parallel"]
    again = invoke(*words, "--json")
    assert again.exit_code == 0, again.stderr
    assert len(trained) == 2, "they are finished"
    told = json.loads(again.stdout)
    ours, theirs = told["rows"]
    assert (ours["mode"], theirs["mode"]) == ("decoupled", "data_parallel")
    assert told["difference"] == pytest.approx(ours["eval_loss_at_tokens"] - theirs["eval_loss_at_tokens"])
    assert ours["participation"] == 1.0
    assert ours["curve"][-1][2] == ours["eval_loss"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "sync.overlap=strict"], "learners that wait for each other"),
        (["--set", "eval.every=0"], "leaves nothing to compare"),
    ],
)
def test_what_cannot_be_compared_is_refused(file: Path, tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(build(), ["compare", str(file), "--out", str(tmp_path / "out"), *words])
    assert done.exit_code == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_or_of_another_command_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "busy").mkdir()
    with alone(tmp_path / "busy" / "compare.lock"):
        done = invoke("compare", str(file), "--out", str(tmp_path / "busy"), "--set", "eval.every=6")
    assert done.exit_code == 2 and "another command" in done.stderr
    assert [each.name for each in (tmp_path / "busy").iterdir()] == ["compare.lock"]
    place = tmp_path / "out/decoupled"
    place.mkdir(parents=True)
    (place / "notes").write_text("mine")
    words = ["compare", str(file), "--out", str(tmp_path / "out")]
    done = invoke(*words)
    assert done.exit_code == 2 and "holds no run" in done.stderr
    (place / "config.toml").write_text(dump(recipe(36)))
    done = invoke(*words)
    assert done.exit_code == 2 and "another recipe" in done.stderr
