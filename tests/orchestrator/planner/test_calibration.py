"""Calibration: what is measured from a log is what the run was made with, and what cannot be measured is refused.

The runs are simulated with known durations, so that nothing has to be believed of the measuring.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.accounting.fold import drive
from orchestrator.accounting.records import Records
from orchestrator.accounting.summary import summarise
from orchestrator.cli.app import build
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunStarted
from orchestrator.planner.fleet.calibration import prediction
from orchestrator.planner.fleet.calibration.calibrate import calibrate, measured, work
from orchestrator.planner.fleet.calibration.distribution import KEPT_MAX, EmpiricalDistribution
from orchestrator.planner.fleet.calibration.durations import Durations
from orchestrator.planner.fleet.calibration.measurements import (
    RESTART,
    Calibration,
    Measured,
    ObservedFault,
    Pace,
)
from orchestrator.planner.fleet.calibration.prediction import compared, planned, predict, step_s, trial
from orchestrator.planner.fleet.calibration.starting import abreast, works
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import dump
from outer.protocol.facts import Committed
from outer.protocol.fragments import Fragment, Tensor
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.order import canonical

FAST, SLOW = 0.5, 1.0
BASE = 1_700_000_000.0  # Unix seconds at second 0
MODEL = {"layers": 1, "width": 32}
RECIPE = {
    "name": "known",
    "model": MODEL,
    "data": {"sequence_length": 32},
    "sync": {"P": 4, "H": 4, "quorum": 2},
    "pools": [
        {"name": "fast", "learners": 3, "batch_size": 2, "slowdown": 2.0},
        {"name": "slow", "learners": 1, "batch_size": 2, "slowdown": 4.0},
    ],
    "budget": {"syncer_steps": 120},
}
STRIKES = (
    ObservedFault("kill", "learner-fast-1", 10.0, 0.0, 0.0, injected=True),
    ObservedFault("freeze", "learner-fast-2", 20.0, 6.0, 0.0, injected=True),
    ObservedFault("slow", "learner-fast-0", 30.0, 5.0, 0.4, injected=True),
    ObservedFault("kill", "learner-slow-0", 40.0, 0.0, 0.0, injected=True),
    ObservedFault("kill", "learner-slow-0", 51.0, 0.0, 0.0, injected=True),
    ObservedFault("kill", "learner-fast-0", 52.0, 0.0, 0.0, injected=True),
    ObservedFault("kill", "syncer", 60.0, 0.0, 0.0, injected=True),
)
NONE = EmpiricalDistribution(0, ())


def one(seconds: float) -> EmpiricalDistribution:
    return EmpiricalDistribution.of([seconds])


def about(seconds: float) -> EmpiricalDistribution:
    return EmpiricalDistribution.of([0.8 * seconds, seconds, 1.2 * seconds])


def recipe(**change: Any) -> Recipe:
    return Recipe.model_validate(RECIPE | change)


KNOWN = Calibration(
    run="known",
    config_hash="",
    work=work(recipe()),
    learners=4,
    pools={"fast": Pace(about(FAST), 2.0, 2), "slow": Pace(about(SLOW), 4.0, 2)},
    waits={},
    quorum_s=NONE,
    grace_s=NONE,
    sync_s=one(0.05),
    adopted_s=NONE,
    version_s=0.045,
    detect={},
    restart=dict.fromkeys(RESTART, NONE) | {"detect": one(0.3), "state": one(0.6)},
    abreast=1.5,
    alone={"start": one(2.0), "import": one(1.0), "compile": one(1.5)},
    first_step_s=one(1.5),
    outage={"detect": one(0.5), "start": one(2.5)},
    strikes=STRIKES,
    measured=Measured(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
)
SHAPES = Shapes(
    fragments=tuple(Fragment(p, (Tensor(f"t{p}", (8,), "float32"),)) for p in range(4)),
    parameter_bytes=128,
    inner_state_bytes=256,
    outer_state_bytes=(32,) * 4,
    step_tokens={"fast": 64, "slow": 64},
)


def log(**versions: str) -> list[Event]:
    """A run of the known durations, from its beginning to its end."""
    made = recipe()
    events = [replace(event, at=BASE + event.at) for event in trial(made, SHAPES, KNOWN, STRIKES, 0)]
    first, last = RunStarted("known", made.config_hash, 0, versions), RunFinished("finished", "budget")
    ours = [event for event in events if event.writer == "orchestrator"]
    others = [event for event in events if event.writer != "orchestrator"]
    facts = [(events[0].at, first), *((event.at, event.fact) for event in ours), (events[-1].at, last)]
    return canonical([*others, *(Event("orchestrator", 1, i, at, fact) for i, (at, fact) in enumerate(facts))])


EVENTS = log()


def folder(root: Path, events: list[Event] = EVENTS) -> Path:
    root.mkdir()
    (root / "config.toml").write_text(dump(recipe()))
    write_log(root, events)
    return root


@pytest.fixture
def found(tmp_path: Path) -> Calibration:
    return calibrate(folder(tmp_path / "run"))[0]


# ------------------------------------------------------------------ measuring


def test_the_durations_that_a_run_was_made_with_are_measured_again(found: Calibration) -> None:
    for pool, seconds in (("fast", FAST), ("slow", SLOW)):
        measured_s = found.pools[pool].step_s
        assert 0.8 * seconds < measured_s.seconds[0] and measured_s.seconds[-1] < 1.2 * seconds
        assert measured_s.median == pytest.approx(seconds, rel=0.1)
    assert found.restart["detect"].seconds == pytest.approx((0.3,) * 4)
    for phase in ("start", "import", "compile"):
        assert found.alone[phase].seconds == pytest.approx(KNOWN.alone[phase].seconds * 4), phase
    assert found.first_step_s.seconds[-1] == pytest.approx(1.5 - 0.75 + SLOW, abs=0.2 * SLOW)  # longer by so much
    outage = found.outage["detect"].seconds[0] + found.outage["start"].seconds[0]
    assert outage == pytest.approx(3.0)


def test_how_starts_hold_each_other_up_is_told_from_those_that_met(found: Calibration) -> None:
    """The last two came one second apart, and what one of them would have taken alone is known from the others."""
    assert found.abreast == 1.5
    longest = found.restart["start"].seconds[-1] + found.restart["import"].seconds[-1]
    assert longest > 1.1 * 3.0


def test_starts_that_never_met_do_not_tell_how_they_would() -> None:
    apart = [[0.0, 1.0, 3.0], [3.0, 4.0, 6.0]]
    assert abreast(apart) is None
    assert works(apart, apart, None) == [[1.0, 2.0], [1.0, 2.0]]
    together = [[0.0, 2.0, 6.0], [0.0, 2.0, 6.0], [9.0, 10.0, 12.0]]
    assert abreast(together) == 1.0
    assert works(together, together, 1.0) == [[1.0, 2.0]] * 3


def test_the_time_until_a_version_is_there_is_told_from_the_boundaries_around_it(found: Calibration) -> None:
    """It is adopted at a boundary, often half a step later than it came."""
    assert found.adopted_s.median is not None and found.adopted_s.median > 0.15
    assert found.version_s == pytest.approx(0.045, abs=0.01)


def test_steps_that_a_fault_made_longer_are_not_measured(found: Calibration) -> None:
    steps = [event for event in EVENTS if type(event.fact).__name__ == "StepFinished"]
    longer = [event for event in steps if event.fact.seconds > 1.3 * SLOW]
    assert len(longer) > 2  # frozen, slowed down, or an incarnation's first
    assert max(found.pools["fast"].step_s.seconds) < 1.2 * FAST
    assert found.pools["fast"].step_s.count + found.pools["slow"].step_s.count > 0.9 * len(steps)


def test_a_runs_figures_are_those_of_its_summary(found: Calibration) -> None:
    summary = summarise(EVENTS, recipe(), ())
    assert asdict(found.measured) == pytest.approx(asdict(measured(summary)))  # the log rounds to microseconds
    assert found.measured.goodput_time == pytest.approx(summary["goodput_time"])
    assert found.measured.participation == summary["participation"]["mean"]
    assert (summary["global_downtime_s"], found.measured.uptime) == (0.0, 1.0)
    assert max(found.measured.goodput_time, found.measured.participation) < 0.95


def test_every_fault_is_found_with_its_time_since_the_first_step(found: Calibration) -> None:
    told = [(strike.kind, strike.target, strike.duration_s, strike.delay_s) for strike in found.strikes]
    assert told == [(each.kind, each.target, each.duration_s, each.delay_s) for each in STRIKES]
    joined_s = 0.1  # a state came from the syncer first
    assert [strike.at_s for strike in found.strikes] == pytest.approx([each.at_s for each in STRIKES], abs=joined_s)


def test_a_calibration_is_the_same_after_json(found: Calibration) -> None:
    text = json.dumps(found.as_json(), allow_nan=False)
    assert Calibration.from_json(json.loads(text)) == found
    assert json.loads(text)["restart"]["detect"]["median"] == pytest.approx(0.3)


@pytest.mark.parametrize("record", [[], {"form": 2}, {"form": 1}, {"form": 1, "run": 3}])
def test_another_programs_json_is_no_calibration(record: Any) -> None:
    with pytest.raises(ValueError, match="no calibration"):
        Calibration.from_json(record)


def _rewritten(run: Path, events: list[Event]) -> None:
    shutil.rmtree(run / "log")
    shutil.rmtree(run / "journal")
    write_log(run, events)


def _unfinished(run: Path) -> None:
    _rewritten(run, [event for event in EVENTS if not isinstance(event.fact, RunFinished)])


def _damaged(run: Path) -> None:
    segment = run / segment_key("syncer", 0)
    segment.write_bytes(segment.read_bytes().replace(b"syncer", b"broken", 1))


def _empty(run: Path) -> None:
    _rewritten(run, [])


def _without_recipe(run: Path) -> None:
    (run / "config.toml").unlink()


def _without_commits(run: Path) -> None:
    _rewritten(run, [event for event in EVENTS if not isinstance(event.fact, Committed)])


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_unfinished, "not at its end"),
        (_damaged, "its log is damaged: segment 0 of syncer"),
        (_empty, "its log tells of no run"),
        (_without_recipe, "holds no config.toml"),
        (_without_commits, "no step was committed there"),
    ],
)
def test_a_folder_that_tells_too_little_is_refused(tmp_path: Path, harm: Callable[[Path], None], says: str) -> None:
    harm(run := folder(tmp_path / "run"))
    with pytest.raises(InputError, match=says):
        calibrate(run)


def test_a_run_in_which_nothing_was_computed_measures_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing was computed there"):
        calibrate(folder(tmp_path / "run", log(synthetic="simulated, seed 0")))


def test_a_long_measurement_is_thinned_out_and_keeps_its_ends() -> None:
    thin = EmpiricalDistribution.of(float(i) for i in range(5000))
    assert (thin.count, len(thin.seconds), thin.seconds[0], thin.seconds[-1]) == (5000, KEPT_MAX, 0.0, 4999.0)
    assert thin.median == pytest.approx(2499.5, abs=5.0)
    assert EmpiricalDistribution.of([1.0, 3.0]).at(0.25) == 1.5


def durations(rows: int) -> Durations:
    """Those of the log, read in blocks of so many rows."""
    records, ordered = Records(), canonical(EVENTS)
    made = Durations(records, lambda learner: recipe().pool_of(learner).name)
    drive([records, made], (block_of(ordered[first : first + rows], first) for first in range(0, len(ordered), rows)))
    return made


@pytest.mark.parametrize("rows", [1, 13])
def test_however_the_log_is_cut_into_blocks_the_durations_are_the_same(rows: int) -> None:
    cut, whole = vars(durations(rows)), vars(durations(1 << 20))
    for name in ("first_step", "quorum", "grace", "sync", "adopted"):
        assert cut[name].count > 0 and cut[name].values.tolist() == whole[name].values.tolist(), name
    for pool in ("fast", "slow"):
        assert cut["steps"][pool].values.tolist() == whole["steps"][pool].values.tolist()
    assert sorted(cut["between"].tolist()) == sorted(whole["between"].tolist())


def test_what_is_kept_of_a_long_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("EXACT", 16), ("STEPS_KEPT", 32), ("BETWEEN_KEPT", 64)):
        monkeypatch.setattr(f"orchestrator.planner.fleet.calibration.durations.{name}", most)
    made = durations(100)
    assert len(made.between) <= 64
    assert made.adopted.count > 16 and not len(made.adopted.values)


# ------------------------------------------------------------------ prediction


def test_a_run_is_predicted_from_what_was_measured_of_it(found: Calibration) -> None:
    """Its commits, uptime and goodput, from durations that went through the log."""
    rows = {row["figure"]: row for row in compared(found.measured, predict(recipe(), SHAPES, found, found.strikes, 2))}
    assert rows["goodput_time"]["measured"] < 0.95  # there is something to predict
    for name in ("goodput_time", "availability", "uptime", "participation", "alive_participation"):
        assert abs(rows[name]["difference"]) < 0.01, name
    assert rows["commits_per_s"]["predicted"] == pytest.approx(rows["commits_per_s"]["measured"], rel=0.03)


def test_without_faults_the_prediction_is_another(found: Calibration) -> None:
    calm = predict(recipe(), SHAPES, found, (), 1).figures
    assert calm["goodput_time"].mean > found.measured.goodput_time + 0.03
    assert calm["participation"].mean > found.measured.participation + 0.03


def test_a_pool_of_another_pace_steps_in_proportion() -> None:
    other = recipe(pools=[{"name": "other", "learners": 1, "batch_size": 4, "slowdown": 3.0}]).pools[0]
    assert step_s(other, KNOWN).median == pytest.approx(FAST * 3.0 / 2.0 * 4 / 2)
    assert step_s(recipe().pools[1], KNOWN).median == SLOW


def test_a_recipes_own_faults_strike_when_its_chaos_says() -> None:
    """At a syncer step: once so many median steps have passed. Random ones differ from seed to seed."""
    chaos = {
        "faults": [{"kind": "kill", "learner": "learner-fast-0", "at_step": 40}],
        "mtbf_s": 5.0,
        "kinds": ["freeze"],
        "freeze_s": 3.0,
    }
    one_seed, other = (list(planned(recipe(chaos=chaos), KNOWN, seed, 1000.0)) for seed in (0, 1))
    assert one_seed[0] == ObservedFault("kill", "learner-fast-0", 40 * FAST, 0.0, 0.0, True)
    assert {(strike.kind, strike.duration_s) for strike in one_seed[1:]} == {("freeze", 3.0)}
    assert 150 < len(one_seed) < 250 and one_seed[1:] != other[1:]


def test_step_times_of_another_model_are_refused() -> None:
    with pytest.raises(InputError, match="measured another task"):
        predict(recipe(model={"layers": 2}), SHAPES, KNOWN)


def test_of_a_long_run_the_beginning_is_simulated_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "STEPS_MAX", 800)
    made = predict(recipe(budget={"syncer_steps": 1_000_000}), SHAPES, KNOWN, (), 1)
    assert made.syncer_steps == 800 // 4
    assert made.figures["wall_s"].mean == pytest.approx(200 * FAST, rel=0.1)


def test_a_syncers_fault_that_is_not_simulated_is_said() -> None:
    freeze = replace(STRIKES[1], target="syncer")
    assert predict(recipe(), SHAPES, KNOWN, (freeze,), 1).ignored == ("freeze of the syncer",)


# ------------------------------------------------------------------ the command


def _plan(*words: str) -> Any:
    return CliRunner().invoke(build(), ["plan", *words], catch_exceptions=False)


def test_plan_calibrates_on_a_run_keeps_it_and_plans_by_what_it_kept(tmp_path: Path) -> None:
    run, kept = folder(tmp_path / "run"), tmp_path / "kept.json"
    told = _plan("--calibrate", str(run), "--save", str(kept))
    assert told.exit_code == 0
    assert "calibrated on " in told.stdout and "goodput" in told.stdout and "step, pool fast" in told.stdout
    again = _plan(str(run / "config.toml"), "--calibrate", str(kept), "--json")
    section = json.loads(again.stdout)["calibration"]
    assert section["compared"] == []
    assert section["planned"]["figures"]["goodput_time"]["mean"] > 0.9  # its recipe has no faults
    assert section["measured"] == json.loads(kept.read_text())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--calibrate", "nowhere"], "no such folder"),
        (["--calibrate", "kept.json"], "no recipe to plan is given"),
        (["config.toml", "--calibrate", "kept.json"], "cannot be read as a calibration"),
        (["config.toml", "--save", "kept.json"], "there is no calibration to keep"),
    ],
)
def test_what_cannot_be_calibrated_on_is_said_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.json").write_text("{}")
    (tmp_path / "config.toml").write_text(dump(recipe()))
    told = _plan(*words)
    assert told.exit_code == 2
    assert says in told.stderr and "fix: " in told.stderr
