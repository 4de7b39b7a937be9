"""Which learners are asked for a fragment, when, in which format, and how long their answers are waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outer.protocol.effect_buffer import EffectBuffer
from outer.protocol.events_effects import ReadMissed
from outer.protocol.links import AHEAD, EARLY, Links, UnderWay
from outer.protocol.members import Member, Members
from outer.protocol.messages import Contribution, ReadRequest
from outer.protocol.open_step import OpenStep, Stage, Wait, has_progress, unusable
from outer.protocol.schedule import Schedule
from outer.protocol.sessions import is_leaving

if TYPE_CHECKING:
    from outer.config import SyncConfig

REOPEN_S = 0.1  # a reopened syncer step waits this long before it is judged again
IDLE = 2.0  # times the usual wait: so long a learner is waited for that could not be asked ahead
SLOW_LINK = "slow_link"  # why an answer is not waited for: it takes longer than the others, and than usual


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
        self._sizes, self._largest = sizes, max(range(len(sizes)), key=sizes.__getitem__)
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
        live, fragment = self._members.live, step.fragment
        for member in live:
            for lost in [p for p, each in member.under_way.items() if now >= each.until]:
                del member.under_way[lost]
                member.overdue = True
                self._links.note(member, None)
        counted = (
            live if self._config.participants == "eligible" else [each for each in live if each.name in step.ready]
        )
        here, early = self._early(step, version), (step.syncer_step, EARLY)
        coming = [each for each in live if fragment in each.under_way and each.under_way[fragment][:2] == early]
        told = here.keys() | {each.name for each in coming}  # a leaving one is not asked twice for one step either
        able = [each for each in counted if each.name not in told and self.can_answer(now, each, fragment, version)]
        lead, step_s = self._links.lead, self._members.step_s
        asked = [each for each in able if is_leaving(each) or not lead(each, fragment, step_s, usual_s)]
        if len(asked) + len(coming) + len(here) < self._quorum:  # a quorum needs those, too, that are asked ahead
            asked = able
        usual_s = self._links.patience_s(max(room_s, usual_s))
        slow = [each for each in asked if self._links.expected_s(each, fragment) > usual_s]
        patient = 2 * len(slow) > len(asked) + len(coming) or not self._config.hurries
        waits = {each.name: self._wait(each, fragment, math.inf if patient else usual_s) for each in asked}
        waits |= {each.name: self._wait(each, fragment, room_s) for each in coming}
        # Others were to be asked ahead. Where nothing is under way, they could not be: their fragments are always in
        # open steps, or they adopt too late, or their links are taken for slower than they are, which one answer in two
        # rounds shows.
        idle = [each for each in able if each.name not in waits and not each.under_way]
        for member in list(idle):
            due_s = AHEAD * self._links.expected_s(member, fragment)
            if due_s <= IDLE * usual_s:
                waits[member.name] = self._wait(member, fragment, due_s)
            elif step.syncer_step - max(member.asked_ahead.values(), default=0) > 2 * self._config.round_steps:
                member.asked_ahead[fragment] = step.syncer_step
                waits[member.name] = self._wait(member, fragment, 0.0)
            else:
                idle.remove(member)
        asked += idle
        awaited = {member.name: member.incarnation for member in (*asked, *coming)}
        if (count := len(awaited) + len(here)) < self._quorum:  # commits take so long that the last was not adopted yet
            for contribution in here.values():
                self._links.keep(contribution)
            step.lacked = True
            why = f"{count} learners have a usable base, the quorum is {self._quorum}"
            self._out.emit(step.reopen(now, now, why, able=awaited.keys() | here.keys()))
            return
        step.ask(now, self._quorum, len(live), awaited, waits, early={member.name for member in coming})
        step.contributions |= here
        for member in asked:
            wanted = step.syncer_step, fragment, step.attempt, progress, waits[member.name].deadline_s
            self._out.send(member, ReadRequest(self._epoch, member.incarnation, *wanted, self._links.codec(member)))

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

    def can_answer(self, now: float, member: Member, fragment: int, version: int) -> bool:
        """Whether it has a usable base, was heard since it was asked in vain, and has no other answer under way."""
        under_way = member.under_way.get(fragment)
        busy = under_way is not None and now < under_way.until and not is_leaving(member)
        return not (member.unheard or busy) and has_progress(member, fragment, version, self._config)

    def ask_ahead(
        self,
        now: float,
        syncer_step: int,
        schedule: Schedule,
        versions: Sequence[int],
        busy: set[int],
        progress: float,
        room_s: float,
    ) -> None:
        """Ask learners whose answers would not come while others are waited for, for what is due later.

        `busy`: fragments that an open step may still give a newer version. `room_s`: that answers usually have.
        """
        step_s = self._members.step_s
        for member in self._members.live:
            widest = self._links.lead(member, self._largest, step_s, room_s)
            if is_leaving(member):
                continue
            for ahead in reversed(range(1, widest.stop)):  # what is due last has the longest way left
                if len(member.under_way) >= member.window.size:
                    break
                step = syncer_step + ahead
                fragment = schedule.due(step)
                if fragment is None or fragment in busy or fragment in member.under_way:
                    continue  # one whose time is over is noted as lost before it is asked for anew
                if self._links.holds(member.name, fragment):
                    continue
                if ahead not in self._links.lead(member, fragment, step_s, room_s):
                    continue
                if member.asked_ahead.get(fragment) == step:
                    continue  # nothing would tell a second answer from the first
                if not self.can_answer(now, member, fragment, versions[fragment]):
                    continue
                deadline_s = member.link.deadline_s(self._config.read_timeout_s, self._sizes[fragment])
                deadline_s = max(deadline_s, ahead * step_s)
                member.asked_ahead[fragment] = step
                member.under_way[fragment] = UnderWay(step, EARLY, len(member.under_way), now + deadline_s)
                asked = step, fragment, EARLY, progress, deadline_s, self._links.codec(member)
                self._out.send(member, ReadRequest(self._epoch, member.incarnation, *asked))

    def _wait(self, member: Member, fragment: int, usual_s: float) -> Wait:
        """How long it is waited for: beyond K answers for `usual_s`, the first one for `read_timeout_s` at least."""
        deadline_s = member.link.deadline_s(self._config.read_timeout_s, self._sizes[fragment])
        least_s = 0.0 if member.answers.known else self._config.read_timeout_s
        return Wait(deadline_s, min(deadline_s, max(usual_s, least_s)))

    def note_transfer(self, now: float, member: Member, event: Contribution) -> bool:
        """An answer came, in time or not: it says how fast this learner's link is, unless its lease expired meanwhile.

        Returns whether it is the answer that was asked for ahead.
        """
        took_s = event.took_s if member.live and event.took_s <= now - member.back_at else 0.0
        if took_s > 0.0 and not event.defect and event.codec in self._links.uplinks.codecs:
            size = self._links.uplinks.bytes(event.codec, event.fragment)
            member.link.note(self._sizes[event.fragment], took_s + event.held_s)
            member.answers.note(size, took_s)
            self._links.note(member, self._config.round_steps * self._members.step_s)
        under_way = member.under_way.get(event.fragment)
        waited_for = under_way is None or under_way[:2] != (event.syncer_step, event.attempt)
        member.overdue = not waited_for and event.attempt != EARLY  # else it came in time
        if waited_for:
            return False
        assert under_way is not None
        if took_s > 0.0:
            beside = max(under_way.beside, len(member.under_way) - 1)
            member.window.note(took_s, beside, self._config.round_steps * self._members.step_s)
        del member.under_way[event.fragment]
        return event.attempt == EARLY

    def miss(self, now: float, step: OpenStep | None, event: Contribution | ReadMissed, reason: str) -> None:
        """Stop waiting for this incarnation's contribution, and record why."""
        member = self._members.get(event.learner, event.incarnation)
        if reason != "timeout" and member is not None:  # it will not come
            left = {p: each for p, each in member.under_way.items() if each.syncer_step != event.syncer_step}
            member.under_way = left
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

        That it does not come is no sample of the link's rate: it, or the request, may be lost.
        """
        assert step.fragment is not None
        member, late = self._members.known(learner), None
        if over:
            self._links.note(member, None)
        else:
            attempt = EARLY if learner in step.early else step.attempt
            late = UnderWay(step.syncer_step, attempt, max(1, len(member.under_way)), step.due[learner])
        self._members.note_missed(member, step.fragment, late)
        if late is not None and self._config.base_window:
            member.owes.add(step.fragment)

    def reopen(self, now: float, step: OpenStep, reason: str) -> None:
        """Send the step back to collecting; a new quorum is counted after REOPEN_S."""
        if step.stage is Stage.READING:  # else the merge has them
            self._out.forget(step.contributions.values())
        self._out.emit(step.reopen(now, now + REOPEN_S, reason))
        for member in self._members.live:
            step.count(member, self._config.overlap)
