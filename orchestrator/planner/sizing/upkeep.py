"""What a long run costs besides training: bytes of its log, the time of a failover, and the time of its end.

From the few constants below. None of the times depends on how old the run is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.fault_tolerance import DAY_S
from orchestrator.planner.sizing.rates import STORE, Constant
from orchestrator.planner.sizing.step_times import unit_step_s
from orchestrator.recipe.config import Recipe
from outer.journal.segmenter import SEGMENT_ROWS

CONSTANTS = {
    "step_bytes": Constant(15.0, "bytes of log for a learner's step and its adoption", "benchmarks/log_size.py"),
    "commit_bytes": Constant(74.0, "bytes of log for a commit", "benchmarks/log_size.py"),
    "contribution_bytes": Constant(39.0, "bytes of log for a contribution", "benchmarks/log_size.py"),
    "failover_s": Constant(2.8, "seconds from a syncer's death to the next commit", "benchmarks/failover.py"),
    "read_rows_s": Constant(
        150_000.0, "facts that are read from segments, a second and core", "benchmarks/log_size.py"
    ),
    "fold_rows_s": Constant(680_000.0, "facts that checks and accounts take, the same", "benchmarks/check_speed.py"),
    "report_s": Constant(10.0, "seconds to write summary and report", "assumed"),
    "store_bytes_s": STORE,
}


@dataclass(frozen=True)
class Upkeep:
    """None: not known without the length of a step."""

    log_day_bytes: float | None
    log_run_bytes: float
    failover_s: float  # from the syncer's death to the next commit
    failover_silent_s: float  # of one that is frozen or cut off
    end_s: float  # from the last commit to summary and report
    check_core_s: float  # of `diloco check` afterwards, on one core
    syncer_bytes: int  # memory of its own; does not grow
    orchestrator_bytes: int


def upkeep(
    recipe: Recipe,
    value_bytes: Sequence[int],
    syncer_steps: int,
    syncer_step_s: float | None,
    step_s: float | None,
    memory: Sequence[int],
) -> Upkeep:
    """`value_bytes`: of each fragment with its outer state. `syncer_step_s`: of the syncer's clock. `step_s`: of a
    learner without slowdown. `memory`: of syncer and orchestrator.
    """
    sizes = {name: constant.value for name, constant in CONSTANTS.items()}
    learners, sync = len(recipe.learners), recipe.sync
    share = len(value_bytes) / sync.round_steps  # of the syncer steps that commit
    commit = sizes["commit_bytes"] + learners * sizes["contribution_bytes"]
    steps = sum(_steps(recipe, syncer_step_s, step_s))  # of learners in a syncer step
    each = steps * sizes["step_bytes"] + share * commit
    rows = syncer_steps * (steps * (1.0 + share) + share * (1.0 + learners))  # a step, its adoptions; commits
    row_s = 1.0 / sizes["read_rows_s"] + 1.0 / sizes["fold_rows_s"]
    read_s = sum(value_bytes) / sizes["store_bytes_s"]
    failover_s = sizes["failover_s"] + read_s
    syncer, orchestrator = memory
    return Upkeep(
        log_day_bytes=None if syncer_step_s is None else each * DAY_S / syncer_step_s,
        log_run_bytes=each * syncer_steps,
        failover_s=failover_s,
        failover_silent_s=recipe.run.syncer_lease_s + failover_s,
        end_s=sizes["report_s"] + min(rows, SEGMENT_ROWS) * row_s + read_s,
        check_core_s=rows * row_s,
        syncer_bytes=syncer,
        orchestrator_bytes=orchestrator,
    )


def _steps(recipe: Recipe, syncer_step_s: float | None, step_s: float | None) -> list[float]:
    """Steps of each learner in one syncer step; one where their lengths are not known."""
    taken = [unit_step_s(recipe, pool, step_s) for pool in recipe.learners.values()]
    return [1.0 if syncer_step_s is None or not seconds else syncer_step_s / seconds for seconds in taken]
