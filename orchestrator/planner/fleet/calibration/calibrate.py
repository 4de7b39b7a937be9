"""Calibrates the fleet simulator on a real run's log: its durations, its faults, its goodput.

Goodput and its companions, outages and recoveries are the summary's own. Times of different processes are compared by
their wall clocks, as everywhere in the accounts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import drive
from orchestrator.accounting.roster import SYNCER, Incarnation
from orchestrator.accounting.sketch import Sketch
from orchestrator.accounting.summary import summarise
from orchestrator.eventlog.block import Block, Floats
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import intact
from orchestrator.planner.fleet.calibration.distribution import EmpiricalDistribution
from orchestrator.planner.fleet.calibration.durations import Durations
from orchestrator.planner.fleet.calibration.measurements import RESTART, Calibration, Measured, ObservedFault, Pace
from orchestrator.planner.fleet.calibration.starting import Marks, abreast, works
from orchestrator.recipe.config import Recipe, hashed
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore

Interval = tuple[float, float]


def calibrate(folder: Path) -> tuple[Calibration, Recipe]:
    """What a finished run's folder tells, and its recipe. Raises InputError where it does not tell enough."""
    store = RunStore(folder)
    if not store.exists:
        raise _refused(folder, "no such folder", "give a run's folder, for example runs/demo")
    recipe = recipe_of(store)
    try:
        return measure(intact(store.root), recipe, str(folder)), recipe
    except (OSError, ValueError) as error:
        fix = "take another run: what the log lost cannot be measured"
        raise _refused(folder, f"its log is damaged: {error}", fix) from error


def measure(blocks: Iterable[Block], recipe: Recipe, folder: str) -> Calibration:
    """The calibration of one log. `folder` is for messages."""
    accounts = Accounts()
    durations = Durations(accounts.records, lambda learner: recipe.pool_of(learner).name)
    drive([accounts, durations], blocks)
    summary = summarise(accounts, recipe, ())
    _demand(durations, summary, folder)
    roster, times = accounts.roster, accounts.times
    assert times.start is not None
    every = [*roster.remains, *roster.table.values()]
    incarnations = [incarnation for incarnation in every if incarnation.steps]
    restarted = [incarnation for incarnation in incarnations if incarnation.number > 1]
    starts = {incarnation.key: marks for incarnation in every if (marks := _marks(incarnation)) is not None}
    most = abreast(list(starts.values()))
    of = EmpiricalDistribution.of_sketch
    return Calibration(
        run=summary["name"],
        config_hash=summary["config_hash"] or recipe.config_hash,
        work=work(recipe),
        learners=len(roster.configured),
        pools={
            pool.name: Pace(of(durations.steps.get(pool.name, Sketch())), pool.slowdown, pool.batch_size)
            for pool in recipe.pools
        },
        waits={kind: of(seconds) for kind, seconds in sorted(durations.waits.items())},
        quorum_s=of(durations.quorum),
        grace_s=of(durations.grace),
        sync_s=of(durations.sync),
        adopted_s=of(durations.adopted),
        version_s=_most_covered(durations.between),
        detect=_by_key((row["kind"], row["detection_s"]) for row in summary["faults"] if row["target"] != SYNCER),
        restart=_restarts(restarted or incarnations, summary["faults"]),
        abreast=most,
        alone=_alone(
            [starts[incarnation.key] for incarnation in restarted or incarnations if incarnation.key in starts],
            starts.values(),
            most,
        ),
        first_step_s=of(durations.first_step),
        outage=_phases(row for row in summary["faults"] if row["target"] == SYNCER),
        strikes=tuple(_strikes(durations.injected, summary["faults"], times.start, times.pauses)),
        measured=measured(summary),
    )


def work(recipe: Recipe) -> str:
    """What a step computes, whatever its pace and batch."""
    return hashed({"task": recipe.task, "model": recipe.model, "length": recipe.data.sequence_length})


def _demand(durations: Durations, summary: Mapping[str, Any], folder: str) -> None:
    """Refuse what would be measured wrongly."""
    if durations.versions is None:
        raise _refused(folder, "its log tells of no run", "give the folder of a run that has begun")
    if made := durations.versions.get("synthetic"):
        raise _refused(folder, f"nothing was computed there ({made}): its times are no measurement", "give a real run")
    if summary["state"] not in ("finished", "stopped"):
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


def _most_covered(intervals: Floats) -> float | None:
    """The shortest time that lies within most of the intervals [n, 2]; None for none."""
    if not len(intervals):
        return None
    starts, stops = np.sort(intervals[:, 0]), np.sort(intervals[:, 1])
    within = np.searchsorted(starts, starts, "right") - np.searchsorted(stops, starts, "right")
    return float(starts[np.argmax(within)])


# ------------------------------------------------------------------ faults


def _strikes(
    injected: Iterable[Event], faults: Iterable[Mapping[str, Any]], origin: float, pauses: Sequence[Interval]
) -> Iterator[ObservedFault]:
    """What was injected, and deaths that nothing explains, by time. A pause of the run counts as no time."""

    def at_s(at: float) -> float:
        return at - origin - sum(min(at, stop) - start for start, stop in pauses if start < at)

    found = [
        ObservedFault(
            kind=said.fact.fault_kind,
            target=said.fact.target,
            at_s=at_s(said.at),
            duration_s=said.fact.duration_s,
            delay_s=said.fact.delay_s,
            injected=True,
        )
        for said in injected
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
