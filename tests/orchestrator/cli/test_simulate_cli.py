"""`diloco simulate goodput`: what it prints and writes, and that wrong input is refused in words."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.app import build
from orchestrator.cli.simulate_goodput import TAKES_S_MOST
from orchestrator.planner.fleet.islands.failures import Failures
from orchestrator.planner.fleet.islands.goodput import Effort, Waiting, takes_s

QUICK = ("--half-width", "0.5", "--chips", "2.4m", "--step-s", "30")
Invoke = Callable[..., Any]


@pytest.fixture
def invoke() -> Invoke:
    return lambda *arguments: CliRunner().invoke(
        build(), ["simulate", "goodput", *arguments], catch_exceptions=False, env={"COLUMNS": "200"}
    )


def test_its_options_are_these() -> None:
    group: Any = typer.main.get_command(build()).commands["simulate"]  # type: ignore[attr-defined]
    options = sorted(name for parameter in group.commands["goodput"].params for name in parameter.opts)
    assert options == [
        *("--chips", "--csv", "--down-s", "--half-width", "--json", "--learners", "--modes", "--mtbi-s", "--outage-s"),
        *("--overlap-steps", "--plot", "--repair-a", "--repair-c", "--repair-scale-s", "--round-steps", "--seed"),
        *("--seeds", "--seeds-most", "--slice-chips", "--step-s", "--up-s"),
    ]


def test_json_is_a_list_of_cells_with_their_intervals(invoke: Invoke) -> None:
    cells = json.loads(invoke("--learners", "1,2", "--json", *QUICK).stdout)
    assert [(cell["mode"], cell["learners"], cell["chips"]) for cell in cells] == [
        ("data_parallel", 1, 2_400_000),
        ("elastic", 1, 2_400_000),
        ("decoupled", 2, 2_400_000),
    ]
    for cell in cells:
        assert set(cell) == {
            *("mode", "learners", "chips", "seeds"),
            *("goodput", "goodput_interval", "uptime", "uptime_interval"),
        }
        for share in ("goodput", "uptime"):
            low, high = cell[f"{share}_interval"]
            assert 0 <= low <= cell[share] <= high <= 1
        assert cell["seeds"] >= 5
    assert cells[0]["goodput"] < cells[1]["goodput"] < cells[2]["goodput"]


def test_the_same_seed_gives_the_same_output(invoke: Invoke) -> None:
    first, again, other = (invoke("--learners", "1", "--seed", seed, "--json", *QUICK).stdout for seed in "001")
    assert first == again != other


def test_the_table_csv_and_plot_show_the_same_cells(invoke: Invoke, tmp_path: Path) -> None:
    files = ("--csv", str(tmp_path / "cells.csv"), "--plot", str(tmp_path / "cells.svg"))
    result = invoke("--learners", "2", "--modes", "decoupled,sync,streaming", *files, *QUICK)
    with (tmp_path / "cells.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [cell["mode"] for cell in cells] == ["decoupled", "sync", "streaming"]
    for cell in cells:
        assert float(cell["goodput_low"]) <= float(cell["goodput"]) <= float(cell["goodput_high"])
        assert f"{100 * float(cell['goodput']):.1f}" in result.stdout
    drawn = ElementTree.parse(tmp_path / "cells.svg").getroot()
    assert {text for text in drawn.itertext() if "M = 2" in text} == {f"{cell['mode']} M = 2" for cell in cells}


def test_a_failure_model_of_ones_own_counts(invoke: Invoke) -> None:
    base, rare = (
        json.loads(invoke("--learners", "1", "--modes", "elastic", "--json", *QUICK, *more).stdout)[0]["goodput"]
        for more in ((), ("--mtbi-s", "1e10"))
    )
    assert base < 0.9 < 0.99 < rare


def test_seeds_that_run_out_are_said(invoke: Invoke) -> None:
    result = invoke("--learners", "1", "--modes", "elastic", *QUICK, "--half-width", "0.0001", "--seeds-most", "5")
    assert result.exit_code == 0 and "raise --seeds-most" in result.stderr


def test_a_file_that_cannot_be_written_costs_no_answer(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "cells.csv").symlink_to(tmp_path / "nowhere" / "cells.csv")
    result = invoke("--learners", "1", "--modes", "elastic", "--csv", str(tmp_path / "cells.csv"), "--json", *QUICK)
    assert result.exit_code == 2 and "--csv" in result.stderr and "cannot be written" in result.stderr
    assert [cell["mode"] for cell in json.loads(result.stdout)] == ["elastic"]


def test_what_all_cells_take_is_bounded_not_only_each(invoke: Invoke) -> None:
    """A cell of this kind takes a minute."""
    many = ("--modes", "streaming", "--learners", "1024", "--chips", "1.2m,1.3m,1.4m,1.5m,1.6m,1.7m", "--json")
    refused = invoke(*many)
    [problem] = json.loads(refused.stdout)["error"]["problems"]
    assert refused.exit_code == 2 and "minutes with 5 seeds; 5 are allowed" in problem["message"]
    model, effort = Failures(), Effort()
    assert 5 * takes_s("streaming", 1024, 1_200_000, model, effort, Waiting()) < TAKES_S_MOST


@pytest.mark.parametrize(
    ("arguments", "field", "fix"),
    [
        (("--learners", "two"), "--learners", "write for example"),
        (("--learners", "0"), "--learners", "write for example"),
        (("--learners", "k"), "--learners", "write for example"),
        (("--learners", ","), "--learners", "leave it out"),
        (("--chips", "1.5"), "--chips", "write for example"),
        (("--chips", "nan"), "--chips", "write for example"),
        (("--chips", "1e12"), "--chips", "write for example"),
        (("--chips", "8", "--learners", "16"), "--learners", "give more chips"),
        (("--modes", "elastik"), "--modes", "did you mean elastic?"),
        (("--modes", "sync", "--learners", "1"), "--learners", "several with"),
        (("--step-s", "0"), "--step-s", "the default is"),
        (("--step-s", "1e-9", "--modes", "sync"), "--step-s", "longer steps"),
        (("--mtbi-s", "1"), "--mtbi-s", "raise it"),
        (("--seeds", "1000", "--repair-scale-s", "1e4"), "--mtbi-s", "fewer cells or seeds"),
        (("--repair-c", "-1"), "--repair-c", "the default is"),
        (("--csv", "cells.txt"), "--csv", "cells.txt.csv"),
        (("--plot", "nowhere/cells.svg"), "--plot", "mkdir"),
        (("--csv", "folder.csv"), "--csv", "name a file"),
    ],
)
def test_wrong_input_is_refused_in_words(
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    field: str,
    fix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    result = invoke(*arguments, "--json")
    assert result.exit_code == 2
    [problem] = json.loads(result.stdout)["error"]["problems"]
    assert problem["field"] == field and fix in problem["fix"]
