"""Table 1 of the paper: how close the defaults come, and what the fit computes."""

from __future__ import annotations

import pytest

from benchmarks.studies import fitting
from orchestrator.planner.fleet.islands.failures import Failures
from orchestrator.planner.fleet.islands.goodput import Cell, Effort, simulate


def test_the_defaults_come_out_close_to_the_papers_table() -> None:
    """Whole fleets at 1.2m chips, the largest published size; the rest is in docs/studies.md."""
    effort = Effort(half_width=1.0, failing=1000)
    cells = [simulate(*row, 1_200_000, Failures(), effort) for row in fitting.ROWS]
    found = fitting.errors(cells)
    assert found.mean <= 2.0 and found.largest <= 5.0
    headline = [cell.goodput for cell in cells if cell.learners in (1, 8)]
    assert headline == pytest.approx([0.27, 0.58, 0.88], abs=0.03)


def test_the_fits_table_is_that_of_whole_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "FAILING", 1000)
    short = fitting.table(Failures(), [600_000], seed=1)[0]
    for (mode, learners), (goodput, uptime) in zip(fitting.ROWS, short, strict=True):
        cell = simulate(mode, learners, 600_000, Failures(), Effort(half_width=1.0, failing=1000))
        assert goodput == pytest.approx(100 * cell.goodput, abs=2.5), (mode, learners)
        assert uptime == pytest.approx(100 * cell.uptime, abs=2.5), (mode, learners)


def test_differences_are_simulated_less_published_in_points() -> None:
    cell = Cell("elastic", 1, 1_200_000, 0.60, (0.6, 0.6), 0.58, (0.58, 0.58), 5)
    assert fitting.differences(cell) == pytest.approx((2.0, -1.0))
    assert fitting.errors([cell]) == pytest.approx((1.5, 2.0))
