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
from tests.simulation.planting import Plant, around, mutant


@around(Syncer, "_commit_next")
def announced_before_durable(method: Any, self: Syncer, now: float) -> bool:
    """A version is announced only once it is durable."""
    moved = method(self, now)
    if moved:
        self._on_durable(now, Durable(self._out._sequence - 1))
    return moved


@around(Sessions, "_lend")
def span_lent_before_durable(method: Any, self: Sessions, now: float, member: Any) -> None:
    """A learner is told of a span once its grant is durable."""
    self._members.lend(member)
    member.durable_span = max(member.durable_span, self._members.lend(member).identifier)
    method(self, now, member)


@mutant
def notice_not_sent_again(plant: Plant) -> None:
    """A learner that does not show a version is told of it again."""
    plant.put(Sessions, "_overdue_at", lambda self, member, fragment, step_s: float("inf"))


@around(Sessions, "_lend")
def grant_not_sent_again(method: Any, self: Sessions, now: float, member: Any) -> None:
    """A learner that does not show its newest span is told of it again."""
    self._members.lend(member)
    granted_at, member.granted_at = member.granted_at, float("inf")
    method(self, now, member)
    member.granted_at = granted_at


@around(Sessions, "stop")
def stop_not_sent_again(method: Any, self: Sessions, now: float, member: Any, *args: Any, **more: Any) -> None:
    """Who still reports after the end is told again to stop."""
    method(self, now, member, *args, **more)
    member.stopped_at = float("inf")


@around(Members, "note_merged")
def merged_step_only_when_it_took_part(method: Any, self: Members, commit: Committed, paced: bool) -> None:
    """Every notice says up to which step the receiver's own steps are in the fragment, though it missed the commit."""
    for member in self._members.values():
        member.merged_step.pop(commit.fragment, None)
    method(self, commit, paced)


@mutant
def drained_with_steps_left(plant: Plant) -> None:
    """Who leaves is let go once no fragment of it holds progress that a commit could take."""
    plant.put(steward, "is_drained", lambda member: member.report is not None and member.report.phase == DRAINING)
