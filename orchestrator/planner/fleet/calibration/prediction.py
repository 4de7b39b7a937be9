"""What a recipe would come to with durations that a real run has measured: its fleet, simulated with several seeds.

The simulated runs are judged as real ones are: their logs go through the same summary. Every duration is drawn anew
each time, from all that were measured; that a slow step makes the next one likely slow, too, is not followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from random import Random
from statistics import fmean, median
from typing import Any

from orchestrator.accounting.summary import summarise
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished
from orchestrator.planner.fleet.calibration.calibrate import measured, work
from orchestrator.planner.fleet.calibration.distribution import EmpiricalDistribution
from orchestrator.planner.fleet.calibration.measurements import Calibration, Measured, ObservedFault, Pace
from orchestrator.planner.fleet.description import Draw, Fault, Fleet, Link, Member, Steady, Timing, constant
from orchestrator.planner.fleet.run import simulate
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.recipe.config import SYNCER, ChaosConfig, PoolConfig, Recipe
from orchestrator.recipe.problems import InputError, Problem
from outer.protocol.schedule import Budget

SEEDS = 5
STEPS_MAX = 12_000  # of all learners; of a longer run its beginning is simulated
PATIENCE = 10.0  # so many times as long as without faults, and the simulated run is held for standing still
UNDISTURBED = 0.9  # share of the reads and merges that nobody's boundary or silence held up: those the machines do
AS_KILL = ("wrong_config", "non_finite")  # a death is what they come to
LASTING = ("freeze", "slow", "straggle", "link", "corrupt")
ANY = "any"


@dataclass(frozen=True)
class Predicted:
    """One figure over all seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    seeds: int
    syncer_steps: int | None  # simulated ones, where the run is longer
    figures: dict[str, Predicted]  # by the fields of Measured
    ignored: tuple[str, ...]  # faults that the simulator does not know


def predict(
    recipe: Recipe,
    shapes: Shapes,
    calibration: Calibration,
    strikes: Sequence[ObservedFault] | None = None,
    seeds: int = SEEDS,
) -> Prediction:
    """Simulate a resolved recipe with another run's durations. `strikes`: its faults, instead of its [chaos].

    Raises InputError where the calibration does not apply, or the simulated run comes to no end.
    """
    _demand(recipe, calibration)
    trials = [_judged(recipe, shapes, calibration, strikes, seed) for seed in range(seeds)]
    figures = {}
    for name in (each.name for each in fields(Measured)):
        values = [value for trial in trials if (value := getattr(trial, name)) is not None]
        if values:
            figures[name] = Predicted(fmean(values), min(values), max(values))
    faults = list(strikes if strikes is not None else planned(recipe, calibration, 0, 0.0))
    ignored = sorted({f"{each.kind} of the syncer" for each in faults if not _known(each)})
    return Prediction(seeds, _cut(recipe), figures, tuple(ignored))


def _demand(recipe: Recipe, calibration: Calibration) -> None:
    if work(recipe) != calibration.work:
        message = "measured another task, model or data.sequence_length: its step times say nothing of this recipe"
        fix = "calibrate on a run of the same model, however short"
        raise InputError([Problem("--calibrate", calibration.run, message, fix)])
    if recipe.sync.overlap != "free":
        message = "lock-step runs are not predicted"
        raise InputError([Problem("sync.overlap", recipe.sync.overlap, message, 'give --set sync.overlap="free"')])


def _judged(
    recipe: Recipe, shapes: Shapes, calibration: Calibration, strikes: Sequence[ObservedFault] | None, seed: int
) -> Measured:
    """One simulated run, through the summary of real ones."""
    until_s = PATIENCE * expected_s(recipe, calibration)
    faults = strikes if strikes is not None else list(planned(recipe, calibration, seed, until_s))
    return measured(summarise(trial(recipe, shapes, calibration, faults, seed), recipe, ()))


