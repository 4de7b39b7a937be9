"""Checks what must happen in bounded time, and what must stay small, once a virtual second.

The liveness bounds, in virtual seconds from healing, with slow = the slowest learner's step at its longest:

    ready  = hang + 2 (notice + place + import + compile) + backoff + attach + join + lease + 2 slow
             by then every wanted learner steps. All this is from healing, or from the end of the back-offs under
             way, which double with each failure. It begins anew after the back-off of a learner that ends on a
             sample that cannot be read, which harms until two have ended on it: twice for each of `aside_max`
    step   = 4 slow + grace + read_timeout + 2 (resend + append + merge) + 8 messages
             for one syncer step, once they do
    commit = (H + tau) step, between two commits of a fragment
    steps  = step, between two steps of a learner, once they do
    silent = a resending + 2 step, until the oldest fact that a learner holds is durable, once they do
    share  = 2 H + tau syncer steps, once they do: every learner contributes at least once in so many; checked if the
             syncer reads every eligible learner and a round gives the slowest time to adopt and to step (H >= 8), and
             an update fits into H - 1 of the fastest's steps, as `plan` asks: through objects a trip takes a look
    ending = the deadlines of a session's last snapshot, of its learners, its parts and its logs
    end    = ready + (syncer steps left at most) step + exit, by then no learner is left; after the end exit + drain
"""

from __future__ import annotations

import math

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.oracle import Oracle
from chaos.simulation.profile import TOKENS, Options
from learners.protocol import fact_buffer
from orchestrator.lifecycle.checkpointer import SAVE_S, SYNCER_S
from orchestrator.lifecycle.orchestrator import CLOSE_S, LEAVE_S, SNAPSHOT_S
from orchestrator.planner.sizing.traffic import UPDATE
from orchestrator.regions.mail import POLL_S
from orchestrator.simulation.orchestrator_process import VirtualCluster
from orchestrator.simulation.process import Process
from outer.protocol.messages import STEPPING

WATCH_S = 1.0
RESEND_S = 1.0
ATTACH_S = 10.0  # one lost attempt that was under way when all healed
EXIT_S = 15.0
ENDING_S = SYNCER_S + SNAPSHOT_S + LEAVE_S + SAVE_S + CLOSE_S
QUIET_S = 120.0  # after the end: every timer has run out
EVENTS_PER_STEP_MAX = 40  # that the syncer handles for one step of one learner, with everything that comes of it
EVENTS_PER_S_MAX = 200  # and beside that
WAITING_MAX = 96  # reads, gifts and fetches of one learner: one that thaws may hear of 64 versions at once
ROUND_STEPS_MIN = 8  # the slowest takes 2.3 times as long as the fastest for a step
ENDED_S = 2.0  # until a process has ended that is to end
SERVED_S = 25.0  # until an orchestrator has found what an earlier one has left
JOURNAL_MAX = 2048  # messages of facts and records that wait for the store


