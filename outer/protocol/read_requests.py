"""Asks learners for a syncer step's fragment, gives up on late ones, and reopens the step when too few answer.

The syncer decides when to read. OpenStep accepts or refuses each contribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outer.protocol.effect_buffer import EffectBuffer
from outer.protocol.events_effects import ReadMissed
from outer.protocol.messages import Contribution
from outer.protocol.open_step import OpenStep, has_progress

if TYPE_CHECKING:
    from outer.config import SyncConfig
    from outer.protocol.members import Members

REOPEN_S = 0.1  # a reopened syncer step waits this long before it is judged again


class ReadRequests:
    """The reads of all syncer steps of one epoch. Times are seconds of the shell's monotonic clock."""

    def __init__(self, epoch: int, config: SyncConfig, quorum: int, members: Members, out: EffectBuffer) -> None:
        self._epoch = epoch
        self._config = config
        self._quorum = quorum
        self._members = members
        self._out = out

    def ask(self, now: float, step: OpenStep, version: int, progress: float) -> None:
        """A quorum has reported: request the fragment from every learner that can contribute to this version."""
        assert step.fragment is not None
        live, timeout_s = self._members.live, self._config.read_timeout_s
        able = live if self._config.participants == "eligible" else step.counted(live, self._config.overlap)
        asked = [member for member in able if has_progress(member, step.fragment, version) and not member.unheard]
        step.ask(now, len(live), {member.name: member.incarnation for member in asked}, timeout_s)
        if len(asked) < self._quorum:
            self.reopen(now, step, f"{len(asked)} learners have a current base, the quorum is {self._quorum}")
            return
        for member in asked:
            self._out.send(member, step.request(self._epoch, member.incarnation, progress, timeout_s))

    def miss(self, step: OpenStep | None, event: Contribution | ReadMissed, reason: str) -> None:
        """Stop waiting for this incarnation's contribution, and record why."""
        if step is not None and step.awaited.get(event.learner) == event.incarnation:
            if reason == "timeout":
                self._members.note_missed(event.learner)
            self._out.emit(step.miss(event.learner, reason))

    def close(self, now: float, step: OpenStep) -> None:
        """All answers are in, or the deadline has passed: merge if at least K contributions are valid, else reopen."""
        for learner in list(step.awaited):
            self._members.note_missed(learner)
            self._out.emit(step.miss(learner, "timeout"))
        if len(step.contributions) < self._quorum:
            self.reopen(now, step, f"{len(step.contributions)} valid contributions, the quorum is {self._quorum}")
            return
        self._out.add(step.merge())

    def reopen(self, now: float, step: OpenStep, reason: str) -> None:
        """Send the step back to collecting; a new quorum is counted after REOPEN_S."""
        self._out.emit(step.reopen(now, now + REOPEN_S, reason))
