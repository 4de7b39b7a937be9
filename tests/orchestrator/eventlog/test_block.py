"""Blocks: columns for the frequent facts, and back to the same events."""

import numpy as np

from learners.protocol.facts import Adopted, PhaseEntered, StepFinished
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event
from outer.protocol.facts import Committed, Participant, StepOpened

STEP = StepFinished(3, 64, 0, 128, 2.5, 0.1, 0.0, "", 0.25, {"a": 1.0})
COMMIT = Committed(
    2,
    0,
    1,
    0,
    (Participant("a", 1, 3, 0, 3, 192, 0.5, "x", 192), Participant("b", 2, 4, 1, 3, 192, 0.5, "y")),
    2,
    "z",
    1.5,
    384,
    0.1,
    0.2,
    0.3,
    "all",
)
EVENTS = [
    Event("a", 1, 0, 10.0, PhaseEntered("stepping")),
    Event("a", 1, 1, 11.0, STEP),
    Event("a", 1, 2, 11.5, Adopted(0, 1, 3, "rebase", 2)),
    Event("a", 1, 3, 11.5, Adopted(1, 1, 3, "overwrite")),
    Event("syncer", 1, 0, 12.0, StepOpened(2, 0)),
    Event("syncer", 1, 1, 12.5, COMMIT),
    Event("a", 1, 4, 13.0, StepFinished(4, 64, 0, 192, float("inf"), 0.1, 0.5, "span")),
]


def test_a_block_gives_back_its_events_in_order() -> None:
    assert list(block_of(EVENTS, start=7).events()) == EVENTS


def test_columns_hold_the_fields_and_positions() -> None:
    block = block_of(EVENTS, start=7)
    assert (block.start, block.stop, block.rows) == (7, 14, 7)
    assert block.steps.position.tolist() == [8, 13]
    assert block.steps.sample.tolist() == [128, 192]
    assert [block.names[code] for code in block.steps.waited_for.tolist()] == ["", "span"]
    assert block.code("rebase") == block.adoptions.mode[0] and block.code("nothing") == -1
    assert [block.sources[n] for n in block.contributions.learner.tolist()] == [("a", 1), ("b", 2)]
    assert block.commits.first.tolist() == [0, 2]
    assert block.contributions.weight.dtype == np.float64


def test_a_block_of_nothing_is_empty() -> None:
    block = block_of([], start=3)
    assert (block.rows, list(block.events())) == (0, [])
    assert block.commits.first.tolist() == [0]
