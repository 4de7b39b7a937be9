"""The bandwidth table: closed forms against the paper's print, the simulation against sums done by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies import bandwidth
from benchmarks.studies.bandwidth_model import DataParallel, Fleet, even, needed, simulate, simulate_data_parallel
from benchmarks.studies.bandwidth_paper import PAPER, Printed, crossing
from benchmarks.studies.bandwidth_table import Exchange, cells

# 6 fragments of 100 parameters, one every second step; 50 of them leave, in 16 bits: 800 bits a phase.
SMALL = Fleet(step_s=1.0, datacenters=2, link_bits=1e6, sizes=even(600, 6), round_steps=12, overlap_steps=1)


def printed(gbit_s: float) -> Printed:
    return next(cell for cell in PAPER if cell.gbit_s == gbit_s)


def test_the_closed_forms_are_within_10_percent_of_every_printed_cell() -> None:
    assert len(PAPER) == 36
    assert max(abs(cell.error(cell.closed)) for cell in PAPER) < 0.07
    assert printed(198).closed == pytest.approx(197.07, abs=0.01)
    assert printed(0.84).closed == pytest.approx(0.8615, abs=1e-4)


@pytest.mark.parametrize("bits_per_s", [250.0, 700.0, 800.0, 1600.0, 1e6])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_the_simulation_sends_every_bit_and_none_twice(bits_per_s: float, overlap: int) -> None:
    found = simulate(replace(SMALL, link_bits=bits_per_s, overlap_steps=overlap, latency_s=0.01))
    assert found.step_bits == pytest.approx(crossing(2) * 600 * 16 / 12, rel=0.03)  # whole rounds, but for what is open
    assert found.sent_bits <= bits_per_s * found.elapsed_s * (1 + 1e-9)
    assert found.utilisation <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("overlap", "bits_per_s", "latency_s", "cycle_s"),
    [
        (1, 1600.0, 0.0, 2.0),  # 1600 bits in the one step that hides them: no wait in two steps
        (1, 800.0, 0.0, 3.0),  # a second of wait
        (0, 800.0, 0.0, 4.0),  # nothing is hidden
        (1, 1600.0, 0.25, 2.5),  # two phases, two latencies
        (2, 400.0, 0.0, 4.0),  # one after the other without a pause: the link is the bound
    ],
)
def test_a_learner_waits_for_what_its_overlap_does_not_hide(
    overlap: int, bits_per_s: float, latency_s: float, cycle_s: float
) -> None:
    found = simulate(replace(SMALL, overlap_steps=overlap, link_bits=bits_per_s, latency_s=latency_s))
    assert found.utilisation == pytest.approx(2.0 / cycle_s)


def test_a_data_parallel_step_by_hand() -> None:
    """Forward 1 s, backward 2 s, 4 parts: made at 1.5, 2, 2.5, 3 s; 1 s each on the link, there and back at last."""
    fleet = DataParallel(3.0, 2, link_bits=100.0, parameters=25, latency_s=0.25, buckets=4)
    found = simulate_data_parallel(fleet)
    assert (found.elapsed_s, found.step_bits) == (pytest.approx(1.5 + 4.0 + 0.5), 25 * 16)


def test_the_bandwidth_that_is_found_is_just_enough() -> None:
    for fleet in (SMALL, DataParallel(1.0, 8, 1.0, 600)):
        bits = needed(fleet, 0.8)
        assert bits is not None
        run = simulate if isinstance(fleet, Fleet) else simulate_data_parallel
        assert run(replace(fleet, link_bits=bits)).utilisation >= 0.8  # type: ignore[operator, type-var]
        assert run(replace(fleet, link_bits=0.999 * bits)).utilisation < 0.8  # type: ignore[operator, type-var]
    assert needed(replace(SMALL, latency_s=2.0), 0.9) is None, "no bandwidth helps"
    assert needed(replace(SMALL, datacenters=1), 0.9) == 0.0


def test_data_parallel_in_the_paper_is_what_conserving_bytes_gives_and_decoupled_is_not() -> None:
    found = list(cells([1.0], [8], [4], [0.5, 0.95]))
    assert [cell.paper_gbit_s for cell in found] == [85, 198, 0.26, 0.84]
    ratios = [cell.conserving_gbit_s / cell.paper_gbit_s for cell in found]  # type: ignore[operator]
    assert ratios == pytest.approx([0.99, 0.99, 2.80, 1.65], abs=0.01)
    least = crossing(8) * 5e9 * 4 * 0.95 / 24 / 1e9
    assert found[-1].conserving_gbit_s == pytest.approx(least, rel=1e-3)  # no schedule can do with less


def test_a_model_exchanged_in_100_steps_and_a_third_of_it_hidden_is_near_the_papers_table() -> None:
    found = cells([1.0, 5.0], [2, 8], [16], [0.5, 0.95], Exchange(fragments=18, round_steps=100))
    for cell in found:
        if cell.method == "decoupled" and cell.paper_gbit_s is not None:
            assert cell.conserving_gbit_s == pytest.approx(cell.paper_gbit_s, rel=0.06)


def test_the_script_prints_cells_and_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*given: str) -> str:
        one = ("--step-seconds", "1", "--datacenters", "8", "--bits", "4", "--utilisation", "95")
        monkeypatch.setattr("sys.argv", ["bandwidth.py", *one, *given])
        bandwidth.main()
        return capsys.readouterr().out

    plain, cell = json.loads(run("--plot", str(tmp_path / "cells.svg"), "--json"))
    assert (plain["paper_gbit_s"], cell["paper_gbit_s"], cell["method"]) == (198, 0.84, "decoupled")
    assert "</svg>" in (tmp_path / "cells.svg").read_text()
    assert "0.84" in run()
