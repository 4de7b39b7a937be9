"""Reading a syncer step's fragment: who is asked, who is waited for no longer, and when too few have answered.

When to read is the syncer's to decide, and what becomes of an answer the step's.
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

REOPEN_S = 0.1  # a syncer step that found too few contributions is not judged again before


class ReadRequests:
    """For all of an epoch's steps. Times are seconds of the shell's monotonic clock."""

    def __init__(self, epoch: int, config: SyncConfig, quorum: int, members: Members, out: EffectBuffer) -> None:
        self._epoch = epoch
        self._config = config
        self._quorum = quorum
        self._members = members
        self._out = out

    def ask(self, now: float, step: OpenStep, version: int, progress: float) -> None:
        """The quorum is there: read the fragment from everyone who can contribute to this version of it."""
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
        """What this incarnation was asked for does not come."""
        if step is not None and step.awaited.get(event.learner) == event.incarnation:
            if reason == "timeout":
                self._members.note_missed(event.learner)
            self._out.emit(step.miss(event.learner, reason))

    def close(self, now: float, step: OpenStep) -> None:
        """Nobody is awaited any more, or the deadline has passed: merge what has come, if it is enough."""
        for learner in list(step.awaited):
            self._members.note_missed(learner)
            self._out.emit(step.miss(learner, "timeout"))
        if len(step.contributions) < self._quorum:
            self.reopen(now, step, f"{len(step.contributions)} valid contributions, the quorum is {self._quorum}")
            return
        self._out.add(step.merge())

    def reopen(self, now: float, step: OpenStep, reason: str) -> None:
        """A new quorum is counted, after a while."""
        self._out.emit(step.reopen(now, now + REOPEN_S, reason))
