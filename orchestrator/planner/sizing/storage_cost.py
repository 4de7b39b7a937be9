"""What keeping a run costs: bytes of each commit in the journal, of a checkpoint, and what lies there; by mode.

Values only: records and headers, a few hundred bytes a commit, are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.traffic import FragmentRow
from orchestrator.recipe.config import DurabilityConfig
from outer.journal.journal import SNAPSHOT_GROUPS

ELEMENT_BYTES = 4  # parameters are kept in float32


@dataclass(frozen=True)
class Mode:
    """What one `durability.mode` would cost this run; bytes a second are None while a step's length is not given."""

    mode: str
    commit_bytes: float  # of a commit on average, before it is announced
    per_second_bytes: float | None
    held_bytes: int  # at most, in the store


@dataclass(frozen=True)
class StorageCost:
    mode: str  # the recipe's
    modes: tuple[Mode, ...]
    fragment_bytes_max: int  # of the largest commit
    checkpoint_bytes: int  # all parts
    checkpoint_per_second_bytes: float  # while `every_s` is set
    checkpoints_bytes: int  # as many as are kept, and one being written


def storage_cost(
    rows: Sequence[FragmentRow],
    shapes: Shapes,
    learners: int,
    round_steps: int,
    step_s: float | None,
    config: DurabilityConfig,
) -> StorageCost:
    """`step_s`: seconds of a syncer step, if known."""
    sizes = [ELEMENT_BYTES * row.elements + state for row, state in zip(rows, shapes.outer_state_bytes, strict=True)]
    everything = sum(sizes)
    mean, second = everything / len(sizes), None if step_s is None else everything / (round_steps * step_s)
    # Between two snapshots nothing is removed, and each fragment's newest value stays.
    held = int(everything + max(SNAPSHOT_GROUPS, len(sizes)) * mean)
    bases = ELEMENT_BYTES * shapes.elements  # what each learner was sent last
    part = shapes.parameter_bytes + shapes.inner_state_bytes + bases
    checkpoint = everything + learners * part
    return StorageCost(
        mode=config.mode,
        modes=(
            Mode("journal", mean, second, held),
            Mode("checkpoint", 0.0, None if step_s is None else 0.0, 0),
        ),
        fragment_bytes_max=max(sizes),
        checkpoint_bytes=checkpoint,
        checkpoint_per_second_bytes=checkpoint / config.every_s if config.every_s else 0.0,
        checkpoints_bytes=(config.keep + 1) * checkpoint,
    )
