"""The fleet simulator's studies: two speeds, scavenging, upsizing; and what an event costs.

    python benchmarks/studies/fleet.py [--write]

Prints the tables of docs/studies.md, and a summary as JSON on the last line. `--write` puts them between the marks in
that file, and draws docs/figures/scavenging.svg and upsize.svg. Nothing but the speed depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.studies import heterogeneous, scavenging, upsize  # noqa: E402
from benchmarks.studies.figures import scavenging_figure, upsize_figure  # noqa: E402
from benchmarks.studies.models import even  # noqa: E402
from orchestrator.planner.fleet.description import Fleet, FleetMember, Steady  # noqa: E402
from orchestrator.planner.fleet.world import simulate  # noqa: E402
from outer.config import SyncConfig  # noqa: E402
from outer.protocol.schedule import Budget  # noqa: E402

DOCS = ROOT / "docs"
SEEDS, STEPS = 5, 300
PAGE_GAP = heterogeneous.Speeds().gap
GAPS = (0.18, PAGE_GAP, 0.38)
PAPER_GOODPUT = {"K=M": "84", "K=1": "100", "K=1 with grace": "100"}
PAPER_TIME = {0.25: 0.90, 0.5: 0.83, 1.0: 0.75, 3.0: 0.62}
COPY_STEPS = (0.5, 1, 2, 4, 5, 5.5, 6, 7, 8, 12, 24)
LEARNERS = (2, 4, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/studies.md and docs/figures/")
    asked = parser.parse_args()
    speeds = {gap: _two_speeds(gap) for gap in GAPS}
    joins = list(scavenging.study(scavenging.Scavenging(), list(PAPER_TIME)))
    grown = list(upsize.study(upsize.Upsize(parameters=5_000_000_000), COPY_STEPS))
    cost = {count: _steps_per_second(count) for count in LEARNERS}
    tables = {
        "speeds": _speeds_table({PAGE_GAP: speeds[PAGE_GAP]}),
        "scavenging": _scavenging_table(joins),
        "upsize": _upsize_table(grown),
    }
    gaps = {gap: rows for gap, rows in speeds.items() if gap != PAGE_GAP}
    for table in (*tables.values(), _speeds_table(gaps), _cost_table(cost)):
        print(table, end="\n\n")
    if asked.write:
        _put(tables)
        (DOCS / "figures" / "scavenging.svg").write_text(scavenging_figure(joins), encoding="utf-8")
        (DOCS / "figures" / "upsize.svg").write_text(upsize_figure(grown), encoding="utf-8")
    print(json.dumps(_summary(speeds, joins, grown)))


def _two_speeds(gap: float) -> list[heterogeneous.Row]:
    setting = heterogeneous.Speeds(gap=gap)
    return heterogeneous.over_seeds([heterogeneous.study(setting, STEPS, seed) for seed in range(SEEDS)])


def _steps_per_second(learners: int) -> float:
    """Steps of learners that a core simulates in a second."""
    members = tuple(FleetMember(f"learner-{i}", 8, 800, Steady(1.0)) for i in range(learners))
    fleet = Fleet(SyncConfig(), 1, even(24_000, 24), members, Budget(None, 10**9))
    began = time.process_time()
    outcome, _ = simulate(fleet, 2400.0 / learners + 100.0)
    took = time.process_time() - began
    return sum(outcome.steps.values()) / took


def _speeds_table(rows: dict[float, list[heterogeneous.Row]]) -> str:
    lines = ["|slower half|rule|goodput, %|paper|time stepping, %|participation, %|merges per step|"]
    lines.append("|---|---|---|---|---|---|---|")
    for gap, found in rows.items():
        for row in found:
            shares = [f"{100 * value:.1f}±{100 * half:.1f}" for value, half in row.shares]
            paper = PAPER_GOODPUT[row.rule] if gap == heterogeneous.Speeds().gap else ""
            cells = (f"{gap:.0%}", row.rule, shares[0], paper, *shares[1:], f"{row.merges_per_step:.2f}")
            lines.append(f"|{'|'.join(cells)}|")
    return "\n".join(lines)


def _scavenging_table(rows: list[scavenging.Row]) -> str:
    lines = ["|newcomers|time|paper|ideal|participation|", "|---|---|---|---|---|"]
    for row in rows:
        figures = (f"{row.time:.3f}", f"{PAPER_TIME[row.extra]:.2f}", f"{row.ideal:.3f}", f"{row.participation:.2f}")
        lines.append(f"|+{100 * row.extra:g} %|{'|'.join(figures)}|")
    return "\n".join(lines)


def _upsize_table(rows: list[upsize.Row]) -> str:
    lines = ["|steps for a copy|Gbit/s|all stand still, elastic|here|state from|newcomer steps after|"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        joined = "" if row.joined_steps is None else f"{row.joined_steps:.1f}"
        still = (f"{row.elastic_downtime_steps:g}", f"{row.downtime_steps:.3g}")
        lines.append(f"|{'|'.join((f'{row.copy_steps:g}', f'{row.gbit_s:.3g}', *still, row.source, joined))}|")
    return "\n".join(lines)


def _cost_table(cost: dict[int, float]) -> str:
    lines = ["|learners|steps of learners a second|", "|---|---|"]
    lines += [f"|{count}|{steps:,.0f}|" for count, steps in cost.items()]
    return "\n".join(lines)


def _put(tables: dict[str, str]) -> None:
    path = DOCS / "studies.md"
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        text, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\1{table}\n\2", text, flags=re.DOTALL)
        assert count == 1, name
    path.write_text(text, encoding="utf-8")


def _summary(
    speeds: dict[float, list[heterogeneous.Row]], joins: list[scavenging.Row], grown: list[upsize.Row]
) -> dict[str, object]:
    found = {row.rule: row for row in speeds[heterogeneous.Speeds().gap]}
    in_time = [row.copy_steps for row in grown if row.source == "peer"]
    return {
        "goodput": {rule: round(row.goodput, 4) for rule, row in found.items()},
        "grace_participation_ratio": found["K=1 with grace"].participation / found["K=1"].participation,
        "scavenging": {row.extra: round(row.time, 4) for row in joins},
        "scavenging_off_most": max(abs(row.time - PAPER_TIME[row.extra]) for row in joins),
        "copy_steps_in_time_most": max(in_time),
        "downtime_steps_most": max(row.downtime_steps for row in grown),
    }


if __name__ == "__main__":
    main()
