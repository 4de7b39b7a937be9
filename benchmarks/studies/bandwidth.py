"""Section 9's bandwidth table: the closed forms, the simulation that conserves bytes, and what would explain the rest.

    python benchmarks/studies/bandwidth.py [--json] [--parameters 5e9] [--datacenters 2,8] ...
    python benchmarks/studies/bandwidth.py --write

Prints Gbit/s for a compute utilisation. `--write` prints the tables of docs/studies.md and a summary as JSON on the
last line, puts the tables between the marks in that file, and draws docs/figures/bandwidth.svg. Nothing is random.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.studies.bandwidth_model import Fleet, even, needed  # noqa: E402
from benchmarks.studies.bandwidth_paper import PAPER, PAPER_PARAMETERS, UTILISATIONS, Printed  # noqa: E402
from benchmarks.studies.bandwidth_table import GBIT, Exchange, cells, fleet_of  # noqa: E402
from benchmarks.studies.figures import bandwidth_figure  # noqa: E402
from benchmarks.studies.script import numbers, options, show  # noqa: E402

EMBEDDING = 256_000 * 2560  # parameters: a vocabulary and a width that a model of 5B may have; the paper gives neither


@dataclass(frozen=True)
class Assumption:
    """What the paper's simulation may have been, and is not said to be."""

    what: str
    sizes: tuple[float, ...] = even(PAPER_PARAMETERS, 24)
    round_steps: int = 24
    overlap_steps: int = 2
    down: float = 1.0  # share of a version's bits that are counted

    def gbit_s(self, cell: Printed) -> float:
        base = fleet_of(cell.method, cell.step_s, cell.datacenters, cell.bits, Exchange())
        assert isinstance(base, Fleet)
        fleet = replace(base, sizes=self.sizes, round_steps=self.round_steps, overlap_steps=self.overlap_steps)
        found = needed(replace(fleet, bits_down=int(self.down * cell.bits)), cell.utilisation)
        assert found is not None
        return found / GBIT


REST = PAPER_PARAMETERS - EMBEDDING
ASSUMPTIONS = (
    Assumption("P = H = 24, tau = 2, as the paper says of every experiment"),
    Assumption("the same, nothing overlapped (tau = 0)", overlap_steps=0),
    Assumption("the same, the embedding alone in the largest fragment", sizes=(EMBEDDING, *even(REST, 23))),
    Assumption("the same, the embedding not counted", sizes=even(REST, 24)),
    Assumption("the same, contributions counted and versions not", down=0.0),
    Assumption("the same, neither embedding nor versions counted", sizes=even(REST, 24), down=0.0),
    Assumption("P = 24, H = 100, tau = 2", round_steps=100),
    Assumption("P = 18, H = 100, tau = 2", sizes=even(PAPER_PARAMETERS, 18), round_steps=100),
    Assumption("P = 36, H = 100, tau = 1", sizes=even(PAPER_PARAMETERS, 36), round_steps=100, overlap_steps=1),
)
DECOUPLED = [cell for cell in PAPER if cell.method == "decoupled"]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--parameters", type=float, default=5e9, help="of the model")
    parser.add_argument("--step-seconds", type=numbers, default="1,5", help="lengths of a learner's step")
    parser.add_argument("--datacenters", type=numbers, default="2,8", help="with one learner and one shard each")
    parser.add_argument(
        "--bits", type=numbers, default="16,4", help="of a parameter on the wire; data-parallel is in 16"
    )
    parser.add_argument("--utilisation", type=numbers, default="50,75,90,95", help="per cent of time a learner steps")
    parser.add_argument("--P", type=int, default=24, help="fragments, in the simulation that conserves bytes")
    parser.add_argument("--H", type=int, default=24, help="steps in which every fragment is exchanged once")
    parser.add_argument("--tau", type=int, default=2, help="steps after which a fragment is adopted")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--write", action="store_true", help="into docs/studies.md and docs/figures/bandwidth.svg")
    given = parser.parse_args()
    if given.write:
        write()
        return
    exchange = Exchange(given.parameters, given.P, given.H, given.tau, given.latency_ms / 1e3)
    counts, widths = [[int(number) for number in column] for column in (given.datacenters, given.bits)]
    show(
        list(cells(given.step_seconds, counts, widths, [share / 100 for share in given.utilisation], exchange)),
        given.json,
    )
    if given.plot:
        given.plot.write_text(bandwidth_figure(exchange, given.step_seconds[0], max(counts)), encoding="utf-8")


