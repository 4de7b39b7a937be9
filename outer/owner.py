"""Whose calls an actor carries out: those of the newest orchestrator. One that was frozen and replaced is refused."""

from __future__ import annotations


class Superseded(Exception):
    """A later orchestrator has taken the run over; this one is to end."""


class Owner:
    """Held by an actor. `number`: the orchestrator's, granted once and rising."""

    def __init__(self) -> None:
        self._number = 0

    def require(self, number: int) -> None:
        """Raises Superseded for a call of an orchestrator that is older than one that has called."""
        if number < self._number:
            raise Superseded(f"orchestrator {number} was followed by orchestrator {self._number}")
        self._number = number
