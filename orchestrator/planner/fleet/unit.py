"""One incarnation of a learner: the production machine, and a shell in which training is time that passes.

Nothing is computed and nothing goes wrong by itself; what befalls it is done to it from outside. Decides nothing about
the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappush
from typing import Any

from learners.fault_effects import FaultEffects
from learners.protocol import events_effects
from learners.protocol.learner import Learner
from orchestrator.planner.fleet.description import Member
from orchestrator.planner.fleet.world import Stepped, World
from orchestrator.planner.sizing.traffic import DOWN_BYTES, UP_BYTES
from outer.protocol.messages import (
    COMPILING,
    DRAINING,
    IMPORTING,
    JOINING,
    STEPPING,
    Attach,
    Donor,
    Report,
    State,
    StateRequest,
)

NOTHING = events_effects.Staged({})
PIECES = 64  # of a peer's state on its way
LOSS = 0.0  # of every step: nothing is computed, and no learner may think that it diverges


class Unit:
    """`ended` is called once its loop has returned by itself, with the reason."""

    def __init__(self, world: World, member: Member, incarnation: int, ended: Callable[[Unit, str], None]) -> None:
        fleet = world.fleet
        self.member, self.name, self.incarnation = member, member.name, incarnation
        self.key = (member.name, incarnation)
        self.alive = self.running = True  # running: alive, and not frozen
        self.server: Any = None
        self.disturbance = FaultEffects(lambda: world.time.now)
        self.facts: list[tuple[float, Any]] = world.facts.setdefault(self.key, [])
        self.machine = Learner(
            name=self.name,
            incarnation=incarnation,
            config=fleet.sync,
            fragments=len(fleet.fragments),
            batch_size=member.batch_size,
            span_steps=fleet.span_steps,
            start_s=fleet.timing.start_s,
            ahead_s=fleet.ahead_s,
        )
        self._world, self._time, self._ended = world, world.time, ended
        self._steps = world.steps.setdefault(self.name, [])
        self._up_bytes = UP_BYTES[fleet.sync.codec]
        self._kept: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._turn = 0  # which of the loop's moves is under way
        self._holding = self._changed = False
        self._exited = ""
        self._warm = False  # it has what it starts from

    # -------------------------------------------------------------- the process

    def deliver(self, happen: Callable[..., Any], *args: Any) -> None:
        """Something reaches it while it is frozen, or dead."""
        if self.alive:
            self._kept.append((happen, args))

    def freeze(self) -> None:
        self.running = False

    def thaw(self) -> None:
        """Go on, with all that has come meanwhile."""
        if self.alive and not self.running:
            self.running = True
            kept, self._kept = self._kept, []
            for happen, args in kept:
                self._reach(0.0, happen, *args)

    def die(self) -> None:
        """A step under way is lost."""
        self.alive = self.running = False
        self._kept.clear()
        self._world.crowd.leave(self)
        if self._steps and self._steps[-1].ended > self._time.now:
            self._steps.pop()

    def begin(self, warm: bool) -> None:
        """Import, compile, attach."""
        timing = self._world.fleet.timing
        self.drive(events_effects.Enter(IMPORTING))
        self._warm = warm
        import_s, compile_s = (0.0, 0.0) if warm else (timing.import_s(), timing.compile_s())
        self._world.crowd.work(import_s, self, self._compile, compile_s)

    def _compile(self, seconds: float) -> None:
        self.drive(events_effects.Enter(COMPILING))
        self._world.crowd.work(seconds, self, self._compiled)

    def _compiled(self) -> None:
        self.drive(events_effects.Compiled({}))
        self.drive(events_effects.Resume())

    def _reach(self, seconds: float, happen: Callable[..., Any], *args: Any) -> None:
        self._time.reach(seconds, self, happen, *args)

    # -------------------------------------------------------------- the machine and its effects

    def hear(self, event: Any) -> None:
        """News: it wakes a loop that waits."""
        if self._exited:
            return
        self.drive(event)
        self._changed = True
        if self._holding:
            self._resume(self._turn)

    def drive(self, event: Any) -> None:
        self._world.events += 1
        for effect in self.machine.handle(self._time.now, event):
            PERFORM[type(effect)](self, effect)

    def _say(self, effect: events_effects.Emit) -> None:
        if self._world.fleet.recorded:
            self.facts.append((self._time.now, effect.fact))

    def _ignore(self, effect: Any) -> None:
        """Arrays alone would change."""

    # -------------------------------------------------------------- the training loop

    def _run_step(self, effect: events_effects.RunStep) -> None:
        self._turn += 1
        self._holding = False
        time = self._time
        begins = max(time.now, self._world.ready_at.get(self.name, 0.0))
        beat = self.member.rhythm.beat(begins)
        first_s = self._world.fleet.timing.first_s() if effect.step == 1 else 0.0
        done = begins + beat.seconds + first_s + self.disturbance.delay_s()
        if beat.stall_s:
            self._world.ready_at[self.name] = done + beat.stall_s
        tokens = self.member.tokens if beat.share == 1.0 else round(beat.share * self.member.tokens)
        self._steps.append(Stepped(begins, done, beat.share, tokens))
        heappush(time.queue, (done, time.number(), self, self._step_done, (self._turn, tokens)))

    def _step_done(self, turn: int, tokens: int) -> None:
        if turn == self._turn:
            self.drive(events_effects.StepDone(LOSS, tokens))

    def _hold(self, effect: events_effects.Hold) -> None:
        self._turn += 1
        self._holding = not self._changed  # since it last looked
        self._changed = False
        self._reach(effect.seconds if self._holding else 0.0, self._resume, self._turn)

    def _resume(self, turn: int) -> None:
        if turn == self._turn and not self._exited:
            self._holding = self._changed = False
            self.drive(events_effects.Resume())

    def _stage(self, effect: events_effects.Stage) -> None:
        self.drive(events_effects.Staged(dict.fromkeys(effect.fragments)) if effect.fragments else NOTHING)

    def _exit(self, effect: events_effects.Exit) -> None:
        self._exited = effect.reason
        self._turn += 1
        if self.server is not None:
            self.server.note(self, len(self.facts))  # last words
        self.die()
        self._ended(self, effect.reason)

    # -------------------------------------------------------------- to the syncer

    def _latency_s(self, region: str) -> float:
        """Until a word of this learner is in that region."""
        return self.held_up_s + self._world.network.latency_s(self.member.region, region)

    @property
    def held_up_s(self) -> float:
        """How long its link still lets nothing pass."""
        return self.disturbance.link_down_s()

    def _send(self, effect: events_effects.Send) -> None:
        message, server = effect.message, self.server
        if server is None:
            return
        late_s = self._latency_s(server.region)
        if type(message) is Report:
            self._time.reach(late_s, server, server.report, self, message, len(self.facts))
        else:
            assert isinstance(message, Attach)
            self._time.reach(late_s, server, server.attach, self, message)

    def reattach(self, server: Any) -> None:
        """Another syncer is there: the one it knew is gone."""
        self.server = server
        self.hear(events_effects.Reattach())

    def _answer(self, effect: events_effects.Answer) -> None:
        """The fragment crosses to every shard."""
        server, network, contribution = self.server, self._world.network, effect.contribution
        if server is None:
            return
        if self.disturbance.corrupts():
            contribution = replace(contribution, defect="bad_digest")
        size = self._up_bytes * self._world.fleet.fragments[contribution.fragment].size
        there_at = network.scatter(self._time.now + self.held_up_s, size, self.member.region, server.shards)
        self._time.reach(there_at - self._time.now, server, server.answered, self, contribution)

    def _fetch(self, effect: events_effects.Fetch) -> None:
        server = self.server
        if server is not None:
            late_s = self._latency_s(server.region)
            self._time.reach(late_s, server, server.fetch, self, effect.fragment, self._time.now)

    def fetched(self, fragment: int, version: int, asked_at: float) -> None:
        """Called by the syncer when it has been asked: the payload crosses from every shard."""
        server, network, now = self.server, self._world.network, self._time.now
        if server is None:
            return
        if self._warm and self.machine.phase == JOINING:
            self._reach(0.0, self.hear, events_effects.Fetched(fragment, version, None))
            return
        size = DOWN_BYTES * self._world.fleet.fragments[fragment].size
        there_at = network.gather(now + self.held_up_s, size, server.shards, self.member.region)
        deadline = asked_at + self._world.fleet.sync.transfer_s
        if there_at <= deadline:
            self._reach(there_at - now, self.hear, events_effects.Fetched(fragment, version, None))
        else:
            self._reach(deadline - now, self.hear, events_effects.FetchFailed(fragment, version, "fetch_failed"))

    # -------------------------------------------------------------- states, from and to peers

    def _recover(self, effect: events_effects.Recover) -> None:
        server = self.server
        assert server is not None
        deadline = self._time.now + effect.deadline_s
        self._time.reach(self._latency_s(server.region), server, server.seek, self, effect.seek, deadline)

    def named(self, donor: Donor, deadline: float) -> None:
        """The syncer's answer: ask the one that it named."""
        peer = self._world.units.get(donor.donor)
        left_s = deadline - self._time.now
        if peer is None or not peer.alive or peer.incarnation != donor.donor_incarnation:
            self.missed(donor.donor, donor.donor_incarnation, "none")
            return
        whom = (donor.donor, donor.donor_incarnation)
        request = StateRequest(donor.epoch, *self.key, *whom, donor.syncer_step, left_s)
        self._world.sought[self.key] = request
        self._time.reach(self._latency_s(peer.member.region), peer, peer.hear, request)
        self._reach(left_s, self._give_up, request)

    def _give_up(self, request: StateRequest) -> None:
        if self._world.sought.get(self.key) is request:
            self.missed(request.donor, request.donor_incarnation, "timeout")

    def missed(self, donor: str, incarnation: int, reason: str) -> None:
        self._world.sought.pop(self.key, None)
        self.hear(events_effects.StateMissed(donor, incarnation, reason))

    def _given(self, request: StateRequest, state: State) -> None:
        if self._world.sought.get(self.key) is request:
            del self._world.sought[self.key]
            self.hear(events_effects.StateArrived(state))

    def _donate(self, effect: events_effects.Donate) -> None:
        self._reach(self._world.fleet.timing.pack_s, self._give, effect)

    def _give(self, effect: events_effects.Donate) -> None:
        request, size = effect.request, self._world.fleet.state_bytes
        self.hear(events_effects.StateSent(request, effect.step, "", size, effect.versions))
        state = State(*self.key, effect.step, effect.syncer_step, None, "", size, effect.versions)
        self._give_on(request, state, PIECES)

    def _give_on(self, request: StateRequest, state: State, left: int) -> None:
        """Piece by piece, so that fragments on the same link get their turn in between."""
        joiner = self._world.units.get(request.joiner)
        if joiner is None or joiner.incarnation != request.joiner_incarnation:
            return
        begins, size, ends = (
            self._time.now + self.held_up_s,
            state.size / PIECES,
            (self.member.region, joiner.member.region),
        )
        network = self._world.network
        there_at = network.carry(begins, size, *ends)
        if left > 1:  # the next leaves as soon as this one has: the way takes its time once
            self._reach(there_at - network.latency_s(*ends) - self._time.now, self._give_on, request, state, left - 1)
        else:
            self._time.reach(there_at - self._time.now, joiner, joiner._given, request, state)

    def _decline(self, effect: events_effects.Decline) -> None:
        joiner = self._world.units.get(effect.request.joiner)
        if joiner is not None and joiner.incarnation == effect.request.joiner_incarnation:
            late_s = self._latency_s(joiner.member.region)
            self._time.reach(late_s, joiner, joiner.missed, *self.key, effect.reason)

    @property
    def steps_on(self) -> bool:
        """Whether it has anything to lose."""
        return self.alive and self.machine.phase in (STEPPING, DRAINING)


PERFORM: dict[type[Any], Callable[[Unit, Any], None]] = {
    events_effects.Emit: Unit._say,
    events_effects.Send: Unit._send,
    events_effects.Answer: Unit._answer,
    events_effects.Fetch: Unit._fetch,
    events_effects.Recover: Unit._recover,
    events_effects.Donate: Unit._donate,
    events_effects.Decline: Unit._decline,
    events_effects.Inherit: Unit._ignore,
    events_effects.Save: Unit._ignore,
    events_effects.Apply: Unit._ignore,
    events_effects.Stage: Unit._stage,
    events_effects.RunStep: Unit._run_step,
    events_effects.Hold: Unit._hold,
    events_effects.Exit: Unit._exit,
}
