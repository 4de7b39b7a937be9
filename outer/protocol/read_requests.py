"""Which learners are asked for a fragment, when, in which format, and how long their answers are waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outer.protocol.effect_buffer import EffectBuffer
from outer.protocol.events_effects import ReadMissed
from outer.protocol.link_ladder import AFTER, Clock, Rung
from outer.protocol.links import EARLY, Links, UnderWay
from outer.protocol.members import Member, Members
from outer.protocol.messages import Contribution, ReadRequest
from outer.protocol.open_step import OpenStep, Stage, Wait, has_progress, unusable
from outer.protocol.schedule import Schedule
from outer.protocol.sessions import is_leaving

if TYPE_CHECKING:
    from outer.config import SyncConfig

REOPEN_S = 0.1  # a reopened syncer step waits this long before it is judged again
PATIENCE_MAX = 5  # doublings of the wait for an answer, after others that did not come
SLOW_LINK = "slow_link"  # why an answer is not waited for: it does not fit in tau steps


class ReadRequests:
    """The reads of all syncer steps of one epoch. Times are seconds of the shell's monotonic clock.

    The syncer decides when to read. OpenStep accepts or refuses each contribution.
    """

    def __init__(
        self,
        epoch: int,
        config: SyncConfig,
        quorum: int,
        members: Members,
        out: EffectBuffer,
        links: Links,
        sizes: Sequence[int],
    ) -> None:
        """`sizes`: bytes of each fragment in float32, for deadlines."""
        self._links = links
        self._sizes = sizes
        self._epoch = epoch
        self._config = config
        self._quorum = quorum
        self._members = members
        self._out = out

    def ask(
        self,
        now: float,
        step: OpenStep,
        version: int,
        progress: float,
        room_s: float,
        usual_s: float,
    ) -> None:
        """A quorum has reported: request the fragment from all that can contribute to this version.

        `room_s`: what is left of tau steps for the answers; `usual_s`: what usually is. Those that were asked ahead are
        not asked again.
        """
        assert step.fragment is not None
        live, fragment, least_s = self._members.live, step.fragment, self._config.read_timeout_s
        for member in live:
            if member.under_way is not None and not member.busy(now):
                member.under_way = None
                self._links.note(member, None)
        counted = (
            live if self._config.participants == "eligible" else [each for each in live if each.name in step.ready]
        )
        able = [member for member in counted if self._can_answer(now, member, fragment, version)]
        here = self._early(step, version)
        coming = [each for each in live if each.under_way and each.under_way[:2] == (step.syncer_step, fragment)]
        able = [member for member in able if member.name not in here]
        asked = [member for member in able if self._may_ask(member, step.syncer_step, fragment)]
        if len(asked) + len(coming) + len(here) < self._quorum:  # a quorum needs those, too, whose H is longer
            asked = able
        slow = [member for member in (*asked, *coming) if self._is_slow(member, fragment, room_s, usual_s)]
        patient = 2 * len(slow) > len(asked) + len(coming) or not self._may_hurry()
        waits = {
            member.name: self._wait(
                member, fragment, patient, room_s if member in slow else max(room_s, usual_s, least_s)
            )
            for member in (*asked, *coming)
        }
        awaited = {member.name: member.incarnation for member in (*asked, *coming)}
        step.ask(now, self._quorum, len(live), awaited, waits, early={member.name for member in coming})
        step.contributions |= here
        if len(awaited) + len(here) < self._quorum:
            count = len(awaited) + len(here)
            self.reopen(now, step, f"{count} learners have a usable base, the quorum is {self._quorum}")
            return
        for member in asked:
            deadline_s, codec = waits[member.name].deadline_s, self._links.rung(member).codec
            self._out.send(member, step.request(self._epoch, member.incarnation, progress, deadline_s, codec))

    def _early(self, step: OpenStep, version: int) -> dict[str, Contribution]:
        """The answers that came ahead of this step and can be merged, by learner."""
        assert step.fragment is not None
        found = {}
        for contribution in self._links.take(fragment=step.fragment):
            member = self._members.get(contribution.learner, contribution.incarnation)
            if member is None or not member.live:
                self._out.forget([contribution])
            elif reason := unusable(contribution, member, step.fragment, version, self._config):
                self._members.refuse(contribution, "contribution", reason)
                self._out.forget([contribution])
            else:
                found[contribution.learner] = contribution
        return found

    def keep(self, member: Member, event: Contribution, versions: Sequence[int]) -> str:
        """Keep an answer that came ahead of its step, or say why not."""
        version = versions[event.fragment]
        if reason := unusable(event, member, event.fragment, version, self._config):
            return reason
        self._links.keep(event)
        return ""

    def _can_answer(self, now: float, member: Member, fragment: int, version: int) -> bool:
        busy = member.busy(now) and not is_leaving(member)
        return not (member.unheard or busy) and has_progress(member, fragment, version, self._config)

    def _may_ask(self, member: Member, syncer_step: int, fragment: int) -> bool:
        return is_leaving(member) or self._links.may_ask(member, syncer_step, fragment)

    def ask_ahead(
        self, now: float, syncer_step: int, schedule: Schedule, versions: Sequence[int], busy: set[int], progress: float
    ) -> None:
        """Ask learners whose answers do not fit in tau steps for what is due later, each for one fragment at a time.

        `busy`: fragments that an open step may still give a newer version.
        """
        for member in self._members.live:
            lead = self._links.lead(member, self._members.step_s)
            for step in range(syncer_step + 1, syncer_step + lead + 1):
                fragment = schedule.due(step)
                if fragment is None or fragment in busy or self._links.holds(member.name, fragment):
                    continue
                if is_leaving(member) or not self._links.may_ask(member, step, fragment):
                    continue
                if not self._can_answer(now, member, fragment, versions[fragment]):
                    continue
                deadline_s = member.link.deadline_s(self._config.read_timeout_s, self._sizes[fragment])
                deadline_s = max(deadline_s, (step - syncer_step) * self._members.step_s)
                codec = self._links.rung(member).codec
                member.under_way = UnderWay(step, fragment, now + deadline_s)
                request = ReadRequest(
                    self._epoch, member.incarnation, step, fragment, EARLY, progress, deadline_s, codec
                )
                self._out.send(member, request)
                break

    def _is_slow(self, member: Member, fragment: int, room_s: float, usual_s: float) -> bool:
        """Whether its answer is expected to take longer than usually fits, and than a quarter of `read_timeout_s`."""
        expected_s = member.answers.expected_s(self._links.bytes(member, fragment))
        return member.under_way is not None or expected_s > self._links.floor_s(max(room_s, usual_s))

    def _may_hurry(self) -> bool:
        """Whether reads may end before their deadline: where links adapt, and nobody waits for everyone."""
        config = self._config
        return config.adaptive and config.grace != "infinite" and config.overlap != "strict"

    def _wait(self, member: Member, fragment: int, patient: bool, room_s: float) -> Wait:
        """How long it is waited for: beyond K answers for `room_s`, unless `patient`."""
        deadline_s = member.link.deadline_s(self._config.read_timeout_s, self._sizes[fragment])
        return Wait(deadline_s, math.inf if patient else min(deadline_s, room_s))

    def note_transfer(self, member: Member, event: Contribution, clock: Clock) -> bool:
        """An answer came, in time or not: it says how fast this learner's link is.

        Returns whether it is the answer that was asked for ahead.
        """
        if event.took_s > 0.0 and not event.defect and event.codec in self._links.uplinks.codecs:
            size = self._links.uplinks.bytes(Rung(event.codec), event.fragment)
            member.link.note(self._sizes[event.fragment], event.took_s + event.held_s)
            member.answers.note(size, event.took_s)
            self._links.note(member, clock)
        if member.under_way is None or member.under_way[:2] != (event.syncer_step, event.fragment):
            return False
        member.under_way = None
        return event.attempt == EARLY

    def miss(self, now: float, step: OpenStep | None, event: Contribution | ReadMissed, reason: str) -> None:
        """Stop waiting for this incarnation's contribution, and record why."""
        member = self._members.get(event.learner, event.incarnation)
        under_way = member.under_way if member is not None else None
        if reason != "timeout" and member and under_way and under_way.syncer_step == event.syncer_step:
            member.under_way = None  # it will not come
        if step is not None and step.awaited.get(event.learner) == event.incarnation:
            if reason == "timeout":
                self._note_missed(event.learner, step, now, True)
            self._out.emit(step.miss(event.learner, reason))

    def close(self, now: float, step: OpenStep, version: int) -> None:
        """Reading is over: merge if at least K contributions are valid, else reopen."""
        step.read_at = now
        for learner in list(step.awaited):
            over = now >= step.deadline
            self._note_missed(learner, step, now, over)
            self._out.emit(step.miss(learner, "timeout" if over else SLOW_LINK))
        if len(step.contributions) < self._quorum:
            self.reopen(now, step, f"{len(step.contributions)} valid contributions, the quorum is {self._quorum}")
            return
        self._out.add(step.merge(version, self._config.round_steps))

    def _note_missed(self, learner: str, step: OpenStep, now: float, over: bool) -> None:
        """Its answer is not waited for any more. Before its time is over, it may still come.

        That it does not come is no sample of the link's rate: it, or the request, may be lost. So nothing else is
        asked for as long as answers are known to take, and longer only after several in a row that did not come.
        """
        assert step.fragment is not None
        member, late = self._members.known(learner), None
        if over:
            self._links.note(member, None)
        else:
            doublings = min(max(0, member.place.lost - AFTER + 1), PATIENCE_MAX)
            patience_s = (2**doublings - 1) * (step.due[learner] - step.decided_at)
            expected_s = member.answers.expected_s(self._links.bytes(member, step.fragment))
            late = UnderWay(
                step.syncer_step, step.fragment, max(step.deadline, now + max(patience_s, 2.0 * expected_s))
            )
        self._members.note_missed(member, late)
        if late is not None and self._config.base_window:
            member.owes.add(step.fragment)

    def reopen(self, now: float, step: OpenStep, reason: str) -> None:
        """Send the step back to collecting; a new quorum is counted after REOPEN_S."""
        if step.stage is Stage.READING:  # else the merge has them
            self._out.forget(step.contributions.values())
        self._out.emit(step.reopen(now, now + REOPEN_S, reason))
        for member in self._members.live:
            step.count(member, self._config.overlap)
