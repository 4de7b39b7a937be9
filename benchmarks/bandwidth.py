"""Section 9's bandwidth table: the closed forms, the simulation that conserves bytes, and what would explain the rest.

    python benchmarks/bandwidth.py [--write]

Prints the tables of docs/bandwidth.md, and a summary as JSON on the last line. `--write` puts them between the marks in
that file, and draws docs/figures/bandwidth.svg. Nothing is drawn by chance: it is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.planner.fleet.bandwidth import PAPER, PAPER_PARAMETERS, UTILISATIONS, Printed
from orchestrator.planner.fleet.bandwidth_figure import bandwidth_figure
from orchestrator.planner.fleet.bandwidth_table import GBIT, Exchange, fleet_of
from orchestrator.planner.fleet.conserving import Fleet, even, needed

ROOT = Path(__file__).resolve().parents[1]
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/bandwidth.md and docs/figures/bandwidth.svg")
    asked = parser.parse_args()
    tables = {"cells": "\n".join(cell_rows()), "assumptions": "\n".join(assumption_rows())}
    for text in tables.values():
        print(text, end="\n\n")
    if asked.write:
        put(ROOT / "docs" / "bandwidth.md", tables)
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
    yield "| method, bits | step, s | datacenters | utilisation | paper | closed form | error | conserving | to paper |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for cell in PAPER:
        held = conserving(cell)
        mark = "" if cell.rounds_to(cell.closed) else " *"
        yield (
            f"| {cell.method.replace('_', '-')}, {cell.bits} | {cell.step_s:g} | {cell.datacenters} "
            f"| {cell.utilisation:.0%} | {cell.gbit_s:g} | {figures(cell.closed)}{mark} "
            f"| {100 * cell.error(cell.closed):+.1f} % | {figures(held)} | x {held / cell.gbit_s:.2f} |"
        )


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
