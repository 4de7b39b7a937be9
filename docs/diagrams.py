"""The state diagrams of docs/protocol.md, in mermaid, from the machines' own transition tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from learners.protocol import learner
from outer.protocol import open_step

Table = Mapping[Enum, Mapping[Enum, str]] | Mapping[str, Mapping[str, str]]


def diagram(table: Table) -> str:
    """A state diagram. The machine starts in the table's first state and ends in the states without a move."""
    begin = next(iter(table))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_name(begin)}"]
    for state, moves in table.items():
        lines += [f"    {_name(state)} --> {_name(other)} : {when}" for other, when in moves.items()]
        lines += [] if moves else [f"    {_name(state)} --> [*]"]
    return "\n".join([*lines, "```"])


def _name(state: Enum | str) -> str:
    """An enum's member by its name; a phase as the log has it."""
    return state.name if isinstance(state, Enum) else state


def blocks() -> dict[str, str]:
    """The diagrams, by the name of their place in the page."""
    return {
        "open step": diagram(open_step.TRANSITIONS),
        "learner": diagram(learner.TRANSITIONS),
    }
