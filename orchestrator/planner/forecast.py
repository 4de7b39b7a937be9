"""What becomes of a recipe under the failures that its [fleet] names: goodput, uptime, participation.

In two steps, for failures are rare and a run is long. The production machines say how the fleet works undisturbed, and
what one death of a unit of each pool costs: how long it steps not, contributes not, and how many tokens are lost with
it. Then deaths, replacements and the hours of spot pools are drawn for the whole run, many times over: in free overlap
nobody waits for the dead, so that what each loses adds up. tests/orchestrator/test_forecast.py holds this against the
machines under all failures at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

import numpy as np

from orchestrator.config import Recipe
from orchestrator.planner.fleet.description import Fault
from orchestrator.planner.fleet.recipes import fleet
from orchestrator.planner.fleet.run import Outcome, simulate
from orchestrator.planner.fleet.spot import DAY_S, Interval, absences
from orchestrator.planner.shapes import Shapes
from orchestrator.planner.survival import HOUR_S, unit_mtbf_hours
from orchestrator.planner.traffic import DOWN_BYTES
from outer.budget import Budget

HORIZON_S = 30.0 * DAY_S  # of a run whose length is not known
DEATHS_MAX = 50_000  # drawn for one course; longer ones are cut
ROUNDS = 3  # observed, without and with a death
LEARNERS_MAX = 32  # under the machines; of more a sample, pool by pool
ROUND_STEPS_MAX = 2000  # of all of them in a round; else fewer learners, too
GONE_STEPS_MAX = 100  # until a death is noticed, and until a state is there
ASSUMED_STEP_S = 1.0


@dataclass(frozen=True)
class Spread:
    """Over the courses: the mean, and between what 95 % of them lie."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Toll:
    """What one death of a unit costs, the wait for hardware left out. Seconds of one learner."""

    stepping_s: float  # in which it does not step
    contributing_s: float  # in which commits go without it
    tokens_s: float  # whose tokens are not committed


@dataclass(frozen=True)
class Forecast:
    """Shares, 0 to 1, of all configured learners over the run."""

    step_s: float
    step_is_assumed: bool
    run_s: float  # that was drawn
    courses: int
    deaths: float  # of units, in the mean
    unit_mtbf_s: dict[str, float]  # by pool
    tolls: dict[str, Toll]  # by pool
    goodput: Spread  # time stepping
    uptime: Spread  # time in which at least one learner steps
    quorum: Spread  # time in which at least K do
    participation: Spread  # of commits
    committed: Spread  # tokens, of those that all learners could process


def forecast(
    recipe: Recipe,
    shapes: Shapes,
    step_s: float | None,
    run_s: float | None,
    syncer_region: str | None = None,
    courses: int = 40,
) -> Forecast | None:
    """`step_s`: of a learner with slowdown 1; `run_s`: of stepping. None for lock-step studies, where all wait."""
    if recipe.sync.overlap == "strict":
        return None
    pace = step_s or ASSUMED_STEP_S
    machine = _Machines(_sample(recipe), shapes, pace, syncer_region)
    quiet = machine.quiet()
    mtbf_s = {pool.name: HOUR_S * unit_mtbf_hours(recipe, pool) for pool in recipe.pools}
    tolls = {pool.name: machine.toll(pool.names(1)[0]) for pool in recipe.pools}
    rate = sum(1.0 / mtbf_s[pool.name] for pool in recipe.learners.values())
    horizon_s = min(run_s or HORIZON_S, DEATHS_MAX / rate)
    drawn = [_course(recipe, mtbf_s, tolls, horizon_s, seed) for seed in range(courses)]
    return Forecast(
        step_s=pace,
        step_is_assumed=step_s is None,
        run_s=horizon_s,
        courses=courses,
        deaths=fmean(course.deaths for course in drawn),
        unit_mtbf_s=mtbf_s,
        tolls=tolls,
        goodput=_spread([quiet.goodput * course.stepping for course in drawn]),
        uptime=_spread([quiet.uptime * course.uptime for course in drawn]),
        quorum=_spread([course.quorum for course in drawn]),
        participation=_spread([quiet.participation * course.contributing for course in drawn]),
        committed=_spread([quiet.committed * course.tokens for course in drawn]),
    )


