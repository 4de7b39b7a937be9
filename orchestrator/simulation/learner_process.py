"""One incarnation of a learner as a process, with what it says to the syncer and to its peers.

Reads and requests for its state are always answered: by a payload, a refusal, or the caller's deadline. What is wrong
with an answer is put in by the context's faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from learners.protocol import events_effects
from orchestrator.simulation.calls import Call, ask
from orchestrator.simulation.context import Key, SimContext
from orchestrator.simulation.learner_loop import LearnerLoop
from outer.protocol.leases import longest_s
from outer.protocol.messages import (
    COMPILING,
    IMPORTING,
    STARTING,
    STOPPED,
    Attach,
    Donor,
    Report,
    State,
    StateRequest,
)
from outer.protocol.recorder import Numbered

REPORTS_MAX = 32  # on their way to the syncer; beyond that a report is not sent
ATTACH_ATTEMPTS_MAX = 5
NO_FACTS: list[Numbered] = []
CALL_S = 10.0  # deadline for an answer from the syncer

ReadKey = tuple[int, int]  # syncer step and attempt


class LearnerProcess(LearnerLoop):
    """`syncer` is the newest syncer's process that it was told of."""

    def __init__(self, context: SimContext, name: str, incarnation: int, ended: Callable[[Any, str], None]) -> None:
        super().__init__(context, name, incarnation, ended)
        self.syncer: Any = None
        self.welcomed = 0  # by this epoch
        self.undelivered = 0  # messages of the syncer on their way here
        self.reports = 0  # on their way to the syncer
        self.up, self.down = context.network.links(self)
        self._network = context.network
        self._reads: dict[
            ReadKey, list[tuple[Call, float]]
        ] = {}  # the syncer's questions without an answer, and when they came
        self._gifts: dict[Key, Call] = {}  # by joiner: who waits for this learner's state
        self._fetches: deque[Callable[[], None]] = deque()  # that wait for a thread
        self._fetching = 0
        self._wanted: dict[int, int] = {}  # by fragment that is fetched, or waits for it: the newest version asked for
        self._attempts = 0  # to attach
        self._perform |= {
            events_effects.Send: self._send,
            events_effects.Answer: self._answer,
            events_effects.Fetch: self._fetch,
            events_effects.Recover: self._recover,
            events_effects.Donate: self._donate,
            events_effects.Decline: self._decline,
            events_effects.Inherit: self._inherit,
            events_effects.Apply: self.values.apply,
        }

    @property
    def waiting(self) -> int:
        """Reads, gifts and fetches that are not answered yet."""
        return sum(map(len, self._reads.values())) + len(self._gifts) + len(self._fetches) + self._fetching

    def die(self) -> None:
        super().die()
        for waiting in self._reads.values():
            for call, _ in waiting:
                call.died()
        for call in self._gifts.values():
            call.died()

    def _moment(self, moment: str) -> None:
        self._context.faults.moment(self, moment)

    def _ask(
        self,
        handler: Callable[[Call], None],
        message: Any,
        deadline_s: float,
        answered: Callable[[Any], None],
        failed: Callable[[str], None],
    ) -> None:
        """Ask the syncer."""
        ask(self._network, self, self.syncer, (self.up, self.down), handler, message, deadline_s, answered, failed)

    # -------------------------------------------------------------- reports and attaching

    def _send(self, effect: events_effects.Send) -> None:
        message = effect.message
        if type(message) is not Report:
            assert isinstance(message, Attach)
            self._attach(message)
            return
        self.reported_at = self.time.now
        syncer = self.syncer
        if syncer is None or (self.reports >= REPORTS_MAX and message.phase != STOPPED):
            return
        message = self._context.faults.reported(self, message)
        oldest, facts = (self.outbox.oldest, self.outbox.pending()) if self._recording else (0, NO_FACTS)
        self.reports += self._network.carry(self.up, 0.0, syncer, syncer.report, self, message, oldest, facts)

    def acknowledged(self, number: int) -> None:
        """Facts up to this number are durable."""
        self.outbox.acknowledge(number)
        known = self._context.acknowledged
        known[self.key] = max(number, known.get(self.key, -1))

    def _everything(self) -> tuple[int, list[Numbered]]:
        """(the oldest number that it holds, all facts that are not durable)."""
        facts = self.outbox.everything()
        assert facts is not None
        return facts[0][0] if facts else self.outbox.oldest, facts

    def _say_last_words(self) -> None:
        if self.syncer is not None:
            self._network.carry(self.up, 0.0, self.syncer, self.syncer.note, self, *self._everything())

    def reattach(self, syncer: Any) -> None:
        """Another syncer is there: the one it knew is dead."""
        before = self.syncer
        if before is not None and before.epoch >= syncer.epoch:
            return  # a newer one has been announced meanwhile
        self.syncer, self.reports, self._attempts = syncer, 0, 0
        self.outbox.rewind()
        if self.machine.phase in (STARTING, IMPORTING, COMPILING):
            self.drive(events_effects.Reattach())  # there is no loop to wake yet
        elif before is not None:
            self.on_message(events_effects.Reattach())

    @property
    def steps(self) -> bool:
        """True if the process answers the supervisor, and its training loop is alive."""
        return self.running and not self.exited and self.machine.is_alive(self.clock())

    def attach_again(self) -> None:
        """Have it attach to the syncer that it was told of last, if it has given up."""
        if self._attempts >= ATTACH_ATTEMPTS_MAX:
            self._attempts = 0
            self.on_message(events_effects.Reattach())

    def _attach(self, message: Attach) -> None:
        syncer = self.syncer
        assert syncer is not None
        self._attempts += 1
        self._moment("joining")
        failed = partial(self._unattached, syncer, message)
        self._ask(
            syncer.attach, (self, message, self.outbox.oldest, self.outbox.pending()), CALL_S, self._attached, failed
        )

    def _attached(self, answer: Any) -> None:
        if isinstance(answer, str):
            self.fail(f"the syncer refused this learner: {answer}")
        else:
            self._moment("welcomed")
            self.welcomed = answer.epoch
            self.on_message(answer)

    def _unattached(self, syncer: Any, message: Attach, reason: str) -> None:
        """No answer came. If the syncer is dead, the learner will be told of its successor."""
        if reason != "GetTimeoutError" or self.syncer is not syncer or self.exited:
            return
        if self._attempts < ATTACH_ATTEMPTS_MAX:
            self._attach(message)
        elif self.machine.epoch is None:
            self.fail("the syncer does not answer")

    # -------------------------------------------------------------- reads of its fragments

    def read(self, call: Call) -> None:
        """The syncer asks for a fragment."""
        request = call.message
        key = (request.syncer_step, request.attempt)
        self._reads.setdefault(key, []).append((call, self.time.now))
        self.on_message(request)
        if key in self._reads:
            self.after(request.deadline_s, self._no_boundary, key, call)

    def _no_boundary(self, key: ReadKey, call: Call) -> None:
        for read in self._reads.get(key, ()):
            if read[0] is call:
                self._remove_read(key, read)
                call.reply(0.0, None)
                return

    def _remove_read(self, key: ReadKey, read: tuple[Call, float]) -> None:
        waiting = self._reads[key]
        waiting.remove(read)
        if not waiting:
            del self._reads[key]

    def _answer(self, effect: events_effects.Answer) -> None:
        """Answer the call that has waited longest."""
        contribution = effect.contribution
        key = (contribution.syncer_step, contribution.attempt)
        if key not in self._reads:
            return
        call, asked_at = self._reads[key][0]
        self._remove_read(key, (call, asked_at))
        contribution = replace(contribution, held_s=self.time.now - asked_at)
        self.values.read(contribution)
        contribution, defect = self._context.faults.contributed(self, contribution)
        if defect or self._recording:  # else nobody looks at the digest
            payload = None if defect else contribution.payload  # as the inspection leaves it
            digest = f"{self.name}{self.incarnation}@{contribution.step}"
            contribution = replace(contribution, payload=payload, digest=digest, defect=defect)
        call.reply(
            self._network.up_size(contribution.fragment, contribution.codec), (contribution, *self._everything())
        )
        self._moment("answered")

    # -------------------------------------------------------------- versions

    def _fetch(self, effect: events_effects.Fetch) -> None:
        """Fetch each version by itself, so that they overtake each other, or only the newest that waits."""
        fragment = effect.fragment
        if not self._context.fetches_newest:
            self._submit(partial(self._ask_version, fragment, effect.version))
            return
        idle = fragment not in self._wanted
        self._wanted[fragment] = max(effect.version, self._wanted.get(fragment, -1))
        if idle:
            self._submit(partial(self._fetch_wanted, fragment))

    def _fetch_wanted(self, fragment: int) -> None:
        self._ask_version(fragment, self._wanted[fragment])

    def _done_fetching(self, fragment: int, version: int) -> None:
        """Fetch what was asked for meanwhile, unless this is it."""
        if self._wanted.get(fragment, version) > version:
            self._fetches.append(partial(self._fetch_wanted, fragment))
        else:
            self._wanted.pop(fragment, None)
        self._release()

    def _submit(self, job: Callable[[], None]) -> None:
        """Run as many jobs at once as there are threads."""
        if self._fetching < self._context.fetchers:
            self._fetching += 1
            job()
        else:
            self._fetches.append(job)

    def _release(self) -> None:
        if self._fetches:
            self._fetches.popleft()()
        else:
            self._fetching -= 1

    def _ask_version(self, fragment: int, version: int) -> None:
        assert self.syncer is not None
        self._moment("transferring")
        fetched, failed = partial(self._fetched, fragment, version), partial(self._unfetched, fragment, version)
        deadline_s = longest_s(self._context.sync.transfer_s, int(self._network.down_size(fragment)))
        self._ask(self.syncer.fetch, (fragment, version), deadline_s, fetched, failed)

    def _fetched(self, fragment: int, version: int, answer: Any) -> None:
        if answer is None:
            self._unfetched(fragment, version, "fetch_failed")
        elif self._context.faults.damages("fetch_damage"):
            self._unfetched(fragment, version, "bad_digest")
        else:
            self._done_fetching(fragment, answer.number)
            self.on_message(events_effects.Fetched(fragment, answer.number, answer))

    def _unfetched(self, fragment: int, version: int, reason: str) -> None:
        self._done_fetching(fragment, version)
        reason = reason if reason == "bad_digest" else "fetch_failed"
        self.on_message(events_effects.FetchFailed(fragment, version, reason))

    # -------------------------------------------------------------- a peer's state: the joiner's end

    def _recover(self, effect: events_effects.Recover) -> None:
        self._submit(partial(self._seek, effect))

    def _seek(self, effect: events_effects.Recover) -> None:
        """Have the syncer name a donor, and get its state."""
        assert self.syncer is not None
        named, missed = partial(self._named, effect), partial(self._missed, "", 0)
        self._ask(self.syncer.seek, effect.seek, CALL_S, named, missed)

    def _named(self, effect: events_effects.Recover, answer: tuple[Donor, LearnerProcess] | None) -> None:
        if answer is None:
            self._missed("", 0, "none")
            return
        named, donor = answer
        whom = (named.donor, named.donor_incarnation)
        deadline_s = longest_s(effect.deadline_s, self._network.state_size)
        request = StateRequest(named.epoch, *self.key, *whom, named.syncer_step, deadline_s)
        links = self._network.peer_links(self, donor)
        given, missed = partial(self._given, donor), partial(self._missed, *whom)
        ask(self._network, self, donor, links, donor.give, request, deadline_s, given, missed)

    def _given(self, donor: LearnerProcess, answer: tuple[State, int, list[Numbered]] | str) -> None:
        """The donor's facts have to be in the log before its state is used."""
        if isinstance(answer, str):
            self._missed(*donor.key, answer)
            return
        state, *facts = answer
        self._moment("received")
        assert self.syncer is not None
        recorded, missed = partial(self._examine, donor, state), partial(self._missed, *donor.key)
        self._ask(self.syncer.record, (donor, *facts), CALL_S, recorded, missed)

    def _examine(self, donor: LearnerProcess, state: State, recorded: None) -> None:
        if not self._context.faults.finite(state):
            self._missed(*donor.key, "non_finite")
        elif self._context.faults.damages("state_damage"):
            self._missed(*donor.key, "bad_digest")
        else:
            self._release()
            self.on_message(events_effects.StateArrived(state))

    def _missed(self, donor: str, incarnation: int, reason: str) -> None:
        self._release()
        self.on_message(events_effects.StateMissed(donor, incarnation, reason))

    def _inherit(self, effect: events_effects.Inherit) -> None:
        if not self._context.faults.finite(effect.state):
            self.poison()
        self.values.inherit(effect.state)

    # -------------------------------------------------------------- a peer's state: the donor's end

    def give(self, call: Call) -> None:
        """A joiner asks for this learner's state."""
        request = call.message
        key = (request.joiner, request.joiner_incarnation)
        self._gifts[key] = call
        self._moment("giving")
        self.on_message(request)
        if self._gifts.get(key) is call:
            self.after(request.deadline_s, self._answer_gift, key, call, "timeout")

    def _donate(self, effect: events_effects.Donate) -> None:
        key = (effect.request.joiner, effect.request.joiner_incarnation)
        if (call := self._gifts.get(key)) is not None:
            self._context.observer.gives(self, effect)
            held = self.values.packed(self.poisoned)
            self.after(self._context.durations.pack_s, self._pack, key, call, effect, held)

    def _decline(self, effect: events_effects.Decline) -> None:
        key = (effect.request.joiner, effect.request.joiner_incarnation)
        if (call := self._gifts.get(key)) is not None:
            self._answer_gift(key, call, effect.reason)

    def _pack(self, key: Key, call: Call, effect: events_effects.Donate, held: Any) -> None:
        if self.exited:
            return
        digest, size = f"{self.name}{self.incarnation}@{effect.step}", self._network.state_size
        state = State(*self.key, effect.step, effect.syncer_step, held, digest, size, effect.versions)
        self.on_message(events_effects.StateSent(effect.request, effect.step, digest, size, effect.versions))
        self.values.gave(effect.step, held)
        self._answer_gift(key, call, (state, *self._everything()))

    def _answer_gift(self, key: Key, call: Call, answer: tuple[State, int, list[Numbered]] | str) -> None:
        if self._gifts.get(key) is call:
            del self._gifts[key]
            call.reply(0.0 if isinstance(answer, str) else float(self._network.state_size), answer)
