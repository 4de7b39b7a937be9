"""How far prediction and measurement are apart: three real chaos runs, each predicted from each one's durations.

    python benchmarks/calibration.py [--run-dir runs/calibration] [--reuse] [--seeds 10] [--write] [--json]

    kills    the demonstration's faults: two kills and a freeze, one after the other
    storm    random kills, freezes and straggles, one in four seconds
    pools    two pools of different speed, K = 3 of 5; eleven kills, five of them at once, and the syncer's

Learners are paced, so that two cores are enough. Each run takes up to three minutes; `--reuse` takes those that are
there already. A prediction gets the faults of the run that it is compared with, as its log has them, and the
durations of the run that it is calibrated on; also in the table, what would be predicted without faults. `--write`
renews the tables of docs/studies.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from orchestrator.planner.fleet.calibration.calibrate import calibrate  # noqa: E402
from orchestrator.planner.fleet.calibration.distribution import EmpiricalDistribution  # noqa: E402
from orchestrator.planner.fleet.calibration.measurements import Calibration  # noqa: E402
from orchestrator.planner.fleet.calibration.prediction import Prediction, compared, predict  # noqa: E402
from orchestrator.planner.sizing.model_sizes import Shapes, shapes_of  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402

RUNS = ("kills", "storm", "pools")
SHARES = ("goodput_time", "availability", "uptime", "participation", "alive_participation")
RATES = ("commits_per_s", "tokens_per_s")
SHOWN = ("goodput_time", "participation")  # in the page; `--json` has all
PRINTED = {"goodput_time": "goodput", "participation": "participation"}
PAGE = ROOT / "docs" / "studies.md"
BEGIN, END = "<!-- tables: written by python benchmarks/calibration.py --write -->", "<!-- end of tables -->"


@dataclass(frozen=True)
class Run:
    name: str
    recipe: Recipe
    shapes: Shapes
    found: Calibration


def train(name: str, folder: Path) -> None:
    """The real thing, with Ray."""
    from orchestrator.__main__ import start_chaos
    from orchestrator.runtime import launch

    recipe = resolve(load(ROOT / "benchmarks" / "calibrated" / f"{name}.toml", []))
    store = emptied(folder)
    store.write_text(RECIPE_FILE, dump(recipe))
    launch.run_embedded(recipe, store, start_chaos, lambda status: None)


def predictions(runs: Sequence[Run], seeds: int) -> Iterator[dict[str, Any]]:
    """Every run with every run's durations; with another's, but its own steps; and with its own, but no faults."""
    for run in runs:
        for other in (run, *(each for each in runs if each is not run)):
            yield _row(run, other.name, predict(run.recipe, run.shapes, other.found, run.found.strikes, seeds))
        for other in (each for each in runs if each is not run):
            paced = replace(other.found, pools=run.found.pools)
            made = predict(run.recipe, run.shapes, paced, run.found.strikes, seeds)
            yield _row(run, f"{other.name}, own steps", made)
        yield _row(run, "itself, no faults", predict(run.recipe, run.shapes, run.found, (), seeds))


def _row(run: Run, durations: str, made: Prediction) -> dict[str, Any]:
    rows = {row["figure"]: row for row in compared(run.found.measured, made)}
    return {"run": run.name, "durations": durations, "figures": rows}


def largest(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The largest differences of all predictions with the run's faults: shares in points, rates in percent."""
    real = [row["figures"] for row in rows if "no faults" not in row["durations"]]
    points = {name: 100.0 * max(abs(row[name]["difference"]) for row in real) for name in SHARES}
    return points | {name: max(abs(_percent(row[name])) for row in real) for name in RATES}


def _percent(row: Mapping[str, float]) -> float:
    return 100.0 * row["difference"] / row["measured"]


# ------------------------------------------------------------------ the page's tables


