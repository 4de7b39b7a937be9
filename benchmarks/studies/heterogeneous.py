"""What a quorum of all, of one, and of one with a grace window make of learners of two speeds (paper section 8).

    python benchmarks/studies/heterogeneous.py [--json] [--gap SHARE] ...

The production machines, nothing in closed form. Half of the learners are faster than the other half by a constant gap.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.studies.islands import half_width
from benchmarks.studies.models import even
from benchmarks.studies.script import options, show
from orchestrator.planner.fleet.description import Fleet, FleetLink, FleetMember, StepSample, Timing
from orchestrator.planner.fleet.world import simulate
from outer.config import SyncConfig
from outer.protocol.schedule import Budget

REGION = "region"
BATCH, TOKENS = 8, 8192  # of a step; no figure depends on them
# The paper's three: all wait for all; its literal loop; one merge for each step, with a grace window.
RULES: dict[str, dict[str, object]] = {
    "K=M": {"overlap": "strict", "quorum": "all", "grace": "infinite"},
    "K=1": {"quorum": 1, "grace": 0.0, "pacing": "quorum", "participants": "reported"},
    "K=1 with grace": {"quorum": 1},
}


@dataclass(frozen=True)
class SlowPeriods:
    """Transient slowdowns. Gaps and lengths are exponential."""

    gap_s: float = math.inf  # mean, from the end of one to the next
    length_s: float = 0.0  # mean
    slowdown: float = 1.0  # of every step in one


class Varying:
    """The step times of a learner. `noise`: standard deviation of each step's time, as a share of it."""

    def __init__(self, seconds: float, rng: Random, slowdown: float, noise: float, slow_periods: SlowPeriods) -> None:
        self._seconds, self._rng = seconds, rng
        self._slowdown, self._noise, self._slow_periods = slowdown, noise, slow_periods
        self._from, self._until = self._next(0.0)

    def sample(self, now: float) -> StepSample:
        while now >= self._until:
            self._from, self._until = self._next(self._until)
        factor = self._slowdown * (self._slow_periods.slowdown if now >= self._from else 1.0)
        if self._noise:
            factor *= max(0.1, self._rng.gauss(1.0, self._noise))
        return StepSample(self._seconds * factor)

    def _next(self, now: float) -> tuple[float, float]:
        if math.isinf(self._slow_periods.gap_s):
            return math.inf, math.inf
        begins = now + self._rng.expovariate(1.0 / self._slow_periods.gap_s)
        return begins, begins + self._rng.expovariate(1.0 / self._slow_periods.length_s)


@dataclass(frozen=True)
class Speeds:
    """Half of the learners step in `step_s`; the others are `gap` slower: at 1 - gap of that speed."""

    learners: int = 8
    step_s: float = 1.0
    gap: float = 0.28  # the paper's 18 % between two generations, and 10 % injected
    noise: float = 0.02  # standard deviation of a step's time, as a share of it
    spells: SlowPeriods = SlowPeriods()  # transient slowdowns of each learner, by itself
    latency: float = 0.02  # of a message, as a share of step_s; likewise
    merge: float = 0.02
    journal: float = 0.02


class Course(NamedTuple):
    """Of one rule and seed. Shares of 1."""

    goodput: float  # of what all could have stepped: a fast learner's second counts for more
    stepping: float  # of the learners' time
    participation: float
    merges_per_step: float  # commits for each step of a learner, on average


@dataclass(frozen=True)
class Row:
    """Of one rule, over seeds: means, and half of their 95 % intervals."""

    rule: str
    goodput: float
    goodput_half: float
    stepping: float
    stepping_half: float
    participation: float
    participation_half: float
    merges_per_step: float

    @property
    def shares(self) -> tuple[tuple[float, float], ...]:
        """Each with its half-width."""
        return (
            (self.goodput, self.goodput_half),
            (self.stepping, self.stepping_half),
            (self.participation, self.participation_half),
        )