def _sample(recipe: Recipe) -> Recipe:
    """The same with fewer learners, where there are too many to drive each of them; their links are narrower then."""
    count = len(recipe.learners)
    share = min(1.0, LEARNERS_MAX / count, ROUND_STEPS_MAX / (count * recipe.sync.round_steps))
    if share == 1.0:
        return recipe
    pools = tuple(
        pool.model_copy(update={"learners": max(1, round(share * pool.learners)), "min": 0}) for pool in recipe.pools
    )
    share = sum(pool.learners for pool in pools) / count
    quorum = recipe.sync.quorum if recipe.sync.quorum == "all" else max(1, round(share * recipe.sync.quorum))
    links = tuple(link.model_copy(update={"gbit_s": share * link.gbit_s}) for link in recipe.fleet.links)
    changed = {
        "pools": pools,
        "sync": recipe.sync.model_copy(update={"quorum": quorum}),
        "fleet": recipe.fleet.model_copy(update={"links": links}),
    }
    return recipe.model_copy(update=changed)


# ------------------------------------------------------------------ what the machines say


@dataclass(frozen=True)
class _Quiet:
    """Without failures; shares."""

    goodput: float
    uptime: float
    participation: float
    committed: float


class _Machines:
    """A few rounds of the recipe's fleet, undisturbed, or with one death."""

    def __init__(self, recipe: Recipe, shapes: Shapes, step_s: float, syncer_region: str | None) -> None:
        self._step_s, self._region = step_s, syncer_region
        slowest = step_s * max(pool.slowdown for pool in recipe.pools)
        told, most_s = recipe.fleet, GONE_STEPS_MAX * slowest
        # What takes many steps is not driven, but added in the end: nothing changes meanwhile.
        detect_s, state_s = min(told.detect_s, most_s), _state_s(recipe, shapes)
        self._beside_s = told.start_s + told.detect_s - detect_s
        if state_s > most_s:
            self._beside_s += state_s
            state_s, shapes = 0.0, replace(shapes, parameter_bytes=0, inner_state_bytes=0)
        started = told.model_copy(update={"start_s": 0.0, "detect_s": detect_s})
        self._recipe, self._shapes = recipe.model_copy(update={"fleet": started}), shapes
        round_s = recipe.sync.round_steps * slowest
        self._warm_up_s = 2.0 * round_s
        self._until_s = self._warm_up_s + detect_s + state_s + ROUNDS * round_s
        self._rate = sum(
            shapes.step_tokens[pool.name] / (step_s * pool.slowdown) for pool in recipe.learners.values()
        )  # tokens a second, of all
        self._undisturbed = self._run(())

    def _run(self, faults: tuple[Fault, ...]) -> Outcome:
        made = fleet(
            self._recipe,
            self._shapes,
            self._step_s,
            0,
            budget=Budget(None, 10**9),
            faults=faults,
            replace_s=0.0,
            syncer_region=self._region,
        )
        return simulate(made, self._until_s, self._warm_up_s)[0]

    def quiet(self) -> _Quiet:
        found = self._undisturbed
        share = 0.0 if not found.commits else found.participation
        rate = found.tokens_committed / found.seconds
        return _Quiet(found.goodput, found.uptime, share, min(1.0, rate / self._rate))

    def toll(self, learner: str) -> Toll:
        """Of this unit's death, just after the warm-up."""
        before, after = self._undisturbed, self._run((Fault("kill", learner, self._warm_up_s),))
        own = self._shapes.step_tokens[self._recipe.pool_of(learner).name] / (
            self._step_s * self._recipe.pool_of(learner).slowdown
        )
        given = [found.contributions.get(learner, 0) / max(1, found.commits) for found in (before, after)]
        missing = (given[0] - given[1]) / given[0] if given[0] else 0.0
        return Toll(
            stepping_s=self._beside_s + max(0.0, before.useful_s[learner] - after.useful_s[learner]),
            contributing_s=self._beside_s + max(0.0, missing * before.seconds),
            tokens_s=self._beside_s + max(0.0, (before.tokens_committed - after.tokens_committed) / own),
        )


