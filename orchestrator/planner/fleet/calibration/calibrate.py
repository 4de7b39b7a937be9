"""Calibrates the fleet simulator on a real run's log: its durations, its faults, its goodput.

Goodput and its companions, outages and recoveries are the summary's own. Times of different processes are compared by
their wall clocks, as everywhere in the accounts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from learners.protocol.facts import StepFinished
from orchestrator.accounting.goodput import first_step_at
from orchestrator.accounting.history import SYNCER, History
from orchestrator.accounting.incarnations import Incarnation
from orchestrator.accounting.summary import summarise
from orchestrator.eventlog.facts import FaultInjected, RunFinished, RunStarted
from orchestrator.eventlog.segments import read_run
from orchestrator.planner.fleet.calibration.distribution import EmpiricalDistribution
from orchestrator.planner.fleet.calibration.measurements import RESTART, Calibration, Measured, ObservedFault, Pace
from orchestrator.planner.fleet.calibration.starting import Marks, abreast, works
from orchestrator.recipe.config import Recipe, hashed
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import StepOpened, StepReopened

Interval = tuple[float, float]


def calibrate(folder: Path) -> tuple[Calibration, Recipe]:
    """What a finished run's folder tells, and its recipe. Raises InputError where it does not tell enough."""
    store = RunStore(folder)
    if not store.exists:
        raise _refused(folder, "no such folder", "give a run's folder, for example runs/demo")
    recipe = recipe_of(store)
    try:
        history = History(read_run(store.root))
    except (OSError, ValueError) as error:
        fix = "take another run: what the log lost cannot be measured"
        raise _refused(folder, f"its log is damaged: {error}", fix) from error
    return measure(history, recipe, str(folder)), recipe


def measure(history: History, recipe: Recipe, folder: str) -> Calibration:
    """The calibration of one log. `folder` is for messages."""
    summary = summarise(history, recipe, ())
    _demand(history, summary, folder)
    origin = first_step_at(history)
    assert origin is not None
    incarnations = [incarnation for incarnation in history.incarnations.values() if incarnation.steps]
    restarted = [incarnation for incarnation in incarnations if incarnation.number > 1]
    adopted, version_s = _adoptions(history)
    starts = {
        incarnation.key: marks
        for incarnation in history.incarnations.values()
        if (marks := _marks(incarnation)) is not None
    }
    most = abreast(list(starts.values()))
    return Calibration(
        run=summary["name"],
        config_hash=summary["config_hash"] or recipe.config_hash,
        work=work(recipe),
        learners=len(history.configured),
        pools={
            pool.name: Pace(
                EmpiricalDistribution.of(_steps(history, recipe, incarnations, pool.name)),
                pool.slowdown,
                pool.batch_size,
            )
            for pool in recipe.pools
        },
        waits=_by_key((said.fact.waited_for, said.fact.waited_s) for said in history.of(StepFinished)),
        quorum_s=EmpiricalDistribution.of(said.fact.quorum_s for said in history.commits),
        grace_s=EmpiricalDistribution.of(said.fact.grace_s for said in history.commits),
        sync_s=EmpiricalDistribution.of(said.fact.sync_s for said in history.commits),
        append_s=EmpiricalDistribution.of(_appends(history)),
        adopted_s=adopted,
        version_s=version_s,
        detect=_by_key((row["kind"], row["detection_s"]) for row in summary["faults"] if row["target"] != SYNCER),
        restart=_restarts(restarted or incarnations, summary["faults"]),
        abreast=most,
        alone=_alone(
            [starts[incarnation.key] for incarnation in restarted or incarnations if incarnation.key in starts],
            starts.values(),
            most,
        ),
        first_step_s=EmpiricalDistribution.of(incarnation.steps[0].fact.seconds for incarnation in incarnations),
        outage=_phases(row for row in summary["faults"] if row["target"] == SYNCER),
        strikes=tuple(_strikes(history, summary["faults"], origin)),
        measured=measured(summary),
    )