def study(speeds: Speeds, steps: int, seed: int) -> dict[str, Course]:
    """Each rule for so many steps of a slow learner, after two rounds of warming up."""
    return {rule: _course(rule, speeds, steps, seed) for rule in RULES}


def over_seeds(courses: Sequence[Mapping[str, Course]]) -> list[Row]:
    """A row for each rule, of two courses or more."""
    rows = []
    for rule in RULES:
        goodput, stepping, participation, merges = zip(*(course[rule] for course in courses), strict=True)
        rows.append(
            Row(
                rule=rule,
                goodput=fmean(goodput),
                goodput_half=half_width(goodput),
                stepping=fmean(stepping),
                stepping_half=half_width(stepping),
                participation=fmean(participation),
                participation_half=half_width(participation),
                merges_per_step=fmean(merges),
            )
        )
    return rows


def _course(rule: str, speeds: Speeds, steps: int, seed: int) -> Course:
    step_s = speeds.step_s
    sync = SyncConfig.model_validate(RULES[rule] | {"read_timeout_s": max(2.0, 2.0 * step_s)})
    slowdown = {
        f"learner-{i}": 1.0 if 2 * i < speeds.learners else 1.0 / (1.0 - speeds.gap) for i in range(speeds.learners)
    }
    chance = Random(f"{seed} {rule}")
    members = tuple(
        FleetMember(
            name,
            BATCH,
            TOKENS,
            Varying(speeds.step_s, chance, factor, speeds.noise, speeds.spells),
            region=REGION,
        )
        for name, factor in slowdown.items()
    )
    fleet = Fleet(
        sync=sync,
        quorum=speeds.learners if sync.quorum == "all" else int(sync.quorum),
        fragments=even(sync.round_steps, sync.round_steps),
        members=members,
        budget=Budget(None, 10 * speeds.learners * steps),
        timing=Timing(
            start_s=max(120.0, 10.0 * step_s),
            merge_s=lambda elements, learners: step_s * speeds.merge,
            append_s=lambda elements: step_s * speeds.journal,
        ),
        links={pair: FleetLink(latency_s=step_s * speeds.latency) for pair in ((REGION, ""), ("", REGION))},
        look_s=max(1.0, step_s),
    )
    slowest = speeds.step_s * max(slowdown.values())
    warm_up_s = 2.0 * sync.round_steps * slowest
    outcome, _ = simulate(fleet, warm_up_s + steps * slowest, warm_up_s)
    able = sum(outcome.seconds / factor for factor in slowdown.values())
    return Course(
        goodput=sum(outcome.useful_s[name] / factor for name, factor in slowdown.items()) / able,
        stepping=outcome.goodput,
        participation=outcome.participation,
        merges_per_step=outcome.merges_per_step,
    )


def main() -> None:
    parser = options(__doc__, plot=False)
    parser.add_argument("--learners", type=int, default=8, help="of the run")
    parser.add_argument(
        "--gap", type=float, default=0.28, help="half of the learners are slower by this share of speed"
    )
    parser.add_argument("--noise", type=float, default=0.02, help="standard deviation of a step, as a share of it")
    parser.add_argument("--spell-gap", type=float, default=math.inf, help="mean seconds between two slow periods")
    parser.add_argument("--spell-seconds", type=float, default=30.0, help="mean length of a slow period")
    parser.add_argument("--spell-slowdown", type=float, default=1.5, help="of every step in a slow period")
    parser.add_argument("--step-seconds", type=float, default=1.0, help="of the faster half")
    parser.add_argument("--steps", type=int, default=200, help="of a slow learner, for each seed and rule")
    parser.add_argument("--seeds", type=int, default=5, help="two or more")
    given = parser.parse_args()
    spells = SlowPeriods(given.spell_gap, given.spell_seconds, given.spell_slowdown)
    speeds = Speeds(given.learners, given.step_seconds, given.gap, given.noise, spells)
    show(over_seeds([study(speeds, given.steps, seed) for seed in range(given.seeds)]), given.json)


if __name__ == "__main__":
    main()
