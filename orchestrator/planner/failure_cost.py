"""A recipe's fleet, simulated for a few rounds: its performance without failures, and the cost of one learner's death.

Of many learners, a sample is simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from orchestrator.planner.fleet.description import Fault
from orchestrator.planner.fleet.recipes import fleet
from orchestrator.planner.fleet.run import Outcome, simulate
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.step_times import unit_step_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES
from orchestrator.recipe.config import Recipe
from outer.protocol.leases import longest_s
from outer.protocol.schedule import Budget

ROUNDS = 3  # observed, without and with a death
LEARNERS_MAX = 32  # of more a sample, pool by pool
ROUND_STEPS_MAX = 2000  # of all of them in a round; else fewer learners, too
GONE_STEPS_MAX = 100  # until a death is noticed, and until a state is there


@dataclass(frozen=True)
class FailureCost:
    """What the death of one learner costs, without the wait for hardware. Seconds of that learner."""

    stepping_s: float  # in which it does not step
    contributing_s: float  # in which commits go without it
    tokens_s: float  # whose tokens are not committed


@dataclass(frozen=True)
class Baseline:
    """Performance without failures: shares, 0 to 1."""

    goodput: float
    uptime: float
    participation: float
    committed: float


def sample(recipe: Recipe) -> Recipe:
    """The recipe with fewer learners, and links narrower in proportion, where there are too many to simulate each."""
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


class Machines:
    """A few simulated rounds of the recipe's fleet, without failures or with one death."""

    def __init__(self, recipe: Recipe, shapes: Shapes, step_s: float, syncer_region: str | None) -> None:
        self._step_s, self._region = step_s, syncer_region
        takes_s = {pool.name: unit_step_s(recipe, pool, step_s) for pool in recipe.pools}
        slowest = max(takes_s.values())
        told, most_s = recipe.fleet, GONE_STEPS_MAX * slowest
        # Waits of many steps are not simulated, but added at the end: nothing changes meanwhile.
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
        self._own = {name: shapes.step_tokens[name] / seconds for name, seconds in takes_s.items()}  # tokens a second
        self._rate = sum(self._own[pool.name] for pool in recipe.learners.values())
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

    def baseline(self) -> Baseline:
        found = self._undisturbed
        share = 0.0 if not found.commits else found.participation
        rate = found.tokens_committed / found.seconds
        return Baseline(found.goodput, found.uptime, share, min(1.0, rate / self._rate))

    def failure_cost(self, learner: str) -> FailureCost:
        """The cost of this learner's death, just after the warm-up."""
        before, after = self._undisturbed, self._run((Fault("kill", learner, self._warm_up_s),))
        own = self._own[self._recipe.pool_of(learner).name]
        given, since = before.contributions.get(learner, 0), after.contributions.get(learner, 0)
        missing = max(0.0, 1.0 - since / given) if given else 0.0
        return FailureCost(
            stepping_s=self._beside_s + max(0.0, before.useful_s[learner] - after.useful_s[learner]),
            contributing_s=self._beside_s + missing * before.seconds,
            tokens_s=self._beside_s + max(0.0, (before.tokens_committed - after.tokens_committed) / own),
        )


def _state_s(recipe: Recipe, shapes: Shapes) -> float:
    """Seconds until a joiner on the slowest link has its state: a peer's or, after two donors, the syncer's."""
    bits = min((1e9 * link.gbit_s for link in recipe.fleet.links), default=math.inf)
    size = shapes.parameter_bytes + shapes.inner_state_bytes
    given_s = 8.0 * size / bits
    each_s = longest_s(min(recipe.sync.transfer_s, recipe.sync.join_s / 3.0), size)
    return given_s if given_s <= each_s else 2.0 * each_s + 8.0 * DOWN_BYTES * shapes.elements / bits
