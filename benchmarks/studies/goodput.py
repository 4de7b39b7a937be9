"""The goodput of fleets: the fit to the paper's Table 1, how every number depends on what is not published, the speed.

    python benchmarks/studies/goodput.py --json [--learners 1,2,8] [--chips 600e3,2.4e6] [--seed 0]
    python benchmarks/studies/goodput.py [--write]

The first prints a list of cells, by default those of Table 1. The second does all the rest:

Fits on two of the three published fleet sizes and predicts the third, for each of them; simulates the table, its
sensitivity, the baselines, and the grid of 6 rows x 5 sizes, with the time it takes on one core. `--write` renews the
tables of docs/studies.md and the figures in docs/figures/. A few minutes. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"  # one core is what is measured

from benchmarks.studies import figures  # noqa: E402
from benchmarks.studies.figures import cost_figure  # noqa: E402
from benchmarks.studies.fitting import PUBLISHED, ROWS, Errors, differences, errors, fit  # noqa: E402
from benchmarks.studies.islands import (  # noqa: E402
    ChipFailures,
    Draws,
    Effort,
    FleetCell,
    Island,
    Mode,
    fleets,
    simulate,
)
from benchmarks.studies.script import numbers  # noqa: E402

PAGE, FIGURES = ROOT / "docs" / "studies.md", ROOT / "docs" / "figures"
BY = "written by python benchmarks/studies/goodput.py --write"
SIZES = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
LEARNERS = (1, 2, 4, 8, 16)
LEARNING: tuple[Mode, ...] = ("data_parallel", "elastic", "decoupled")  # the rows of Table 1
MEAN_MOST, LARGEST_MOST, GRID_S_MOST = 2.0, 5.0, 60.0
SENSITIVE: tuple[tuple[Mode, int, int], ...] = (
    ("data_parallel", 1, 1_200_000), ("elastic", 1, 1_200_000), ("decoupled", 2, 1_200_000),
    ("decoupled", 8, 1_200_000), ("decoupled", 16, 150_000),
)  # fmt: skip
VARIED = ("step_s", "slice_chips", "down_s", "up_s", "outage_s", "repair_a", "repair_c", "repair_scale_s")
STEPS = 100_000  # of each island that is taken step by step and by the fast path


def head(*names: str) -> list[str]:
    return [row(*names), f"|{'---|' * len(names)}"]


def row(*parts: object) -> str:
    return f"|{'|'.join(map(str, parts))}|"


# ------------------------------------------------------------------ the fit


def fits() -> Iterator[tuple[int | None, ChipFailures, Errors, Errors | None]]:
    """The size held out, the fit to the others, its errors on them and on that one; at last none held out."""
    for held in (*PUBLISHED, None):
        sizes = [size for size in PUBLISHED if size != held]
        failures = fit(sizes)
        cells = {size: [simulate(*each, size, failures) for each in ROWS] for size in PUBLISHED}
        told = errors([cell for size in sizes for cell in cells[size]])
        yield held, failures, told, None if held is None else errors(cells[held])


def fit_table(found: Sequence[tuple[int | None, ChipFailures, Errors, Errors | None]]) -> str:
    lines = head(
        "held out", "step s", "down = up s", "outage s", "fit: mean error", "largest", "prediction: mean", "largest"
    )
    for held, failures, told, foretold in found:
        lines.append(
            row(
                figures.short(held) if held else "none",
                *(f"{value:.2f}" for value in (failures.step_s, failures.down_s, failures.outage_s)),
                *(f"{value:.2f}" for value in told),
                *(f"{value:.2f}" for value in foretold or ()),
                *("" for _ in range(0 if foretold else 2)),
            )
        )
    return "\n".join(lines)


# ------------------------------------------------------------------ the table


def grid() -> tuple[list[FleetCell], dict[tuple[Mode, int, int], float]]:
    """All rows and sizes, with the seconds that each cell took."""
    cells, took = [], {}
    for each in fleets(LEARNERS, SIZES, LEARNING):
        begin = time.process_time()
        cells.append(simulate(*each, ChipFailures()))
        took[each] = time.process_time() - begin
    return cells, took


def grid_table(cells: Sequence[FleetCell]) -> str:
    """Simulated, and in brackets how far that is from the published cell."""
    lines = head("row", *(f"{figures.short(size)} chips" for size in SIZES))
    for mode, count in ROWS:
        cellsof = {cell.chips: cell for cell in cells if (cell.mode, cell.learners) == (mode, count)}
        lines.append(row(figures.name(mode, count), *(_against(cellsof[size]) for size in SIZES)))
    return "\n".join(lines)


def _against(cell: FleetCell) -> str:
    text = f"{100 * cell.goodput:.1f}/{100 * cell.uptime:.1f}±{100 * cell.half_width:.1f}"
    if cell.chips not in PUBLISHED:
        return text
    return f"{text} ({'/'.join(f'{difference:+.1f}' for difference in differences(cell))})"


def headline(cells: Sequence[FleetCell]) -> str:
    at = {(cell.mode, cell.learners): cell for cell in cells if cell.chips == 1_200_000}
    lines = head("at 1.2m chips", "paper", "simulated", "95 % interval", "seeds")
    for key, published in ((("data_parallel", 1), 27), (("elastic", 1), 58), (("decoupled", 8), 88)):
        cell = at[key]  # type: ignore[index]
        low, high = cell.goodput_interval
        between = f"{100 * low:.1f} to {100 * high:.1f}"
        lines.append(row(figures.name(*key), published, f"{100 * cell.goodput:.1f}", between, cell.seeds))  # type: ignore[arg-type]
    return "\n".join(lines)


def waiting_table() -> str:
    lines = head("goodput at", *(f"M = {count}" for count in LEARNERS[1:]))
    for size in (150_000, 1_200_000):
        for mode in ("decoupled", "streaming", "sync"):
            found = [simulate(mode, count, size, ChipFailures()) for count in LEARNERS[1:]]  # type: ignore[arg-type]
            lines.append(row(f"{figures.short(size)} chips, {mode}", *(f"{100 * cell.goodput:.1f}" for cell in found)))
    return "\n".join(lines)


# ------------------------------------------------------------------ sensitivity


def sensitivity() -> str:
    base = ChipFailures()
    lines = head(
        "parameter", *(f"{figures.name(mode, count)}, {figures.short(size)}" for mode, count, size in SENSITIVE)
    )
    lines.append(row("all as by default", *(f"{100 * _goodput(base, each):.1f}" for each in SENSITIVE)))
    for name in VARIED:
        value = getattr(base, name)
        halved, doubled = (replace(base, **{name: type(value)(value * factor)}) for factor in (0.5, 2))
        moves = [
            " ".join(f"{100 * (_goodput(model, each) - _goodput(base, each)):+.1f}" for model in (halved, doubled))
            for each in SENSITIVE
        ]
        lines.append(row(f"`{name}` {getattr(halved, name):g}, {getattr(doubled, name):g}", *moves))
    return "\n".join(lines)


def _goodput(failures: ChipFailures, cell: tuple[Mode, int, int]) -> float:
    return simulate(*cell, failures, Effort(half_width=0.0025)).goodput


# ------------------------------------------------------------------ speed


def speed(took: dict[tuple[Mode, int, int], float]) -> str:
    lines = [
        f"The grid of {len(ROWS)} rows x {len(SIZES)} sizes to a half-width of 0.5 points: "
        f"{sum(took.values()):.1f} s of one core.",
        "",
        *head("an elastic learner of", "step by step, µs per step", "fast path, µs per step", "times faster"),
    ]
    for chips in (9_375, 75_000, 600_000, 2_400_000):
        slow, fast = _beats_s(chips), _leaps_s(chips)
        lines.append(
            row(f"{chips:,} chips", *(f"{1e6 * each / STEPS:.3f}" for each in (slow, fast)), f"{slow / fast:.1f}")
        )
    return "\n".join(lines)


def _beats_s(chips: int) -> float:
    island, now = Island(ChipFailures(), chips, Draws(0)), 0.0
    begin = time.process_time()
    for _ in range(STEPS):
        sample = island.sample(now)
        now += sample.seconds + sample.stall_s
    return time.process_time() - begin


def _leaps_s(chips: int) -> float:
    island, now, left = Island(ChipFailures(), chips, Draws(0)), 0.0, STEPS
    begin = time.process_time()
    while left:
        leap = island.leap(now, left)
        left -= leap.steps
        now += leap.seconds + leap.stall_s
    return time.process_time() - begin


def draw(cells: Sequence[FleetCell], took: dict[tuple[Mode, int, int], float]) -> None:
    FIGURES.mkdir(exist_ok=True)
    published = {
        each: [(size, rows[index][0] / 100) for size, rows in PUBLISHED.items()] for index, each in enumerate(ROWS)
    }
    (FIGURES / "goodput.svg").write_text(figures.goodput_figure(cells, published))
    decoupled = {(count, size): seconds for (mode, count, size), seconds in took.items() if mode == "decoupled"}
    counts = sorted({count for count, _ in decoupled})
    by_chips = {count: [(size, decoupled[count, size]) for size in SIZES] for count in counts}
    by_learners = {size: [(count, decoupled[count, size]) for count in counts] for size in SIZES}
    (FIGURES / "goodput-cost.svg").write_text(cost_figure(by_chips, by_learners))


def write(blocks: dict[str, str]) -> None:
    page = PAGE.read_text()
    for name, text in blocks.items():
        begin, end = f"<!-- {name}: {BY} -->", f"<!-- end of {name} -->"
        block = f"{begin}\n\n{text}\n\n{end}"
        page, places = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, b=block: b, page, flags=re.DOTALL)
        if places != 1:
            raise SystemExit(f"{PAGE} must have the lines {begin!r} and {end!r} once each")
    PAGE.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew docs/studies.md and its figures")
    parser.add_argument("--json", action="store_true", help="print cells alone, as a list")
    parser.add_argument("--learners", type=numbers, default=LEARNERS, help="with --json")
    parser.add_argument("--chips", type=numbers, default=(150_000, 1_200_000), help="with --json: sizes of the fleet")
    parser.add_argument("--seed", type=int, default=0, help="with --json")
    options = parser.parse_args()
    if options.json:
        wanted = fleets([int(each) for each in options.learners], [int(each) for each in options.chips], LEARNING)
        print(json.dumps([asdict(simulate(*each, ChipFailures(), seed=options.seed)) for each in wanted]))
        return
    found = list(fits())
    cells, took = grid()
    blocks = {
        "fit": fit_table(found),
        "table": grid_table(cells),
        "waiting": waiting_table(),
    }
    printed = {"headline": headline(cells), "sensitivity": sensitivity(), "speed": speed(took)}
    for name, text in (blocks | printed).items():
        print(f"{name}\n{text}\n")
    if options.write:
        write(blocks)
        draw(cells, took)
    foretold = [prediction for *_, prediction in found if prediction]
    reached = all(each.mean <= MEAN_MOST and each.largest <= LARGEST_MOST for each in foretold)
    sys.exit(0 if reached and sum(took.values()) <= GRID_S_MOST else 1)


if __name__ == "__main__":
    main()