def work(recipe: Recipe) -> str:
    """What a step computes, whatever its pace and batch."""
    return hashed({"task": recipe.task, "model": recipe.model, "length": recipe.data.sequence_length})


def _demand(history: History, summary: Mapping[str, Any], folder: str) -> None:
    """Refuse what would be measured wrongly."""
    started = history.of(RunStarted)
    if not started:
        raise _refused(folder, "its log tells of no run", "give the folder of a run that has begun")
    if made := started[0].fact.versions.get("synthetic"):
        raise _refused(folder, f"nothing was computed there ({made}): its times are no measurement", "give a real run")
    if not history.of(RunFinished) or summary["state"] not in ("finished", "stopped"):
        state = summary["state"] or "not at its end"
        raise _refused(folder, f"the run is {state}", "give a run that has finished or was stopped")
    if summary["goodput_time"] is None or summary["participation"] is None or not summary["wall_s"]:
        raise _refused(folder, "no step was committed there", "give a run that has committed some")


def _refused(folder: str | Path, message: str, fix: str) -> InputError:
    return InputError([Problem("--calibrate", str(folder), message, fix)])


def measured(summary: Mapping[str, Any]) -> Measured:
    """A run's figures, of its summary."""
    wall_s = summary["wall_s"]
    return Measured(
        wall_s=wall_s,
        goodput_time=summary["goodput_time"],
        availability=summary["availability"],
        uptime=1.0 - summary["global_downtime_s"] / wall_s,
        participation=summary["participation"]["mean"],
        alive_participation=summary["participation"]["alive_mean"],
        commits_per_s=summary["commits"] / wall_s,
        tokens_per_s=summary["tokens_per_s"],
    )


# ------------------------------------------------------------------ learners


def _steps(history: History, recipe: Recipe, incarnations: Iterable[Incarnation], pool: str) -> Iterator[float]:
    """Seconds of the steps that nothing disturbed; an incarnation's first may still compile, and is a phase."""
    for incarnation in incarnations:
        if recipe.pool_of(incarnation.learner).name == pool:
            disturbed = _disturbed(history, incarnation)
            for said in incarnation.steps[1:]:
                begun = said.at - said.fact.seconds
                if not any(start < said.at and begun < stop for start, stop in disturbed):
                    yield said.fact.seconds


def _disturbed(history: History, incarnation: Incarnation) -> list[Interval]:
    """When a fault changed how long its steps took."""
    frozen = [(freeze.start, freeze.stop or float("inf")) for freeze in incarnation.freezes]
    delayed = ((said.at, said.at + said.fact.duration_s) for said in incarnation.other_faults if said.fact.delay_s)
    return [*frozen, *delayed]


def _restarts(
    incarnations: Iterable[Incarnation], faults: Iterable[Mapping[str, Any]]
) -> dict[str, EmpiricalDistribution]:
    """By phase. What leads to a request comes from recoveries, the rest from incarnations that began as these did."""
    marks = ("importing", "compiling", "joining", "stepping")
    found: dict[str, list[float]] = {phase: [] for phase in RESTART}
    for incarnation in incarnations:
        reached = [incarnation.requested, *(incarnation.entered(mark) for mark in marks)]
        for phase, begin, end in zip(RESTART[2:6], reached, reached[1:], strict=False):
            if begin is not None and end is not None:
                found[phase].append(max(0.0, end - begin))
    for row in faults:
        if row["target"] != SYNCER and row["recovery_phases"]["decide"] is not None:
            for phase in ("detect", "decide", "first_contribution"):
                if (seconds := row["recovery_phases"][phase]) is not None:
                    found[phase].append(seconds)
    return {phase: EmpiricalDistribution.of(seconds) for phase, seconds in found.items()}