def _state_s(recipe: Recipe, shapes: Shapes) -> float:
    """Until a joiner on the slowest link has what it starts from: a peer's state, or after two donors the versions."""
    bits = min((1e9 * link.gbit_s for link in recipe.fleet.links), default=math.inf)
    given_s = 8.0 * (shapes.parameter_bytes + shapes.inner_state_bytes) / bits
    each_s = min(recipe.sync.transfer_s, recipe.sync.join_s / 3.0)
    return given_s if given_s <= each_s else 2.0 * each_s + 8.0 * DOWN_BYTES * shapes.elements / bits


# ------------------------------------------------------------------ drawing a run


@dataclass(frozen=True)
class _Drawn:
    """One course; shares."""

    deaths: int
    stepping: float
    contributing: float
    tokens: float
    uptime: float
    quorum: float


def _course(recipe: Recipe, mtbf_s: dict[str, float], tolls: dict[str, Toll], horizon_s: float, seed: int) -> _Drawn:
    """Each learner dies by itself; a spot pool's units come and go together, at hours that the seed draws."""
    away: list[list[Interval]] = []
    lost = np.zeros(3)  # seconds: stepping, contributing, tokens
    deaths, wanted_s = 0, 0.0
    spots = {pool.name: pool.spot for pool in recipe.fleet.pools}
    hours = Random(f"{seed} hours")
    night = {pool.name: hours.random() * DAY_S for pool in recipe.pools}
    for name, pool in recipe.learners.items():
        toll, chance = tolls[pool.name], Random(f"{seed} {name}")
        absent = absences(spots.get(pool.name, 1.0), night[pool.name], horizon_s)
        wanted_s += horizon_s
        for begin, end in absent:
            lost += end - begin
            if end < horizon_s:  # it comes back, as after a death, with its hardware there
                lost += (toll.stepping_s, toll.contributing_s, toll.tokens_s)
        gaps = [(begin, end + toll.stepping_s) for begin, end in absent]
        at = chance.expovariate(1.0 / mtbf_s[pool.name])
        while at < horizon_s:
            replace_s = chance.expovariate(1.0 / recipe.fleet.replace_s) if recipe.fleet.replace_s else 0.0
            if not any(begin <= at < end for begin, end in absent):
                deaths += 1
                paid = np.array((toll.stepping_s, toll.contributing_s, toll.tokens_s)) + replace_s
                lost += np.minimum(paid, horizon_s - at)
                gaps.append((at, at + replace_s + toll.stepping_s))
            at += replace_s + toll.stepping_s + chance.expovariate(1.0 / mtbf_s[pool.name])
        away.append(gaps)
    stepping, contributing, tokens = np.maximum(0.0, 1.0 - lost / wanted_s)
    there = _there(away, horizon_s, (1, recipe.quorum))
    return _Drawn(deaths, float(stepping), float(contributing), float(tokens), *there)


def _there(away: Sequence[Sequence[Interval]], horizon_s: float, least: Sequence[int]) -> tuple[float, ...]:
    """Shares of the time in which at least so many learners are there."""
    gone = [_union(gaps) for gaps in away]
    starts = np.array([begin for gaps in gone for begin, _ in gaps])
    stops = np.array([end for gaps in gone for _, end in gaps])
    times = np.minimum(np.concatenate([[0.0], starts, stops]), horizon_s)
    changes = np.concatenate([[len(away)], -np.ones(len(starts)), np.ones(len(stops))])
    order = np.argsort(times, kind="stable")
    count, spans = np.cumsum(changes[order]), np.diff(times[order], append=horizon_s)
    return tuple(float(spans[count >= number].sum()) / horizon_s for number in least)


def _union(gaps: Sequence[Interval]) -> list[Interval]:
    """Without overlaps, for one learner is absent once."""
    joined: list[Interval] = []
    for begin, end in sorted(gaps):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _spread(values: Sequence[float]) -> Spread:
    low, high = np.quantile(values, (0.025, 0.975))
    return Spread(fmean(values), float(low), float(high))
