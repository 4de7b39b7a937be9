"""One incarnation of a learner as a process: the production machine, and a shell that does what the real one does.

Training is time that passes; values are followed by what they contain. Knows the syncer's process as a peer to ask,
and its own host's clocks; decides nothing about the protocol.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappush
from typing import Any

from chaos.simulation import conduct, confusion
from chaos.simulation.answers import Answers
from chaos.simulation.contents import Version
from chaos.simulation.hosts import Host, Process
from chaos.simulation.network import ask
from chaos.simulation.setting import MANIFEST, OTHER_MANIFEST, Setting
from chaos.simulation.states import CALL_S, States
from chaos.simulation.trace import told
from chaos.simulation.values import Values
from learners.fault_effects import FaultEffects
from learners.protocol import events_effects
from outer.protocol.messages import COMPILING, DRAINING, IMPORTING, STARTING, STEPPING, STOPPED, Attach, Report

REPORTS_MAX = 32  # on their way to the syncer; while as many are, none is added
ATTACH_ATTEMPTS_MAX = 5
FETCHERS = 2  # threads
EXIT_S = 0.05
LINGER_S = 3.0  # and a process that is slow to end

QUIET = (
    events_effects.Resume,
    events_effects.StepDone,
    events_effects.Staged,
)  # the loop's own; everything else is news to it
NOTHING = events_effects.Staged({})


class Unit(Process):
    """`ended` is called once its process is gone by itself, with the reason."""

    def __init__(
        self, setting: Setting, host: Host, name: str, incarnation: int, ended: Callable[[Unit, str], None]
    ) -> None:
        super().__init__(setting.time, host)
        options = setting.options
        self.name, self.incarnation, self.key = name, incarnation, (name, incarnation)
        self.server: Any = None  # the newest that it was told of
        self.values = Values(self.key, setting.truth)
        self.answers = Answers(setting, self)
        self.states = States(setting, self, self._release)
        self.poisoned = self.known_poisoned = False  # its numbers are not finite; it has seen so in its loss
        self.wrong = False  # its recipe is another
        self.disturbance: FaultEffects | None = None  # what the recipe's own faults do to it from within
        self.welcomed = 0  # by this epoch
        self.undelivered = 0  # messages of the syncer on their way here
        self.reports = 0  # on their way to the syncer
        self.exited = ""
        self.reported_at = setting.time.now  # virtual seconds, like what follows
        self.stepped_at = 0.0  # when its newest step is, or was, done
        self.facts = setting.facts.setdefault(self.key, [])
        self.machine = setting.make_learner(
            name=name,
            incarnation=incarnation,
            config=options.sync,
            fragments=options.fragments,
            batch_size=options.batch[name],
            span_steps=options.span_steps,
            start_s=options.start_s,
        )
        self.down = setting.network.link("syncer", name)
        self.up = setting.network.link(name, "syncer")
        self._setting, self._ended, self._trace = setting, ended, setting.trace
        self._step_s = options.step_s[name]
        self._fetches: deque[Callable[[], None]] = deque()
        self._fetching = 0
        self._attempts = 0  # to attach
        self._turn = 0  # which of the loop's moves is under way
        self._holding = self._changed = self._lingers = False
        self._done = events_effects.StepDone(2.0, options.tokens[name])
        self._resumed = events_effects.Resume()

    @property
    def waiting(self) -> int:
        """Reads, gifts and fetches that are not answered yet."""
        return len(self.answers) + len(self.states) + len(self._fetches) + self._fetching

    # -------------------------------------------------------------- the process

    def begin(self) -> None:
        """Import, compile, attach."""
        options = self._setting.options
        self.drive(events_effects.Enter(IMPORTING))
        self.after(options.import_s, self._compile, options.compile_s)

    def _compile(self, seconds: float) -> None:
        self.drive(events_effects.Enter(COMPILING))
        self.after(seconds, self._compiled)

    def _compiled(self) -> None:
        self.drive(events_effects.Compiled(OTHER_MANIFEST if self.wrong else MANIFEST))
        self.drive(self._resumed)

    def leave(self) -> bool:
        """Its host tells it to end. False: it had nothing to lose, and is gone."""
        if self.machine.phase not in (STEPPING, DRAINING, STOPPED):
            return False
        self.hear(events_effects.Leave())
        return True

    def die(self) -> None:
        super().die()
        self._turn += 1
        self.answers.die()
        self.states.die()

    def fail(self, reason: str) -> None:
        """The training loop ends by an exception."""
        self._leave(f"failed: {reason}")

    def _leave(self, reason: str) -> None:
        if not self.exited:
            self.exited = reason
            self._turn += 1
            if self.server is not None:  # last words
                self._setting.network.carry(self.up, 0.0, self.server, self.server.note, self, len(self.facts))
            self._lingers = bool(self._setting.flips) and self._setting.damaged("linger")
            self.after(EXIT_S + (LINGER_S if self._lingers else 0.0), self._end)

    def _end(self) -> None:
        if self.alive:
            self.die()
            self._ended(self, self.exited)

    # -------------------------------------------------------------- the machine and its effects

    def hear(self, event: Any) -> None:
        """News from other threads: it wakes a loop that waits."""
        if self.exited:
            if self._lingers:
                self.drive(event)
            return
        self.drive(event)
        self._changed = True
        if self._holding:
            self._resume(self._turn)

    def drive(self, event: Any) -> None:
        if self._trace is not None:
            self._trace.line(self.time.now, self.name, self.incarnation, "hears", told(event))
        self.handled += 1
        host = self.host
        for effect in self.machine.handle(host.offset_s + host.rate * self.time.now, event):
            PERFORM[type(effect)](self, effect)

    def _say(self, effect: events_effects.Emit) -> None:
        host = self.host
        if host.jumped:
            host.jumped = False
            self._setting.fired["wall_jump"] += 1
        self.facts.append((self.time.now + host.wall_s, effect.fact))
        if self._trace is not None:
            self._trace.line(self.time.now, self.name, self.incarnation, "says", told(effect.fact))

    # -------------------------------------------------------------- the training loop

    def _run_step(self, effect: events_effects.RunStep) -> None:
        if self.machine.phase != STEPPING:
            conduct.steps(self._setting.truth, self)
        self._turn += 1
        self._holding = False
        slowdown = self.host.slowdown
        if slowdown > 1.0:
            self._setting.fired["slow"] += 1
        seconds = self._step_s * slowdown * (0.9 + 0.2 * self._setting.chance.random())
        if self.disturbance is not None:
            seconds += self.disturbance.delay_s()
        time = self.time
        self.stepped_at = time.now + seconds
        heappush(time.queue, (self.stepped_at, time.number(), self, self._step_done, (self._turn,)))

    def _step_done(self, turn: int) -> None:
        if turn == self._turn:
            self.values.step += 1
            self.known_poisoned = self.poisoned
            self.drive(self._done)

    def _hold(self, effect: events_effects.Hold) -> None:
        self._turn += 1
        if self._changed:  # since it last looked
            self._changed = False
            self._holding = False
            self.time.reach(0.0, self, self._resume, self._turn)
        else:
            self._holding = True
            self.after(effect.seconds, self._resume, self._turn)

    def _resume(self, turn: int) -> None:
        if turn == self._turn and not self.exited:
            self._holding = self._changed = False
            self.drive(self._resumed)

    def _exit(self, effect: events_effects.Exit) -> None:
        conduct.leaves(self._setting.truth, self, effect.reason)
        self._leave(effect.reason)

    def _stage(self, effect: events_effects.Stage) -> None:
        copies = {fragment: self.values.content(fragment) for fragment in effect.fragments}
        self.drive(events_effects.Staged(copies) if copies else NOTHING)

    def poison(self) -> None:
        """From here on its numbers are not finite, until it is restarted."""
        self.poisoned = True
        self._done = events_effects.StepDone(math.nan, self._done.tokens)

    def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str) -> None:
        """As the real shell lets it be done to itself: slow, straggle, corrupt."""
        self.disturbance = self.disturbance or FaultEffects(self.clock)
        self.disturbance.begin(kind, duration_s, delay_s, seed)

    @property
    def corrupts(self) -> bool:
        return self.disturbance is not None and self.disturbance.corrupts()

    # -------------------------------------------------------------- to the syncer

    def _send(self, effect: events_effects.Send) -> None:
        message = effect.message
        if type(message) is not Report:
            assert isinstance(message, Attach)
            self._attach(message)
            return
        self.reported_at = self.time.now
        server = self.server
        if server is None or (self.reports >= REPORTS_MAX and message.phase != STOPPED):
            return
        if self._setting.flips and message.phase in (STEPPING, DRAINING):
            message = confusion.shortened(message, self._setting)
        self.reports += self._setting.network.carry(self.up, 0.0, server, server.report, self, message, len(self.facts))

    def reattach(self, server: Any) -> None:
        """Another syncer is there: the one it knew is gone."""
        before = self.server
        if before is not None and before.epoch >= server.epoch:
            return  # overtaken by word of a newer one
        self.server, self.reports, self._attempts = server, 0, 0
        if self.machine.phase in (STARTING, IMPORTING, COMPILING):
            self.drive(events_effects.Reattach())  # no loop is there yet to wake
        elif before is not None:
            self.hear(events_effects.Reattach())

    def _attach(self, message: Attach) -> None:
        server = self.server
        assert server is not None
        self._attempts += 1
        self.moment("joining")
        ask(
            self._setting.network, self, server, (self.up, self.down), server.attach, (self, message, len(self.facts)),
            CALL_S, self._attached, partial(self._unattached, server, message),
        )  # fmt: skip

    def _attached(self, answer: Any) -> None:
        if isinstance(answer, str):
            self.fail(f"the syncer refused this learner: {answer}")
        else:
            self.moment("welcomed")
            self.welcomed = answer.epoch
            self.hear(answer)

    def _unattached(self, server: Any, message: Attach, reason: str) -> None:
        """No answer came. Of a dead syncer's successor it will be told."""
        if reason != "GetTimeoutError" or self.server is not server or self.exited:
            return
        if self._attempts >= ATTACH_ATTEMPTS_MAX:
            self.fail("the syncer does not answer")
        else:
            self._attach(message)

    # -------------------------------------------------------------- versions

    def _answer(self, effect: events_effects.Answer) -> None:
        self.answers.give(effect)

    def _fetch(self, effect: events_effects.Fetch) -> None:
        self._submit(partial(self._ask_version, effect.fragment, effect.version))

    def _submit(self, job: Callable[[], None]) -> None:
        """As many at once as there are threads."""
        if self._fetching < FETCHERS:
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
        server = self.server
        assert server is not None
        self.moment("transferring")
        ask(
            self._setting.network, self, server, (self.up, self.down), server.fetch, (fragment, version),
            self._setting.options.sync.transfer_s, partial(self._fetched, fragment, version),
            partial(self._unfetched, fragment, version),
        )  # fmt: skip

    def _fetched(self, fragment: int, version: int, answer: Version | None) -> None:
        if answer is None:
            self._unfetched(fragment, version, "fetch_failed")
        elif self._setting.flips and self._setting.damaged("fetch_damage"):
            self._unfetched(fragment, version, "bad_digest")
        else:
            self._release()
            self.hear(events_effects.Fetched(fragment, answer.number, answer))

    def _unfetched(self, fragment: int, version: int, reason: str) -> None:
        self._release()
        self.hear(
            events_effects.FetchFailed(fragment, version, "bad_digest" if reason == "bad_digest" else "fetch_failed")
        )

    def _apply(self, effect: events_effects.Apply) -> None:
        self.values.apply(effect)

    # -------------------------------------------------------------- states, from and to peers

    def _recover(self, effect: events_effects.Recover) -> None:
        self._submit(partial(self.states.seek, effect))

    def _donate(self, effect: events_effects.Donate) -> None:
        self.states.donate(effect)

    def _decline(self, effect: events_effects.Decline) -> None:
        self.states.decline(effect)

    def _inherit(self, effect: events_effects.Inherit) -> None:
        state = effect.state
        if state.payload.poisoned:
            self.poison()
        donor = (state.donor, state.donor_incarnation)
        self._setting.truth.inherited(self.key, donor, state.step, state.payload.contents, state.payload.poisoned)
        self.values.inherit(state.payload.contents)

    def moment(self, moment: str) -> None:
        """A fault may wait for it to come to this."""
        if self._setting.traps:
            self._setting.trapped(self.name, moment)


PERFORM: dict[type[Any], Callable[[Unit, Any], None]] = {
    events_effects.Emit: Unit._say,
    events_effects.Send: Unit._send,
    events_effects.Answer: Unit._answer,
    events_effects.Fetch: Unit._fetch,
    events_effects.Recover: Unit._recover,
    events_effects.Donate: Unit._donate,
    events_effects.Decline: Unit._decline,
    events_effects.Inherit: Unit._inherit,
    events_effects.Stage: Unit._stage,
    events_effects.Apply: Unit._apply,
    events_effects.RunStep: Unit._run_step,
    events_effects.Hold: Unit._hold,
    events_effects.Exit: Unit._exit,
}
