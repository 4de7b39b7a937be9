"""A recipe as the simulator's options: its learners, their speeds and batches, its rules, its budget.

Durations that the recipe gives in seconds stay as they are; others, such as that of a message, are in steps. Fragments
and the tokens of a step are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from chaos.simulation.profile import Fault, Options, Place, plan
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem
from outer.protocol.fragments import Fragment

MESSAGE, MERGE, APPEND, NOTICE = 0.002, 0.01, 0.01, 0.5  # in steps
IMPORTING = 0.3  # share of a learner's start; the rest is compiling
NEWCOMERS_MAX = 2


def problems(recipe: Recipe) -> list[Problem]:
    """What cannot be simulated."""
    if recipe.sync.overlap == "free":
        return []
    fix = 'give --set sync.overlap="free"'
    return [
        Problem("sync.overlap", recipe.sync.overlap, "lock-step is not simulated: it has no timing of its own", fix)
    ]


def options(
    recipe: Recipe,
    dealt: tuple[Fragment, ...],
    tokens: Callable[[int], int],
    *,
    seed: int,
    profile: str,
    step_s: float,
    startup_s: float,
) -> Options:
    """The options of a resolved recipe.

    `tokens`: of so many samples; `step_s`: of a learner with slowdown 1; `startup_s`: until one that starts attaches.
    """
    first = recipe.pools[0]
    room = min(NEWCOMERS_MAX, max(0, first.most - first.learners))
    newcomers = tuple(first.names(first.learners + room)[first.learners :])
    learners = tuple(recipe.learners)
    pools = {name: recipe.pool_of(name) for name in (*learners, *newcomers)}
    made = Options(
        seed=seed,
        profile=profile,
        sync=recipe.sync,
        quorum=recipe.quorum,
        syncer_steps=recipe.target_syncer_steps,
        learners=learners,
        step_s={name: step_s * pool.slowdown for name, pool in pools.items()},
        batch={name: pool.batch_size for name, pool in pools.items()},
        tokens={name: tokens(pool.batch_size) for name, pool in pools.items()},
        span_steps=recipe.data.span_steps,
        latency_s=MESSAGE * step_s,
        jitter_s=MESSAGE * step_s,
        append_s=APPEND * step_s,
        merge_s=MERGE * step_s,
        import_s=IMPORTING * startup_s,
        compile_s=(1.0 - IMPORTING) * startup_s,
        start_s=recipe.run.start_s,
        notice_s=NOTICE * step_s,
        hang_s=recipe.run.hang_s,
        unreachable_s=recipe.run.unreachable_s,
        backoff_s=recipe.run.restart_backoff_s,
        storm_s=0.0,
        faults=(),
        newcomers=newcomers,
        ahead_s=recipe.data.ahead_s,
        budget_tokens=recipe.budget.tokens,
        dealt=dealt,
        places={name: Place(pool.name, pool.region) for name, pool in pools.items()},
    )
    storm_s = _expected_s(made)
    return replace(made, storm_s=storm_s, faults=_faults(made, storm_s / step_s, step_s))


def _expected_s(options: Options) -> float:
    """How long the run takes without faults."""
    if options.budget_tokens is None:
        return options.syncer_steps * median(options.step_s[name] for name in options.learners)
    return options.budget_tokens / sum(options.tokens[name] / options.step_s[name] for name in options.learners)


def _faults(options: Options, steps: float, step_s: float) -> tuple[Fault, ...]:
    """The profile's, all over the run: the same ones however long a step is."""
    planned = plan(options.seed, options.profile, steps, options.learners)
    return tuple(replace(fault, at=fault.at * step_s, duration_s=fault.duration_s * step_s) for fault in planned)
