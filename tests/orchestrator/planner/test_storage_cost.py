"""What keeping a run costs, by hand on paper."""

from __future__ import annotations

from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.storage_cost import storage_cost
from orchestrator.planner.sizing.traffic import FragmentRow
from orchestrator.recipe.config import DurabilityConfig
from outer.protocol.fragments import Fragment, Tensor


def test_a_commit_is_parameters_and_outer_state_and_a_round_writes_all_of_them_once() -> None:
    """Two fragments of 100 and 300 elements with momentum, H = 4, half a second a step, three learners."""
    fragments = tuple(Fragment(i, (Tensor(f"t{i}", (n,), "float32"),)) for i, n in enumerate((100, 300)))
    shapes = Shapes(fragments, 1600, 3200, (400, 1200), {"p": 8})
    rows = [FragmentRow(f.index, 1, f.size, 0.5, 4 * f.size, 4 * f.size, f.index) for f in fragments]
    cost = storage_cost(rows, shapes, 3, 4, 0.5, DurabilityConfig(every_s=100.0, keep=2))
    journal, checkpoint = cost.modes
    assert (journal.commit_bytes, journal.per_second_bytes) == (1600.0, 3200 / 2.0)
    assert journal.held_bytes == 3200 + 32 * 1600
    assert (checkpoint.commit_bytes, checkpoint.per_second_bytes) == (0.0, 0.0)
    assert cost.fragment_bytes_max == 2400
    assert cost.checkpoint_bytes == 3200 + 3 * (1600 + 3200 + 1600)
    assert cost.checkpoint_per_second_bytes == cost.checkpoint_bytes / 100.0
    assert cost.checkpoints_bytes == 3 * cost.checkpoint_bytes


def test_what_depends_on_a_steps_length_is_not_guessed() -> None:
    fragment = Fragment(0, (Tensor("t", (10,), "float32"),))
    shapes = Shapes((fragment,), 40, 80, (40,), {"p": 8})
    cost = storage_cost([FragmentRow(0, 1, 10, 1.0, 40, 40, 0)], shapes, 1, 4, None, DurabilityConfig(every_s=0.0))
    assert [mode.per_second_bytes for mode in cost.modes] == [None, None]
    assert cost.checkpoint_per_second_bytes == 0.0
