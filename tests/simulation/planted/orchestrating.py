"""Bugs of the orchestrator: what its successor does not find, what it starts too late, and whom it leaves behind."""

from __future__ import annotations

from typing import Any

from orchestrator.lifecycle.learner_manager import LearnerManager
from orchestrator.lifecycle.orchestrator import OrchestratorShell
from orchestrator.lifecycle.ports import Ports
from tests.simulation.planting import around, instead


@around(LearnerManager, "find")
async def living_learners_not_taken_over(method: Any, self: LearnerManager, statuses: Any) -> list[str]:
    """Another orchestrator takes over the learners that live."""
    return []


@instead(Ports, "require")
def succeeded_starts_processes(self: Ports, number: int) -> None:
    """An orchestrator that was succeeded starts no process."""


@instead(OrchestratorShell, "_dismiss")
def processes_left_behind(self: OrchestratorShell) -> None:
    """The end of a run leaves no process."""
