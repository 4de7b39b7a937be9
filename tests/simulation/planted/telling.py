"""Bugs in what the syncer says, and when: durable first, then the log, then the learners, and again what was lost."""

from __future__ import annotations

from typing import Any

from outer.protocol import sessions as steward
from outer.protocol.events_effects import Durable
from outer.protocol.facts import Committed
from outer.protocol.members import Members
from outer.protocol.messages import DRAINING
from outer.protocol.sessions import Sessions
from outer.protocol.syncer import Syncer
from tests.simulation.planting import Plant, mutant


@mutant
def announced_before_durable(plant: Plant) -> None:
    """A version is announced only once it is durable."""

    def wrapper(method: Any) -> Any:
        def commit_next(self: Syncer, now: float) -> bool:
            moved = method(self, now)
            if moved:
                self._on_durable(now, Durable(self._out._sequence - 1))
            return moved

        return commit_next

    plant.around(Syncer, "_commit_next", wrapper)


@mutant
def span_lent_before_durable(plant: Plant) -> None:
    """A learner is told of a span once its grant is durable."""

    def wrapper(method: Any) -> Any:
        def lend(self: Sessions, now: float, member: Any) -> None:
            self._members.lend(member)
            member.durable_span = max(member.durable_span, self._members.lend(member).identifier)
            method(self, now, member)

        return lend

    plant.around(Sessions, "_lend", wrapper)


@mutant
def notice_not_sent_again(plant: Plant) -> None:
    """A learner that does not show a version is told of it again."""
    plant.put(Sessions, "_overdue_at", lambda self, member, fragment, step_s: float("inf"))


@mutant
def grant_not_sent_again(plant: Plant) -> None:
    """A learner that does not show its newest span is told of it again."""

    def wrapper(method: Any) -> Any:
        def lend(self: Sessions, now: float, member: Any) -> None:
            self._members.lend(member)
            granted_at, member.granted_at = member.granted_at, float("inf")
            method(self, now, member)
            member.granted_at = granted_at

        return lend

    plant.around(Sessions, "_lend", wrapper)


@mutant
def stop_not_sent_again(plant: Plant) -> None:
    """Who still reports after the end is told again to stop."""

    def wrapper(method: Any) -> Any:
        def stop(self: Sessions, now: float, member: Any, reason: str) -> None:
            method(self, now, member, reason)
            member.stopped_at = float("inf")

        return stop

    plant.around(Sessions, "stop", wrapper)


@mutant
def drain_not_sent_again(plant: Plant) -> None:
    """Who is to leave and goes on stepping is told again."""

    def wrapper(method: Any) -> Any:
        def send_drain(self: Sessions, now: float, member: Any) -> None:
            method(self, now, member)
            member.drain_sent_at = float("inf")

        return send_drain

    plant.around(Sessions, "_send_drain", wrapper)


@mutant
def merged_step_only_when_it_took_part(plant: Plant) -> None:
    """Every notice says up to which step the receiver's own steps are in the fragment, though it missed the commit."""

    def wrapper(method: Any) -> Any:
        def note_merged(self: Members, commit: Committed) -> None:
            for member in self._members.values():
                member.merged_step.pop(commit.fragment, None)
            method(self, commit)

        return note_merged

    plant.around(Members, "note_merged", wrapper)


@mutant
def drained_with_steps_left(plant: Plant) -> None:
    """Who leaves is let go once no fragment of it holds progress that a commit could take."""
    plant.put(steward, "is_drained", lambda member: member.report is not None and member.report.phase == DRAINING)
