"""What the paper does not publish of its failure model, fitted to its Table 1.

Three numbers are fitted, to goodput and uptime of all rows of some fleet sizes, by least squares on common random
numbers: the step, the rebuild of an elastic learner (down and up alike), and the outage of one that is not elastic.
Slices and repair keep their values: they act through the share of slices that are away, about one percent.

A fit need not simulate whole fleets. In free overlap learners are independent, so a fleet of M learners has the
goodput of one learner with N / M chips, and no learner of it steps in a share (1 - uptime)^M of the time. Where the
result is compared with the table, whole fleets are simulated. Knows nothing of what is done with the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks.studies.islands import ChipFailures, Effort, FleetCell, Mode, Waiting, once

ROWS: tuple[tuple[Mode, int], ...] = (
    ("data_parallel", 1), ("elastic", 1), ("decoupled", 2), ("decoupled", 4), ("decoupled", 8), ("decoupled", 16),
)  # fmt: skip
# Table 1 of the paper, three of its fleet sizes: goodput and uptime in percent, by row.
PUBLISHED: Mapping[int, Sequence[tuple[int, int]]] = {
    150_000: ((72, 72), (88, 88), (94, 100), (96, 100), (98, 100), (99, 100)),
    600_000: ((38, 38), (69, 69), (80, 96), (89, 99), (94, 100), (96, 100)),
    1_200_000: ((27, 27), (58, 59), (70, 90), (82, 99), (88, 100), (93, 100)),
}
START = (10.0, 10.0, 100.0)  # step, rebuild, outage, seconds
BOUNDS = ((1.0, 1.0, 1.0), (60.0, 120.0, 600.0))
SEEDS, FAILING = 8, 6000  # of one evaluation
DIFFERENCE = 0.1  # of a logarithm: wide enough to step over the noise of single draws


class Errors(NamedTuple):
    """Simulated less published, in points."""

    mean: float  # of the absolute values
    largest: float


def model_of(logarithms: Sequence[float]) -> ChipFailures:
    """The failure model for logarithms of step, rebuild and outage in seconds."""
    step_s, rebuild_s, outage_s = (float(value) for value in np.exp(logarithms))
    return ChipFailures(step_s=step_s, down_s=rebuild_s, up_s=rebuild_s, outage_s=outage_s)


def fit(sizes: Sequence[int], seed: int = 1) -> ChipFailures:
    """The failure model whose table comes closest to the published one at these sizes."""
    wanted = np.array([PUBLISHED[size] for size in sizes], np.float64)

    def residuals(logarithms: Any) -> Any:
        return (table(model_of(logarithms), sizes, seed) - wanted).ravel()

    found = least_squares(
        residuals, np.log(START), bounds=np.log(BOUNDS), diff_step=DIFFERENCE, xtol=2e-3, ftol=1e-4, max_nfev=15
    )  # fmt: skip
    return model_of(found.x)


def table(failures: ChipFailures, sizes: Sequence[int], seed: int) -> Any:
    """float64[sizes, rows, 2]: goodput and uptime in percent, from one learner of each size that occurs."""

    @cache
    def alone(chips: float, mode: Mode) -> Any:
        effort = Effort(failing=FAILING)
        return np.mean([once(mode, 1, chips, failures, effort, (seed, index), Waiting()) for index in range(SEEDS)], 0)

    def cell(mode: Mode, learners: int, size: int) -> tuple[float, float]:
        goodput, uptime = alone(size / learners, "elastic" if learners > 1 else mode)
        return 100.0 * goodput, 100.0 * (1.0 - (1.0 - uptime) ** learners)

    return np.array([[cell(*row, size) for row in ROWS] for size in sizes])


def errors(cells: Sequence[FleetCell]) -> Errors:
    """Of simulated cells against the published ones."""
    apart = np.abs([difference for cell in cells for difference in differences(cell)])
    return Errors(float(apart.mean()), float(apart.max()))


def differences(cell: FleetCell) -> tuple[float, float]:
    """Goodput and uptime, simulated less published, in points."""
    goodput, uptime = PUBLISHED[cell.chips][ROWS.index((cell.mode, cell.learners))]
    return 100.0 * cell.goodput - goodput, 100.0 * cell.uptime - uptime