def _marks(incarnation: Incarnation) -> Marks | None:
    """When it was requested, imported, compiled and asked for a state; None for what never came so far."""
    reached = [incarnation.requested, *(incarnation.entered(mark) for mark in ("importing", "compiling", "joining"))]
    known = [at for at in reached if at is not None]
    return list(accumulate(known, max)) if len(known) == len(reached) else None


def _alone(
    starts: Sequence[Marks], all_of_them: Iterable[Marks], most: float | None
) -> dict[str, EmpiricalDistribution]:
    """By phase. A start that was broken off was beside the others, too, but that is not followed."""
    by_phase = zip(*works(starts, list(all_of_them), most), strict=True)
    return {phase: EmpiricalDistribution.of(seconds) for phase, seconds in zip(RESTART[2:5], by_phase, strict=False)}


def _phases(faults: Iterable[Mapping[str, Any]]) -> dict[str, EmpiricalDistribution]:
    return _by_key(item for row in faults for item in row["recovery_phases"].items())


# ------------------------------------------------------------------ the syncer


def _appends(history: History) -> Iterator[float]:
    """From merged to durable: what is left of a commit's time since it opened, where it opened once."""
    reopened = {said.fact.syncer_step for said in history.of(StepReopened)}
    opened = {(said.incarnation, said.fact.syncer_step): said.at for said in history.of(StepOpened)}
    for said in history.commits:
        fact = said.fact
        begun = opened.get((said.incarnation, fact.syncer_step))
        if begun is not None and fact.syncer_step not in reopened:
            yield max(0.0, said.at - begun - fact.quorum_s - fact.grace_s - fact.sync_s)


def _adoptions(history: History) -> tuple[EmpiricalDistribution, float | None]:
    """(durable to adopted, the time until a version is there), for learners that step."""
    committed = {said.fact.syncer_step: said.at for said in history.commits}
    took: list[float] = []
    between: list[Interval] = []  # the version came after the one boundary and before the other
    for incarnation in history.incarnations.values():
        ends = {said.fact.step: said.at for said in incarnation.steps}
        for said in incarnation.adoptions:
            at, after = committed.get(said.fact.version), said.fact.after_step
            if at is None or said.fact.mode == "bootstrap" or after not in ends or said.at < at:
                continue
            took.append(said.at - at)
            before = ends.get(after - 1)
            between.append((0.0 if before is None else max(0.0, before - at), said.at - at))
    return EmpiricalDistribution.of(took), _most_covered(between)


def _most_covered(intervals: list[Interval]) -> float | None:
    """The shortest time that lies within most of the intervals; None for none."""
    if not intervals:
        return None
    starts, stops = sorted(start for start, _ in intervals), sorted(stop for _, stop in intervals)
    return max(starts, key=lambda at: (bisect_right(starts, at) - bisect_right(stops, at), -at))


# ------------------------------------------------------------------ faults


def _strikes(history: History, faults: Iterable[Mapping[str, Any]], origin: float) -> Iterator[ObservedFault]:
    """What was injected, and deaths that nothing explains, by time. A pause of the run counts as no time."""

    def at_s(at: float) -> float:
        return at - origin - sum(min(at, stop) - start for start, stop in history.pauses if start < at)

    found = [
        ObservedFault(
            kind=said.fact.fault_kind,
            target=said.fact.target,
            at_s=at_s(said.at),
            duration_s=said.fact.duration_s,
            delay_s=said.fact.delay_s,
            injected=True,
        )
        for said in history.of(FaultInjected)
    ]
    found += [
        ObservedFault("kill", row["target"], at_s(origin + row["at_s"]), 0.0, 0.0, injected=False)
        for row in faults
        if not row["injected"]
    ]
    yield from sorted(found, key=lambda strike: strike.at_s)


def _by_key(pairs: Iterable[tuple[str, float | None]]) -> dict[str, EmpiricalDistribution]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for key, seconds in pairs:
        if key and seconds is not None:
            found[key].append(seconds)
    return {key: EmpiricalDistribution.of(seconds) for key, seconds in sorted(found.items())}