def trial(
    recipe: Recipe, shapes: Shapes, calibration: Calibration, strikes: Sequence[ObservedFault], seed: int
) -> list[Event]:
    """The log of one simulated run, from the first request to the end. Strikes count from its first step.

    Raises InputError where it comes to no end.
    """
    calm = fleet(recipe, shapes, calibration, seed)
    start_s = len(calm.members) * calm.timing.start_s
    until_s = start_s + PATIENCE * expected_s(recipe, calibration)
    _, world = simulate(replace(calm, budget=Budget(None, 1)), until_s)  # up to the first step both are the same
    first_s = min((step.began for steps in world.steps.values() for step in steps), default=0.0)
    outcome, world = simulate(replace(calm, faults=tuple(_faults(strikes, first_s))), until_s)
    if outcome.finished_at is None:
        message = f"the simulated run comes to no end in {until_s:,.0f} s, with seed {seed}"
        fix = "plan fewer faults, or lower sync.quorum"
        raise InputError([Problem("sync.quorum", recipe.quorum, message, fix)])
    # That the supervisor sees the end late is no part of what is predicted.
    return [event for event in world.context.events() if not isinstance(event.fact, RunFinished)]


# ------------------------------------------------------------------ the fleet


def fleet(recipe: Recipe, shapes: Shapes, calibration: Calibration, seed: int) -> Fleet:
    """The recipe's fleet, with all durations drawn from what was measured. No faults."""
    regions = {pool.region or "" for pool in recipe.pools}
    latency_s = (calibration.version_s or 0.0) / 4.0  # a version takes a write, a notice, a question and an answer
    cut = _cut(recipe)
    return Fleet(
        sync=recipe.sync,
        quorum=recipe.quorum,
        fragments=shapes.fragments,
        members=tuple(_member(recipe, shapes, calibration, name, seed) for name in recipe.learners),
        budget=Budget(None, cut) if cut else Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
        timing=_timing(recipe, calibration, latency_s, seed),
        links={(one, other): Link(latency_s=latency_s) for one in regions for other in regions},
        syncer_region=recipe.pools[0].region or "",
        span_steps=recipe.data.span_steps,
        ahead_s=recipe.data.ahead_s,
        recorded=True,
    )


def _member(recipe: Recipe, shapes: Shapes, calibration: Calibration, name: str, seed: int) -> Member:
    pool = recipe.pool_of(name)
    steps = Steady(_drawn(step_s(pool, calibration), seed, f"steps {name}"))
    return Member(name, pool.batch_size, shapes.step_tokens[pool.name], steps, pool.name, pool.region or "")


def step_s(pool: PoolConfig, calibration: Calibration) -> EmpiricalDistribution:
    """Of a pool's learners: of the pool of that name, else of the one whose pace is nearest, in proportion."""
    pace = _pace(pool, calibration)
    return pace.step_s.times(pool.slowdown / pace.slowdown * pool.batch_size / pace.batch_size)


def _pace(pool: PoolConfig, calibration: Calibration) -> Pace:
    paces = {name: pace for name, pace in calibration.pools.items() if pace.step_s}
    if pool.name in paces:
        return paces[pool.name]
    asked = pool.slowdown * pool.batch_size
    return min(paces.values(), key=lambda pace: abs(math.log(pace.slowdown * pace.batch_size / asked)))


def _timing(recipe: Recipe, calibration: Calibration, latency_s: float, seed: int) -> Timing:
    restart, run = calibration.restart, recipe.run
    usual_s = median(pace.step_s.at(0.5) for pace in calibration.pools.values() if pace.step_s)
    sync_s = _drawn(calibration.sync_s.below(UNDISTURBED), seed, "merges")
    state_s = restart["state"].median or 0.0
    return Timing(
        process_s=_drawn(calibration.alone["start"], seed, "processes"),
        import_s=_drawn(calibration.alone["import"], seed, "imports"),
        compile_s=_drawn(calibration.alone["compile"], seed, "compiling"),
        detect_s=_drawn(restart["detect"], seed, "detection"),
        first_s=_drawn(calibration.first_step_s.less(usual_s), seed, "first steps"),
        pack_s=max(0.0, state_s - 0.5 * usual_s - 5.0 * latency_s),  # a donor answers at a boundary
        merge_s=lambda elements, learners: max(0.0, sync_s() - 2.0 * latency_s),
        append_s=lambda elements: latency_s,
        abreast=math.inf if calibration.abreast is None else calibration.abreast,
        outage_s=_outage(calibration, seed),
        backoff_s=run.restart_backoff_s,
        hang_s=run.hang_s,
        unreachable_s=run.unreachable_s,
        start_s=run.start_s,
    )


