"""The state diagrams of docs/protocol.md, drawn from the machines' own transition tables.

Knows the tables and mermaid's way of writing them; not where in the page they stand (docs/renew.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from learners.protocol import learner
from orchestrator.lifecycle import controller
from outer.protocol import open_step

Table = Mapping[Enum, Mapping[Enum, str]] | Mapping[str, Mapping[str, str]]


def diagram(table: Table) -> str:
    """A machine begins in the table's first state, and ends in those that have no way out."""
    begin = next(iter(table))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_name(begin)}"]
    for state, ways in table.items():
        lines += [f"    {_name(state)} --> {_name(other)} : {when}" for other, when in ways.items()]
        lines += [] if ways else [f"    {_name(state)} --> [*]"]
    return "\n".join([*lines, "```"])


def _name(state: Enum | str) -> str:
    """A stage or state by its name in the code, a phase as it stands in the log."""
    return state.name if isinstance(state, Enum) else state


def blocks() -> dict[str, str]:
    """Each diagram by the name of its place in the page."""
    return {
        "open step": diagram(open_step.TRANSITIONS),
        "learner": diagram(learner.TRANSITIONS),
        "learner's record": diagram(controller.TRANSITIONS),
    }