def write() -> None:
    cells_table = "\n".join(cell_rows())
    for text in (cells_table, "\n".join(assumption_rows())):
        print(text, end="\n\n")
    put(ROOT / "docs" / "studies.md", {"cells": cells_table})
    figure = ROOT / "docs" / "figures" / "bandwidth.svg"
    figure.parent.mkdir(exist_ok=True)
    figure.write_text(bandwidth_figure(Exchange()), encoding="utf-8")
    print(json.dumps(summary()))


def put(path: Path, tables: dict[str, str]) -> None:
    """Each table between its own two marks."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        text, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\1{table}\n\2", text, flags=re.DOTALL)
        assert count == 1, f"no place for {name} in {path}"
    path.write_text(text, encoding="utf-8")


def cell_rows() -> Iterator[str]:
    """One row for each method, width, step and number of datacenters: paper / closed form / conserving."""
    shares = [f"{utilisation:.0%}" for utilisation in UTILISATIONS]
    yield f"|method, bits|step, s|datacenters|{'|'.join(shares)}|"
    yield f"|{'---|' * (3 + len(shares))}"
    for index in range(0, len(PAPER), len(shares)):
        row = PAPER[index : index + len(shares)]
        found = (f"{cell.gbit_s:g}/{figures(cell.closed)}/{figures(conserving(cell))}" for cell in row)
        method = f"{row[0].method.replace('_', '-')}, {row[0].bits}"
        yield f"|{method}|{row[0].step_s:g}|{row[0].datacenters}|{'|'.join(found)}|"


def conserving(cell: Printed) -> float:
    found = needed(fleet_of(cell.method, cell.step_s, cell.datacenters, cell.bits, Exchange()), cell.utilisation)
    assert found is not None
    return found / GBIT


def assumption_rows() -> Iterator[str]:
    share = [f"{utilisation:.0%}" for utilisation in UTILISATIONS]
    yield f"| assumption | bf16, 1 s, 2: {' '.join(share)} | 95 % / 50 % | cells to the digit | largest error |"
    yield "|---|---|---|---|---|"
    first = [cell.gbit_s for cell in DECOUPLED[: len(UTILISATIONS)]]
    yield f"| the paper's table | {' '.join(f'{gbit:g}' for gbit in first)} | {first[-1] / first[0]:.1f} | | |"
    rows = [("closed form", [cell.closed for cell in DECOUPLED])]
    rows += [(one.what, [one.gbit_s(cell) for cell in DECOUPLED]) for one in ASSUMPTIONS]
    for what, found in rows:
        hits = sum(cell.rounds_to(gbit) for cell, gbit in zip(DECOUPLED, found, strict=True))
        worst = max((cell.error(gbit) for cell, gbit in zip(DECOUPLED, found, strict=True)), key=abs)
        told = " ".join(figures(gbit) for gbit in found[: len(UTILISATIONS)])
        ratio = found[len(UTILISATIONS) - 1] / found[0]
        yield f"| {what} | {told} | {ratio:.1f} | {hits} of {len(DECOUPLED)} | {100 * worst:+.0f} % |"


def summary() -> dict[str, float | int]:
    """The closed forms against the paper, and the headline by all three."""
    errors = [abs(cell.error(cell.closed)) for cell in PAPER]
    headline = PAPER[11], DECOUPLED[-1]
    return {
        "cells": len(PAPER),
        "error_max": max(errors),
        "error_mean": sum(errors) / len(errors),
        "round_to_the_printed_digits": sum(cell.rounds_to(cell.closed) for cell in PAPER),
        "headline_paper": headline[0].gbit_s / headline[1].gbit_s,
        "headline_closed": headline[0].closed / headline[1].closed,
        "headline_conserving": conserving(headline[0]) / conserving(headline[1]),
    }


def figures(gbit_s: float) -> str:
    """Three digits."""
    return f"{gbit_s:.0f}" if gbit_s >= 100 else f"{gbit_s:.3g}"


if __name__ == "__main__":
    main()