def _outage(calibration: Calibration, seed: int) -> Draw:
    """Of a syncer: as measured, else a learner's process and its imports, for they are much the same."""
    known, alone = calibration.outage, calibration.alone
    parts = [known["detect"], known["start"]] if known.get("start") else [alone["start"], alone["import"]]
    draws = [_drawn(part, seed, f"outages {number}") for number, part in enumerate(parts)]
    return lambda: sum(draw() for draw in draws)


def _drawn(samples: EmpiricalDistribution, seed: int, purpose: str) -> Draw:
    """Each time another of the measured; 0 where none was."""
    if not samples:
        return constant(0.0)
    rng = Random(f"{seed} {purpose}")
    return lambda: samples.at(rng.random())


# ------------------------------------------------------------------ faults


def _known(strike: ObservedFault) -> bool:
    return strike.target != SYNCER or strike.kind == "kill"


def _faults(strikes: Sequence[ObservedFault], first_s: float) -> Iterator[Fault]:
    for strike in strikes:
        if _known(strike):
            kind: Any = "kill" if strike.kind in AS_KILL else strike.kind
            at_s = first_s + max(0.0, strike.at_s)
            yield Fault(kind, strike.target, at_s=at_s, duration_s=strike.duration_s, delay_s=strike.delay_s)


def planned(recipe: Recipe, calibration: Calibration, seed: int, until_s: float) -> Iterator[ObservedFault]:
    """The recipe's [chaos]: its own faults, those at a syncer step when that is expected; random ones up to then."""
    chaos, names = recipe.chaos, list(recipe.learners)
    rng = Random(f"{seed} faults")
    for each in chaos.faults:
        target = names[int(rng.random() * len(names))] if each.learner == ANY else each.learner
        at_s = each.at_s if each.at_s is not None else (each.at_step or 0) * pace_s(recipe, calibration)
        yield _strike(each.kind, target, at_s, each.duration_s, each.delay_s)
    if chaos.mtbf_s is not None:
        yield from _random(chaos, chaos.mtbf_s, names, rng, until_s)


def _random(
    chaos: ChaosConfig, mtbf_s: float, names: Sequence[str], rng: Random, until_s: float
) -> Iterator[ObservedFault]:
    at_s = rng.expovariate(1.0 / mtbf_s)
    while at_s < until_s:
        kind, target = (items[int(rng.random() * len(items))] for items in (chaos.kinds, names))
        lasts_s = chaos.freeze_s if kind == "freeze" else chaos.duration_s
        yield _strike(kind, target, at_s, lasts_s, chaos.delay_s)
        at_s += rng.expovariate(1.0 / mtbf_s)


def _strike(kind: str, target: str, at_s: float, duration_s: float, delay_s: float) -> ObservedFault:
    delays = kind in ("slow", "straggle")
    return ObservedFault(kind, target, at_s, duration_s if kind in LASTING else 0.0, delay_s if delays else 0.0, True)


def pace_s(recipe: Recipe, calibration: Calibration) -> float:
    """Of a syncer step: the median of the learners' mean steps."""
    return median(fmean(step_s(pool, calibration).seconds) for pool in recipe.learners.values())


def expected_s(recipe: Recipe, calibration: Calibration) -> float:
    """How long the simulated run takes, about, without faults."""
    return (_cut(recipe) or recipe.target_syncer_steps) * pace_s(recipe, calibration)


def _cut(recipe: Recipe) -> int | None:
    """The syncer step at which the simulated run is ended; None: at its own end."""
    most = STEPS_MAX // len(recipe.learners)
    return max(1, most) if recipe.target_syncer_steps > most else None


# ------------------------------------------------------------------ against what was measured


def compared(found: Measured, prediction: Prediction) -> list[dict[str, Any]]:
    """A row a figure: measured, predicted (mean, lowest and highest of the seeds), and predicted less measured."""
    rows = []
    for name, value in asdict(found).items():
        figure = prediction.figures.get(name)
        if value is not None and figure is not None:
            rows.append({"figure": name, "measured": value, **_plain(figure), "difference": figure.mean - value})
    return rows


def _plain(figure: Predicted) -> Mapping[str, float]:
    return {"predicted": figure.mean, "low": figure.low, "high": figure.high}
