"""`diloco plan --calibrate`: durations measured in a run, for a plan, and how well they predict that run itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.recipe.fleet_config import FleetPoolConfig
from orchestrator.recipe.problems import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.planner.fleet.calibration.distribution import EmpiricalDistribution
    from orchestrator.planner.fleet.calibration.measurements import Calibration
    from orchestrator.planner.fleet.calibration.prediction import Prediction
    from orchestrator.planner.sizing.model_sizes import Shapes
    from orchestrator.recipe.config import Recipe

SHARES = {
    "goodput_time": "goodput",
    "availability": "availability",
    "uptime": "uptime",
    "participation": "participation",
    "alive_participation": "participation of the live",
}
RATES = {"commits_per_s": "commits a second", "tokens_per_s": "tokens a second", "wall_s": "seconds"}
PHASES = {
    "detect": "detected",
    "decide": "decided, back-off included",
    "start": "a place and a process",
    "import": "imports",
    "compile": "compiling",
    "state": "a state to start from",
    "first_contribution": "first contribution",
}


@dataclass(frozen=True)
class Calibrated:
    """What `--calibrate` gives a plan. `compared` is empty where no run's folder was given, but a saved file."""

    source: str
    calibration: Calibration
    compared: list[dict[str, Any]]
    planned: Prediction
    own: bool  # what is planned is the run itself


def needed(source: Path | None) -> Path:
    """The run's own recipe, which is planned if no other is given. Raises InputError if there is none."""
    assert source is not None
    if source.is_file():
        fix = "give a RECIPE: a saved calibration holds none"
        raise InputError([Problem("--calibrate", str(source), "is a file, and no recipe to plan is given", fix)])
    _of_run(source)  # says what is wrong with the folder
    from orchestrator.store.readers import RECIPE_FILE

    return source / RECIPE_FILE


def of(source: Path | None, file: Path | None, recipe: Recipe, shapes: Shapes) -> Calibrated | None:
    """The calibration that the two options ask for, or None. Raises InputError."""
    if source is None:
        if file is not None:
            fix = "add --calibrate RUN_DIR"
            raise InputError([Problem("--save", str(file), "there is no calibration to keep", fix)])
        return None
    told = calibrated(source, recipe, shapes)
    if file is not None:
        save(told, file)
    return told


def calibrated(source: Path, recipe: Recipe, shapes: Shapes) -> Calibrated:
    """Measure a run, or read a saved calibration; predict that run and the recipe. Raises InputError."""
    from orchestrator.planner.fleet.calibration.measurements import read
    from orchestrator.planner.fleet.calibration.prediction import compared, predict
    from orchestrator.planner.sizing.model_sizes import shapes_of

    if source.is_file():
        saved = read(source)
        return Calibrated(str(source), saved, [], predict(recipe, shapes, saved), own=False)
    found, own = _of_run(source)
    again = predict(own, shapes_of(own), found, found.strikes)
    # Figures of a beginning are not those of the whole.
    rows = compared(found.measured, again) if again.syncer_steps is None else []
    if own.config_hash == recipe.config_hash:
        return Calibrated(str(source), found, rows, again, own=True)
    return Calibrated(str(source), found, rows, predict(recipe, shapes, found), own=False)


def _of_run(folder: Path) -> tuple[Calibration, Recipe]:
    from orchestrator.planner.fleet.calibration.calibrate import calibrate

    return calibrate(folder)


def step_seconds(told: Calibrated, recipe: Recipe) -> float:
    """Seconds of a step without slowdown, as the plan counts it."""
    from orchestrator.planner.fleet.calibration.prediction import step_s

    pool = recipe.pools[0]
    return fmean(step_s(pool, told.calibration).seconds) / pool.slowdown


def timed(recipe: Recipe, told: Calibrated) -> Recipe:
    """The recipe with measured times in its [fleet], but for those that it gives itself: of detection and restart, the
    wait for hardware there, and each pool's step.
    """
    from orchestrator.planner.fleet.calibration.prediction import step_s

    found, given = told.calibration, recipe.fleet.model_fields_set
    start_s = sum(phase.median or 0.0 for phase in found.alone.values())
    waits_s = found.restart["decide"].median
    measured = {"detect_s": found.restart["detect"].median, "start_s": start_s or None, "replace_s": waits_s}
    new: dict[str, Any] = {name: value for name, value in measured.items() if value is not None and name not in given}
    said = {pool.name: pool for pool in recipe.fleet.pools}
    pools = [said.get(pool.name, FleetPoolConfig(name=pool.name)) for pool in recipe.pools]
    steps = {pool.name: fmean(step_s(pool, found).seconds) / pool.slowdown for pool in recipe.pools}
    new["pools"] = tuple(
        pool if pool.step_s is not None else pool.model_copy(update={"step_s": steps[pool.name]}) for pool in pools
    )
    return recipe.model_copy(update={"fleet": recipe.fleet.model_copy(update=new)})