def tables(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]], seeds: int) -> str:
    worst = largest(rows)
    return "\n\n".join(
        [
            _measured(runs),
            f"Predicted, {seeds} seeds each, and by how much more than measured: points, and % of a rate.",
            _predicted([row for row in rows if ", " not in row["durations"]]),
            f"The largest difference with the run's faults: goodput {worst['goodput_time']:.1f} points, participation "
            f"{worst['participation']:.1f}, of the live {worst['alive_participation']:.1f}, availability "
            f"{worst['availability']:.1f}, uptime {worst['uptime']:.1f}; commits a second "
            f"{worst['commits_per_s']:.0f} %.",
        ]
    )


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"|{'|'.join(cells)}|" for cells in (head, ["---"] * len(head), *body))


def _measured(runs: Sequence[Run]) -> str:
    head = ("run", "learners", "K", "faults", "length", *(PRINTED[name] for name in SHOWN))
    body = []
    for run in runs:
        found, count = run.found, Counter(strike.kind for strike in run.found.strikes)
        faults = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
        shares = (f"{100.0 * asdict(found.measured)[name]:.1f} %" for name in SHOWN)
        place = (str(found.learners), str(run.recipe.quorum), faults, f"{found.measured.wall_s:.0f} s")
        body.append((run.name, *place, *shares))
    return _table(head, body)


def _predicted(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("run", "durations of", *(PRINTED[name] for name in SHOWN), "commits/s")
    body = []
    for row in rows:
        figures = row["figures"]
        shares = (
            f"{100.0 * figures[name]['predicted']:.1f} ({100.0 * figures[name]['difference']:+.1f})" for name in SHOWN
        )
        commits = figures["commits_per_s"]
        rate = f"{commits['predicted']:,.2f} ({_percent(commits):+.0f} %)"
        same = "itself" if row["durations"] == row["run"] else row["durations"]
        body.append((row["run"], same, *shares, rate))
    return _table(head, body)


def _durations(runs: Sequence[Run]) -> str:
    def cell(samples: EmpiricalDistribution | None) -> str:
        return f"{samples.at(0.5):.3f} ({samples.at(0.9):.3f}) of {samples.count:,}" if samples else "-"

    kinds: dict[str, Any] = {
        "step of the first pool": lambda found: next(iter(found.pools.values())).step_s,
        "an incarnation's first step": lambda found: found.first_step_s,
        "quorum": lambda found: found.quorum_s,
        "grace": lambda found: found.grace_s,
        "reads and merge": lambda found: found.sync_s,
        "merged to adopted": lambda found: found.adopted_s,
        "kill to noticed": lambda found: found.restart["detect"],
        "freeze to lease expired": lambda found: found.detect.get("freeze"),
        "place and process": lambda found: found.restart["start"],
        "imports": lambda found: found.restart["import"],
        "compiling": lambda found: found.restart["compile"],
        "a state to start from": lambda found: found.restart["state"],
        "first contribution": lambda found: found.restart["first_contribution"],
        "a syncer's successor": lambda found: found.outage.get("start"),
    }
    body = [(name, *(cell(of(run.found)) for run in runs)) for name, of in kinds.items()]
    body.append(("until a version is there", *(f"{run.found.version_s or 0.0:.3f}" for run in runs)))
    return _table(("", *(run.name for run in runs)), body)


def write(block: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert rest and after, f"{PAGE} must have the lines {BEGIN!r} and {END!r}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{block}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    runs = []
    for name in RUNS:
        folder = asked.run_dir / name
        if not (asked.reuse and (folder / "summary.json").exists()):
            train(name, folder)
        found, recipe = calibrate(folder)
        runs.append(Run(name, recipe, shapes_of(recipe), found))
    rows = list(predictions(runs, asked.seeds))
    block = tables(runs, rows, asked.seeds)
    if asked.write:
        write(block)
    if asked.json:
        print(json.dumps({"predictions": rows, "largest": largest(rows)}))
    else:
        print(f"{block}\n\nDurations in seconds: median (90 %) of n.\n\n{_durations(runs)}\n\n{_predicted(rows)}")


if __name__ == "__main__":
    main()
