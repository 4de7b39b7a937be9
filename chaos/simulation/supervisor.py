"""A small orchestrator: keeps the wanted learners and one syncer alive, by the production controller.

It notices deaths after a while, grants incarnations and epochs, fences, restarts, and tells everybody. It does not
fail, and what it says to processes arrives; a dead or frozen one does not hear it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from chaos.simulation.hosts import Host
from chaos.simulation.server import Server
from chaos.simulation.setting import Setting
from chaos.simulation.trace import told
from chaos.simulation.unit import Unit
from orchestrator.eventlog.events import LearnerLost, LearnerRequested, LearnerStarted, PoolScaled, RunFinished
from orchestrator.lifecycle import controller
from outer.protocol import events_effects

POLL_S = 1.0  # between two looks at everybody
SYNCER_HANG_S = 3.0  # a syncer that has not answered for so long is held for dead
TELL_S = 0.02  # a word to a process, at most


class Supervisor:
    """`begin_epoch` makes a syncer of the next epoch, from what the journal holds."""

    def __init__(
        self, setting: Setting, chance: Random, hosts: dict[str, Host], begin_epoch: Callable[[int], Server | None]
    ) -> None:
        options = setting.options
        self.units: dict[str, Unit] = {}  # the newest incarnation of each, once its process is up
        self.server: Server | None = None
        self.finished_at: float | None = None  # when it first saw the run finished
        self.over = False
        self.controller = controller.Controller(options.learners, backoff_s=options.backoff_s, hang_s=options.hang_s)
        self.incarnations: dict[str, int] = {}
        self.misled: dict[str, bool] = {}  # whose next incarnation comes with another recipe
        self._stopping = ""  # why, once the run is to end before its time
        self._setting, self._chance, self._hosts, self._begin_epoch = setting, chance, hosts, begin_epoch
        self._facts = setting.facts.setdefault(("orchestrator", 1), [])
        self._epoch = 0
        self._mourned = 0  # the epoch whose end was noticed last
        self._frozen_since: float | None = None
        self._expected: dict[tuple[str, int], bool] = {}  # the syncer has heard of it
        self._dead: dict[str, tuple[int, str]] = {}  # the newest incarnation that is gone, and why
        self.drains: dict[str, events_effects.DrainRequested] = {}

    def start(self) -> None:
        self._next_epoch()
        self._advance()
        self._setting.time.after(POLL_S, self._poll)

    # -------------------------------------------------------------- looking after everybody

    def _poll(self) -> None:
        """Every second."""
        if self.over:
            return
        self._look_at_syncer()
        server = self.server
        if server is not None and server.running and not server.deposed:
            if server.machine.finished and self.finished_at is None:
                self.finished_at = self._setting.time.now
            for row in server.machine.view(server.clock()):
                if not row["alive"] and row["lease_age_s"] is not None and self.finished_at is None:
                    self._act(self.controller.silent(row["name"], row["incarnation"], row["lease_age_s"]))
        if self.finished_at is None:
            self._advance()
        elif self.gone:
            self._end()
            return
        self._setting.time.after(POLL_S, self._poll)

    @property
    def gone(self) -> bool:
        """No learner's process is left."""
        return not any(unit.alive for unit in self.units.values())

    def _end(self) -> None:
        self.over = True
        self._say(RunFinished("finished", self.server.machine.finished if self.server else ""))
        if self.server is not None:
            self.server.die()

    def _advance(self) -> None:
        self._act(self.controller.advance(self._setting.time.now))

    def _act(self, actions: list[controller.Action]) -> None:
        for action in actions:
            match action:
                case controller.Start(name):
                    self._start(name)
                case controller.Drain():
                    self._drain(action, self._setting.options.sync.drain_s)
                case controller.End(name):
                    if (unit := self.units.get(name)) is not None:
                        unit.die()
                    self._setting.time.after(TELL_S, self._lost, name, action.incarnation, "lease_expired")

    # -------------------------------------------------------------- one learner after another

    def _start(self, name: str) -> None:
        """An incarnation is granted, its process comes up, and it begins once the syncer expects it."""
        options = self._setting.options
        incarnation = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self.controller.started(name, incarnation)
        self.drains.pop(name, None)
        self._say(LearnerRequested(name, incarnation, *options.place(name)))
        self._expect(name, incarnation)
        self._setting.time.after(0.1 + options.notice_s * self._chance.random(), self._up, name, incarnation)

    def _expect(self, name: str, incarnation: int) -> None:
        server = self.server
        if server is not None:
            event = self._announced(name, incarnation)
            self._tell(server, server.expect, event, partial(self._heard, name, incarnation))

    def _announced(self, name: str, incarnation: int) -> events_effects.Expect:
        options = self._setting.options
        region = options.place(name).region or ""
        return events_effects.Expect(name, incarnation, options.start_s, options.batch[name], region)

    def _heard(self, name: str, incarnation: int) -> None:
        """The syncer expects it: it may begin, once it is up."""
        if not self._expected.get((name, incarnation)):
            self._expected[name, incarnation] = True
            unit = self.units.get(name)
            if unit is not None and unit.incarnation == incarnation:
                self._setting.time.reach(TELL_S, unit, unit.begin)

    def _up(self, name: str, incarnation: int) -> None:
        if self.incarnations[name] != incarnation or self._is_gone(name, incarnation) or self.over:
            return
        unit = self.units[name] = Unit(self._setting, self._hosts[name], name, incarnation, self._ended)
        unit.wrong = self.misled.pop(name, False)
        if unit.wrong:
            self._setting.fired["wrong_manifest"] += 1
        unit.server = self.server
        self._say(LearnerStarted(name, incarnation, incarnation, name))
        self.controller.answered(name, incarnation)
        if self._expected.get((name, incarnation)):
            unit.begin()

    def _is_gone(self, name: str, incarnation: int) -> bool:
        return name in self._dead and self._dead[name][0] >= incarnation

    def crash(self, name: str, noticed: bool = False) -> bool:
        """A learner's process dies, which is noticed at once or after a while. False: there is none."""
        unit = self.units.get(name)
        if unit is None or not unit.alive:
            return False
        unit.die()
        wait_s = 0.0 if noticed else self._setting.options.notice_s * self._chance.random()
        self._setting.time.after(wait_s, self._lost, name, unit.incarnation, "died")
        return True

    def _lost(self, name: str, incarnation: int, cause: str) -> None:
        if self.controller.lost(self._setting.time.now, name, incarnation) is None:
            return
        self._say(LearnerLost(name, incarnation, cause, cause))
        self._bury(name, incarnation, {"died": "killed"}.get(cause, cause))
        if self.finished_at is None:
            self._advance()

    def _ended(self, unit: Unit, reason: str) -> None:
        """A learner's loop has returned, or failed."""
        self._setting.time.after(TELL_S, self._settle, unit, reason)

    def _settle(self, unit: Unit, reason: str) -> None:
        if reason.startswith("failed"):
            self._lost(unit.name, unit.incarnation, "failed")
        elif reason.startswith("drained"):
            self._left(unit.name, unit.incarnation)
        else:
            self.controller.finished(unit.name, unit.incarnation)

    def _left(self, name: str, incarnation: int) -> None:
        if self._is_gone(name, incarnation):
            return
        self.controller.left(name, incarnation)
        self._bury(name, incarnation, "drained")
        if self.finished_at is None:
            self._advance()

    def _bury(self, name: str, incarnation: int, reason: str) -> None:
        """Whatever syncer there is, or comes, has to know that it is gone."""
        self._dead[name] = (incarnation, reason)
        if self.server is not None:
            self._tell(self.server, self.server.tell, events_effects.Fence(name, incarnation, reason))

    # -------------------------------------------------------------- leaving and scaling

    def _drain(self, action: controller.Drain, deadline_s: float) -> None:
        event = events_effects.DrainRequested(action.learner, action.incarnation, action.reason, deadline_s)
        self.drains[action.learner] = event
        server = self.server
        if server is not None:
            answer = partial(self._dismissed, action.learner, action.incarnation)
            self._tell(server, server.drain, event, answer)

    def _dismissed(self, name: str, incarnation: int, told: bool) -> None:
        """One that was not told to leave has nothing to lose, and is ended at once."""
        if told or self._is_gone(name, incarnation):
            return
        unit = self.units.get(name)
        if unit is not None and unit.incarnation == incarnation:
            unit.die()
        self._setting.time.after(TELL_S, self._left, name, incarnation)

    def want(self, name: str) -> None:
        if name not in self.controller.wanted:
            options, pool = self._setting.options, self._setting.options.place(name).pool
            if name not in options.learners:
                there = sum(options.place(other).pool == pool for other in self.controller.wanted)
                self._say(PoolScaled(pool, there + 1, (name,), ()))
            self.controller.want(name)
            self._advance()

    def unwant(self, name: str) -> bool:
        """One learner fewer, if that leaves enough for the quorum."""
        if name not in self.controller.wanted or len(self.controller.wanted) <= self._setting.options.quorum:
            return False
        self._act(self.controller.unwant(name, "scaled down"))
        return True

    def preempt(self, name: str) -> bool:
        """Its host is to go: it leaves, and comes back."""
        actions = self.controller.drain(name, "its node is to go")
        self._act(actions)
        return bool(actions)

    def stop(self, reason: str) -> None:
        """The run is to end, wherever it is: every syncer that there is, or comes, has to know."""
        self._stopping = self._stopping or reason
        if self.server is not None:
            self._tell(self.server, self.server.tell, events_effects.StopRequested(reason))

    # -------------------------------------------------------------- the syncer

    def _look_at_syncer(self) -> None:
        server = self.server
        if server is None or not server.alive or server.running:
            self._frozen_since = None
            return
        now = self._setting.time.now
        self._frozen_since = now if self._frozen_since is None else self._frozen_since
        if now - self._frozen_since >= SYNCER_HANG_S:
            self._frozen_since = None
            self._setting.fired["zombie"] += 1
            self._mourned = server.epoch
            self._next_epoch()

    def mourn(self, server: Server) -> None:
        """The syncer's process is dead: that is noticed after a while."""
        wait_s = 0.1 + self._setting.options.notice_s * self._chance.random()
        self._setting.time.after(wait_s, self._succeed, server)

    def _succeed(self, server: Server) -> None:
        if server is self.server and not self.over and self._mourned < server.epoch:
            self._mourned = server.epoch
            self._next_epoch()

    def _next_epoch(self) -> None:
        """Try until one has opened its epoch; then tell it, and everybody."""
        server = self._begin_epoch(self._epoch + 1)
        if server is None:
            self._setting.time.after(0.1 + 0.2 * self._chance.random(), self._next_epoch)
            return
        self._epoch, self.server = server.epoch, server
        server.start()
        if server.epoch > 1:
            living = [pair for pair in self.incarnations.items() if not self._is_gone(*pair)]
            server.tell(events_effects.Living(tuple(self._announced(*pair) for pair in living)))
            for pair in living:
                self._heard(*pair)
        if self._stopping:
            server.tell(events_effects.StopRequested(self._stopping))
        for event in self.drains.values():
            if not self._is_gone(event.learner, event.incarnation):
                self._drain(controller.Drain(event.learner, event.incarnation, event.reason), event.deadline_s)
        for unit in self.units.values():
            if unit.alive:
                self._setting.time.reach(0.1 + self._chance.random(), unit, unit.reattach, server)

    def _tell(self, server: Server, what: Callable[..., None], *args: Any) -> None:
        self._setting.time.reach(TELL_S * (0.5 + self._chance.random()), server, what, *args)

    def _say(self, fact: Any) -> None:
        self._facts.append((self._setting.time.now, fact))
        if (trace := self._setting.trace) is not None:
            trace.line(self._setting.time.now, "orchestrator", 1, "says", told(fact))