class Bounds:
    """Reports every bound that is exceeded to the oracle. `given_up` is set once the run cannot end any more."""

    def __init__(self, options: Options, oracle: Oracle, invariants: Invariants, virtual: VirtualCluster) -> None:
        self.given_up = False
        self.processes: list[Process] = []
        self._options, self._oracle, self._invariants, self._virtual = options, oracle, invariants, virtual
        self._time = virtual.time
        self._handled: dict[int, int] = {}
        self._healed_at: float | None = None
        self._end_s = 0.0  # from then
        self._ready = False
        self._ending_s = 0.0  # for which a session has been about to end
        self._shared_from = 0  # the newest version then
        self._stepped: dict[str, tuple[tuple[int, int], float]] = {}  # (incarnation, step), and since when it is that
        self._held: dict[str, tuple[tuple[int, int], float]] = {}  # (incarnation, oldest fact), and since when
        self._committed: dict[int, float] = {}  # by fragment, when its newest commit was seen
        self._tips: list[int] = [0] * options.fragments
        self._served: tuple[Process | None, float] = None, 0.0  # the orchestrator, and since when it runs
        self._first_seen_s = 0.0  # that one
        self._wanted: set[str] = set()
        sync, messages_s = options.sync, options.latency_s + options.jitter_s
        slow = 1.1 * max(options.step_s.values())
        grace = sync.grace if isinstance(sync.grace, float | int) else slow
        self.step_s = 4 * slow + grace + sync.read_timeout_s + 8 * messages_s
        self.step_s += 2 * (RESEND_S + 1.5 * options.append_s + options.merge_s)
        up_s = options.notice_s + 0.1 + options.import_s + options.compile_s + options.warm_s
        lease_s = max(sync.lease_s, sync.lease_steps * slow)
        self.ready_s = options.hang_s + 2 * up_s + options.backoff_s + ATTACH_S + sync.join_s + lease_s + 2 * slow
        self.silent_s = 1.1 * fact_buffer.RESEND_S + 2 * self.step_s
        update_s = UPDATE * (POLL_S[1] + 1.5 * options.append_s) if options.joined else 0.0
        self._shared = sync.participants == "eligible" and sync.round_steps >= ROUND_STEPS_MIN
        self._shared &= update_s <= (sync.round_steps - 1) * min(options.step_s.values())
        self.commit_s = (sync.round_steps + sync.overlap_steps) * self.step_s
        # A commit takes a sample at least.
        self._steps_most = options.budget_tokens // TOKENS if options.budget_tokens else options.syncer_steps

    def start(self) -> None:
        self._time.after(WATCH_S, self._watch)

    def heal(self) -> None:
        self._oracle.spoilt.clear()
        units = self._virtual.controller.units.values()
        self._begin(max(self._time.now, *(unit.start_at for unit in units)))

    def _begin(self, healed_at: float) -> None:
        self._healed_at, self._ready = healed_at, False
        newest = max(tip.number for tip in self._oracle.tips)
        self._end_s = self.ready_s + (self._steps_most - newest) * self.step_s + EXIT_S
        self._committed = dict.fromkeys(range(self._options.fragments), self._healed_at)

    def end(self) -> None:
        """Run until every timer has fired: nothing may be left in the queue."""
        time = self._time
        time.run(time.now + QUIET_S)
        left = [each for each in time.queue if getattr(each[2], "alive", False)]
        if left and not self.given_up:
            self._broken("bounds.quiet", f"{len(left)} events are still to come {QUIET_S:.0f} s after the end")
        if (alive := [process.label for process in time.processes if process.alive]) and not self.given_up:
            self._broken("bounds.quiet", f"{', '.join(alive)} are alive {QUIET_S:.0f} s after the end")
        finished_at, healed_at = self._virtual.finished_at, self._healed_at
        if healed_at is None or finished_at is None or finished_at < healed_at:
            return
        for learner in self._virtual.learners.values():
            if learner.exited == self._virtual.finished and learner.shell._facts.recorded is None:
                self._broken("bounds.silent", f"{learner.label} ended with facts that are not durable")

    # -------------------------------------------------------------- once a second

    def _watch(self) -> None:
        virtual = self._virtual
        if virtual.over:
            return
        self._look_at_sizes()
        if self._healed_at is not None:
            self._ending_s = self._ending_s + WATCH_S if virtual.suspending and not virtual.paused else 0.0
            if self._ending_s > ENDING_S:
                self._give_up(f"a session has not ended after {self._ending_s:.0f} s: {self._phases()}")
            wanted, self._wanted = self._wanted, set(virtual.controller.wanted)
            if virtual.suspending or virtual.paused or not virtual.process.running or wanted != self._wanted:
                self._begin(self._time.now)
            for name, incarnation in self._oracle.spoilt[: 2 * self._options.aside_max]:
                unit = virtual.controller.units[name]
                if unit.incarnation.number <= incarnation + 1 and unit.start_at > self._healed_at:
                    self._begin(unit.start_at)
            self._look_at_progress(self._time.now - self._healed_at)
        self._time.after(WATCH_S, self._watch)

    def _look_at_sizes(self) -> None:
        virtual, options = self._virtual, self._options
        steps_s = sum(WATCH_S / options.step_s[name] for name in virtual.learners)
        limit = EVENTS_PER_S_MAX + EVENTS_PER_STEP_MAX * steps_s
        syncer = virtual.syncer
        for process in [*virtual.learners.values(), *([syncer] if syncer else [])]:
            handled = process.handled - self._handled.get(id(process), 0)
            if id(process) not in self._handled:
                self.processes.append(process)
            self._handled[id(process)] = process.handled
            if handled > limit:
                self._broken("bounds.spin", f"{process.label} handled {handled} events in a second, not {limit:.0f}")
        self._look_at_standbys_and_ranks()
        for learner in virtual.learners.values():
            self._invariants.reports(learner)
            if learner.alive and learner.waiting > WAITING_MAX:
                self._broken("bounds.waiting", f"{learner.label} has {learner.waiting} questions open")
        if syncer is not None:
            if syncer.waiting > JOURNAL_MAX:
                self._broken("bounds.journal", f"{syncer.waiting} messages wait for the store")
            if not syncer.serves:
                return
            self._invariants.leases(syncer)
            here, held = syncer.shell._bulk._here, {each.payload for each in syncer.machine.held}
            if here is not None and (over := here._payloads.keys() - held):
                self._broken("bounds.waiting", f"{syncer.label} keeps payloads that nothing merges: {over}")
            opened = syncer.machine.syncer_step - syncer.machine.committed_step
            within = 0 if options.sync.overlap == "strict" else options.sync.round_steps - 1
            if opened > (most := max(1, options.sync.overlap_steps, within)):
                self._broken("bounds.open", f"{opened} syncer steps are open, not {most} at most")

    def _look_at_standbys_and_ranks(self) -> None:
        """No standby outlasts its place, and no learner one of its ranks, but as a session begins or ends."""
        virtual, now = self._virtual, self._time.now
        orchestrator = virtual.process
        if new := self._served[0] is not orchestrator:
            self._first_seen_s = now
        if new or not orchestrator.running or virtual.unseen_nodes or virtual.suspending:
            self._served = orchestrator, now
        for standby in virtual.standbys:
            at, by = virtual.places.given_back.get(standby.name, (math.inf, None))
            own = standby.made_at > self._first_seen_s  # or left by an earlier one, which takes a while to find
            late = standby.alive and not standby.incarnation and standby.made_at < at
            late = late and now > max(at + ENDED_S, self._served[1] + (ENDED_S if own else SERVED_S))
            if late and by is orchestrator.loop and orchestrator.running:
                self._broken("bounds.standbys", f"a standby of {standby.name} is there, whose place was given back")
        if now < self._served[1] + SERVED_S or virtual.syncer is None or not virtual.syncer.serves:
            return
        for rank in virtual.ranks:
            learner = rank.leader
            if learner.running and learner.phase == STEPPING and rank.died_at < now - self._options.notice_s - ENDED_S:
                self._broken("bounds.ranks", f"{learner.label} is there {now - rank.died_at:.1f} s after {rank.label}")

    # -------------------------------------------------------------- once all is healed

    def _look_at_progress(self, since_s: float) -> None:
        virtual, options = self._virtual, self._options
        self._note_commits()
        if since_s > self._end_s:
            newest = max(tip.number for tip in self._oracle.tips)
            self._give_up(f"the run is at version {newest}, {since_s:.0f} s after all was healed")
            return
        if virtual.finished_at is not None:
            # An island whose rank has missed a call hangs in its step: no healing helps it, nor is it a loss any more.
            leave_s = max(options.sync.drain_s, LEAVE_S if options.ranks else 0.0)
            if self._time.now > max(virtual.finished_at, self._healed_at or 0.0) + EXIT_S + leave_s:
                self._give_up("learners are there long after the end: " + self._phases())
            return
        syncer = virtual.syncer
        ends = syncer is not None and syncer.serves and syncer.machine.finished  # no orchestrator has seen it yet
        if since_s <= self.ready_s or ends:
            return
        if not self._ready:
            self._ready = True
            wanted = virtual.controller.wanted
            away = [name for name in wanted if not self._steps(name)]
            if away:
                self._broken("bounds.ready", f"{', '.join(away)} of {len(wanted)} do not step: {self._phases()}")
            for name, learner in virtual.learners.items():
                asked = virtual.controller.units[name].incarnation if learner.alive else None
                if asked is not None and asked.leaving and asked.number == learner.incarnation:
                    self._broken("bounds.ready", f"{name} {asked.number} was asked to leave, and is there")
            self._shared_from = max(tip.number for tip in self._oracle.tips)
        self._look_at_steps()
        self._look_at_facts()
        self._look_at_shares()

    def _look_at_steps(self) -> None:
        """Every learner goes on stepping."""
        now = self._time.now
        for name in self._virtual.controller.wanted:
            learner = self._virtual.learners[name]
            if (done := (learner.incarnation, learner.values.step)) != self._stepped.get(name, (done, 0.0))[0]:
                self._stepped[name] = (done, now)
            since_s = now - self._stepped.setdefault(name, (done, now))[1]
            if since_s > self.step_s + WATCH_S:
                self._broken("bounds.steps", f"{learner.label} has not finished a step for {since_s:.0f} s")

    def _look_at_facts(self) -> None:
        """Nobody is silenced: every learner's facts go on becoming durable."""
        now = self._time.now
        for name in self._virtual.controller.wanted:
            learner = self._virtual.learners[name]
            facts = learner.shell._facts
            held = (learner.incarnation, facts.oldest)
            if held != self._held.get(name, (held, 0.0))[0] or facts.recorded is not None:
                self._held[name] = (held, now)
            since_s = now - self._held.setdefault(name, (held, now))[1]
            if since_s > self.silent_s:
                self._broken(
                    "bounds.silent", f"fact {held[1]} of {name} {held[0]} has not become durable for {since_s:.0f} s"
                )

    def _look_at_shares(self) -> None:
        """Every learner that is fast enough to be read in every round is in one commit of every two rounds."""
        sync, oracle = self._options.sync, self._oracle
        newest = max(tip.number for tip in oracle.tips)
        if not self._shared:
            return
        for name in self._virtual.controller.wanted:
            since = newest - max(self._shared_from, oracle.shared.get(name, 0))
            if since > 2 * sync.round_steps + max(1, sync.overlap_steps):
                self._broken("bounds.share", f"{name} has contributed to nothing for {since} syncer steps")

    def _note_commits(self) -> None:
        now = self._time.now
        for fragment, tip in enumerate(self._oracle.tips):
            if tip.number != self._tips[fragment]:
                self._tips[fragment], self._committed[fragment] = tip.number, now
            waited_s = now - max(self._committed[fragment], (self._healed_at or 0.0) + self.ready_s)
            if waited_s > self.commit_s and self._virtual.finished_at is None:
                self._give_up(f"fragment {fragment} has not committed for {waited_s:.0f} s: {self._phases()}")

    def _steps(self, name: str) -> bool:
        learner = self._virtual.learners.get(name)
        return learner is not None and learner.running and learner.phase == STEPPING

    def _phases(self) -> str:
        learners = self._virtual.learners.values()
        return ", ".join(f"{each.label} {each.phase if each.alive else 'dead'}" for each in learners)

    def _give_up(self, reason: str) -> None:
        self._broken("bounds.live", reason)
        self.given_up = True
        self._time.halted = True

    def _broken(self, check: str, reason: str) -> None:
        self._oracle.broken(check, reason)