def save(told: Calibrated, file: Path) -> None:
    """Raises InputError where it cannot be written."""
    try:
        file.write_text(json.dumps(told.calibration.as_json(), allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        problem = Problem("--save", str(file), f"cannot be written: {error}", "give a file in a folder that is there")
        raise InputError([problem]) from error


# ------------------------------------------------------------------ what is printed


def as_json(told: Calibrated | None) -> dict[str, Any]:
    """The plan's JSON section; empty without a calibration."""
    if told is None:
        return {}
    section = {
        "source": told.source,
        "notes": list(_notes(told)),
        "compared": told.compared,
        "planned": asdict(told.planned),
        "measured": told.calibration.as_json(),
    }
    return {"calibration": section}


def lines(told: Calibrated | None) -> Iterator[str]:
    """The same for people."""
    if told is None:
        return
    seeds = told.planned.seeds
    yield f"calibrated on {told.source}: {_faults(told.calibration)}"
    if told.compared:
        yield f"  {'':28}{'measured':>12}{'predicted':>12}{'':4}{f'lowest to highest of {seeds}':<24}{'difference':>12}"
        yield from map(_row, told.compared)
    if not told.own:
        yield f"  this recipe with the same durations, {seeds} times"
        yield from _predicted(told.planned)
    for note in _notes(told):
        yield f"  {note}"
    yield f"  {'durations in seconds':36}{'n':>8}{'median':>12}{'90 %':>12}"
    yield from (_duration(name, samples) for name, samples in _durations(told.calibration) if samples)
    yield ""


def _notes(told: Calibrated) -> Iterator[str]:
    """What the prediction leaves out."""
    if not told.calibration.restart["decide"]:
        yield "no learner was restarted there: restarts last as its first starts did, which come all at once and slower"
    if (most := told.calibration.abreast) is not None:
        yield f"learners that start together share what {most:g} would have alone"
    if told.planned.syncer_steps is not None:
        yield f"of the run, the first {told.planned.syncer_steps:,} syncer steps are simulated: they are not the whole"
    if told.planned.ignored:
        yield f"not simulated: {', '.join(told.planned.ignored)}"


def _faults(found: Calibration) -> str:
    kinds = sorted({strike.kind for strike in found.strikes})
    count = [f"{sum(strike.kind == kind for strike in found.strikes)} {kind}" for kind in kinds]
    return f"{found.learners} learners, faults: {', '.join(count) or 'none'}"


def _row(row: dict[str, Any]) -> str:
    name, values = row["figure"], (row["measured"], row["predicted"], row["low"], row["high"], row["difference"])
    if name in SHARES:
        measured, predicted, low, high, off = (100.0 * value for value in values)
        cells = (f"{measured:.1f} %", f"{predicted:.1f} %", f"{low:.1f} to {high:.1f} %", f"{off:+.1f} points")
    else:
        measured, predicted, low, high, off = values
        relative = f"{100.0 * off / measured:+.1f} %" if measured else "-"
        cells = (f"{measured:,.2f}", f"{predicted:,.2f}", f"{low:,.2f} to {high:,.2f}", relative)
    return f"  {(SHARES | RATES)[name]:28}{cells[0]:>12}{cells[1]:>12}{'':4}{cells[2]:<24}{cells[3]:>12}"


def _predicted(planned: Prediction) -> Iterator[str]:
    for name, words in (SHARES | RATES).items():
        if (figure := planned.figures.get(name)) is not None:
            scale, unit, digits = (100.0, " %", 1) if name in SHARES else (1.0, "", 2)
            mean, low, high = (f"{scale * value:,.{digits}f}" for value in (figure.mean, figure.low, figure.high))
            yield f"  {words:28}{mean + unit:>12}    {low} to {high}{unit}"


def _durations(found: Calibration) -> Iterator[tuple[str, EmpiricalDistribution]]:
    for pool, pace in found.pools.items():
        yield f"step, pool {pool}", pace.step_s
    yield "an incarnation's first step", found.first_step_s
    for reason, samples in found.waits.items():
        yield f"wait for {reason}", samples
    yield "quorum", found.quorum_s
    yield "grace", found.grace_s
    yield "reads and merge", found.sync_s
    yield "merged to adopted", found.adopted_s
    for phase, samples in found.alone.items():
        yield f"alone: {PHASES[phase]}", samples
    for phase, words in PHASES.items():
        yield f"restart: {words}", found.restart[phase]
    for kind, samples in found.detect.items():
        yield f"first sign of a {kind}", samples
    for phase, samples in found.outage.items():
        yield f"syncer: {PHASES.get(phase, phase)}", samples


def _duration(name: str, samples: EmpiricalDistribution) -> str:
    return f"  {name:36}{samples.count:>8,}{samples.at(0.5):>12.4f}{samples.at(0.9):>12.4f}"
