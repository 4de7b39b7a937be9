"""How the machines must behave, beside what their values hold: who steps, gives, leaves, and how long is waited.

`Invariants` watches the processes as it happens; `waits` judges the facts of a run that is over. Violations go to the
oracle.
"""

from __future__ import annotations

import math
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from chaos.simulation.checks.oracle import Oracle
from chaos.simulation.profile import Options
from learners.protocol.events_effects import Donate
from learners.protocol.learner import HOLD_S
from orchestrator.eventlog.events import Event
from orchestrator.simulation.context import Key, Observer
from orchestrator.simulation.learner_process import STRANGE, LearnerProcess
from orchestrator.simulation.objects import StoreBroken
from orchestrator.simulation.process import Process
from orchestrator.simulation.syncer_process import SyncerProcess
from outer.config import SyncConfig
from outer.journal.groups import SYNCER
from outer.protocol.events_effects import Append, Effect, Emit, Fence, Publish
from outer.protocol.events_effects import Event as Told
from outer.protocol.facts import Committed, LearnerFenced, Refused, StateRebuilt, StepOpened, StepPassed, StepReopened
from outer.protocol.links import EARLY
from outer.protocol.messages import (
    COMPILING,
    DRAINING,
    IMPORTING,
    STARTING,
    STEPPING,
    STOPPED,
    Attach,
    Contribution,
    Grant,
    ReadRequest,
    Report,
)

FASTEST = 0.9 * 0.97  # of a learner's usual step: by so much steps vary, and clocks differ
UNEVEN = frozenset({"clock_rate", "clock_jump", "wall_skew", "wall_jump", "zombie"})
SLACK_S = 1.0  # between two looks
WAKE_S = 0.01  # a timer comes so late at most
SOONER = frozenset({"late", "doubled", "stale_incarnation", "stale_epoch", "stale_base"})  # checked before counters


class Heard(NamedTuple):
    """The reports of one incarnation, as seen so far."""

    step: int
    sequence: int  # of the newest that arrived
    lease_until: float  # as of that one, by this syncer's clock


SILENT = Heard(0, 0, math.inf)


@dataclass
class _Seen:
    """The observations of one epoch."""

    opened: dict[int, dict[Key, int]] = field(default_factory=dict)  # by syncer step: what each had reported by then
    heard: dict[Key, Heard] = field(default_factory=dict)
    strangers: set[Key] = field(default_factory=set)  # whose reports were refused


class Invariants(Observer):
    """`oracle` collects the violations."""

    def __init__(self, options: Options, oracle: Oracle) -> None:
        self._options, self._broken, self._oracle = options, oracle.broken, oracle
        # In strict overlap a learner's step counts by its number, not by being a further one.
        self._quorum = 0 if options.sync.overlap == "strict" else options.quorum
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)  # by epoch

    # -------------------------------------------------------------- learners

    def steps(self, learner: LearnerProcess) -> None:
        """No learner steps while it joins, leaves or has stopped."""
        if learner.phase != STEPPING:
            self._broken("invariants.steps", f"{learner.label} steps while it is {learner.phase}")
        if learner.elders:
            elders, learner.elders = learner.elders, []
            # Frozen ranks that another orchestrator has left end on thawing.
            ours = [each for each in elders if each.alive and (each.running or each.started_by is learner.started_by)]
            if there := [each.label for each in ours]:
                self._broken("invariants.ranks", f"{learner.label} steps beside {', '.join(there)}")

    def gives(self, learner: LearnerProcess, effect: Donate) -> None:
        """A donor is whole, finite as far as it knows, and has seen the syncer step that the joiner was told."""
        name, request = learner.label, effect.request
        if effect.syncer_step < request.syncer_step:
            told = f"{request.joiner} was told {request.syncer_step}"
            self._broken("invariants.gives", f"{name} gave its state at syncer step {effect.syncer_step}, {told}")
        if not learner.values.whole:
            self._broken("invariants.gives", f"{name} gave its state before every fragment of it came from the syncer")
        if learner.device.trainer.known_poisoned:
            self._broken("invariants.gives", f"{name} gave a state of which it knew that it is not finite")

    def leaves(self, learner: LearnerProcess, reason: str) -> None:
        """A drained learner holds nothing that a commit could still take."""
        if reason == "drained" and (left := learner.values.unmerged):
            self._broken("invariants.leaves", f"{learner.label} left as drained with steps on fragments {left}")

    def reports(self, learner: LearnerProcess) -> None:
        """A loop reports after every step, and twice a second while it waits; before that, on entering a phase."""
        if not learner.running or not learner.training or learner.epoch is None:  # until it is welcome nobody hears it
            return
        if learner.phase in (STARTING, IMPORTING, COMPILING, STOPPED):
            return
        silent_s = learner.time.now - max(learner.reported_at, learner.stepped_at, learner.thawed_at)
        if silent_s > 2 * HOLD_S + SLACK_S:
            self._broken("invariants.reports", f"{learner.label} has reported nothing for {silent_s:.1f} s")

    # -------------------------------------------------------------- the syncer, as it acts

    def begun(self, syncer: SyncerProcess) -> None:
        if syncer.epoch == self._oracle.epoch:  # else it was frozen while it began, and is fenced
            values = map(self._oracle.values.of, syncer.values())
            self._oracle.recovered(syncer.epoch, list(values), list(syncer.machine.versions))

    def raised(self, process: Process, error: BaseException) -> None:
        """A shell's own work fails only where the store's client does."""
        if not isinstance(error, StoreBroken):
            where = traceback.extract_tb(error.__traceback__)[-1:]
            at = "".join(f" at {each.filename.rsplit('/', 2)[-1]}:{each.lineno}" for each in where)
            self._broken("shell.raises", f"{process.label}: {type(error).__name__}{at}: {error}")

    def appended(self, syncer: SyncerProcess, effect: Append) -> None:
        self._oracle.appends[syncer.epoch, effect.sequence] = effect

    def published(self, syncer: SyncerProcess, effect: Publish) -> None:
        proposal = self._oracle.proposed[syncer.epoch, effect.fragment, effect.version]
        self._oracle.published(syncer.epoch, proposal.version)

    def emitted(self, syncer: SyncerProcess, fact: Any) -> None:
        kind = type(fact)
        if kind is StepPassed:
            self._quorate(syncer, fact.syncer_step)
        elif kind is StateRebuilt and syncer.epoch == self._oracle.epoch:
            self._oracle.rebuilt(fact)
        elif kind is StepOpened or kind is StepReopened:
            seen, step = self._seen[syncer.epoch], fact.syncer_step
            kept = set().union(*(each.reported for each in syncer.machine._open if each.syncer_step == step))
            before = seen.opened.get(step, {})
            now = {key: before.get(key, 0) if key[0] in kept else heard.step for key, heard in seen.heard.items()}
            seen.opened[step] = now

    def sent(self, syncer: SyncerProcess, message: Any) -> None:
        kind = type(message)
        if kind is ReadRequest and message.attempt != EARLY:
            self._quorate(syncer, message.syncer_step)
        elif kind is Grant:
            self._oracle.granted(syncer.epoch, message.span)

    def _quorate(self, syncer: SyncerProcess, syncer_step: int) -> None:
        """At least K reported a further step after this one opened, or reopened without their reports.

        One that leaves has none to report.
        """
        seen, peers = self._seen[syncer.epoch], syncer.peers
        opened = seen.opened[syncer_step]
        # One that steps may attach yet.
        newest = dict(sorted([*(learner.key for learner in peers.values()), *seen.heard]))
        leaving = {name for name, learner in peers.items() if learner.phase in (DRAINING, STOPPED)}
        reported = sum(
            seen.heard.get(key, SILENT).step > opened.get(key, 0) or key[0] in leaving for key in newest.items()
        )
        if reported < self._quorum:
            went = f"syncer step {syncer_step} went on with {reported} reports"
            self._broken("invariants.quorum", f"{went}, the quorum is {self._quorum}")

    def welcomed(self, message: Attach) -> None:
        """No learner of another recipe is welcome."""
        if message.manifest == STRANGE:
            name = f"{message.learner} {message.incarnation}"
            self._broken("invariants.attaches", f"{name} is welcome with another recipe")

    def concluded(self, thetas: Sequence[Any]) -> None:
        """A run's result is the newest durable version of every fragment."""
        if any(self._oracle.values.of(theta) is not tip for theta, tip in zip(thetas, self._oracle.tips, strict=True)):
            self._broken("oracle.durable", "the run ends with versions that are not the newest durable ones")

    def told(self, syncer: SyncerProcess, event: Told, effects: list[Effect]) -> None:
        """A fence ends the incarnation that it names, and no other."""
        if not isinstance(event, Fence) or not syncer.serves:
            return
        named = f"{event.learner} {event.incarnation}"
        for row in syncer.machine.view(syncer.clock()):
            if row["alive"] and (row["name"], row["incarnation"]) == (event.learner, event.incarnation):
                self._broken("invariants.fences", f"{named} is held for alive after its fence")
        for effect in effects:
            if isinstance(effect, Emit) and isinstance(effect.fact, LearnerFenced):
                ended = f"{effect.fact.learner} {effect.fact.incarnation}"
                if named != ended:
                    self._broken("invariants.fences", f"the fence of {named} ended {ended}")

    def reporting(self, syncer: SyncerProcess, report: Report) -> Callable[[], None] | None:
        """A report of one incarnation is no sign of life of another."""
        key = report.learner, report.incarnation
        if len(report.counters) == self._options.fragments:  # any other is refused
            heard = self._seen[syncer.epoch].heard
            before = heard.get(key, SILENT)
            until = syncer.clock() + report.lease_s if report.sequence > before.sequence else before.lease_until
            newest = max(before.sequence, report.sequence)
            heard[key] = Heard(max(before.step, report.step), newest, until)
        there: Any = syncer.shell._peers.get(report.learner)
        if there is not None and (report.learner, there.incarnation) == key:
            return None
        return partial(self._reported, syncer, report, _known(syncer, report.learner))

    def _reported(self, syncer: SyncerProcess, report: Report, before: tuple[int, float]) -> None:
        incarnation, silent_s = _known(syncer, report.learner)
        if incarnation == before[0] != report.incarnation and silent_s < before[1]:
            sign = f"a report of {report.learner} {report.incarnation}"
            self._broken("invariants.hears", f"{sign} was taken for a sign of life of {incarnation}")

    def answering(self, syncer: SyncerProcess, contribution: Contribution) -> Callable[[list[Effect]], None] | None:
        payload = syncer.payload(contribution) if self._oracle.garbled else None
        garbled = None if payload is None else self._oracle.garbled.get(id(self._oracle.values.of(payload)))
        if garbled is None:
            return None
        return lambda effects: self.refuses(syncer, contribution, effects, SOONER | {garbled[1]})

    def refuses(self, syncer: SyncerProcess, event: Told, effects: list[Effect], reasons: frozenset[str]) -> None:
        """An impossible message is refused for one of these reasons, a report once; without one, passed over."""
        if not syncer.serves:
            return
        facts = [effect.fact for effect in effects if isinstance(effect, Emit)]
        said = {fact.reason for fact in facts if isinstance(fact, Refused)}
        if isinstance(event, Report):
            strangers = self._seen[syncer.epoch].strangers
            if not said and (event.learner, event.incarnation) in strangers:
                return
            strangers.add((event.learner, event.incarnation))
        if not said <= reasons or bool(said) != bool(reasons):
            due = f"due is one of {sorted(reasons)}"
            self._broken("invariants.refuses", f"{event} was refused for {sorted(said)}, {due}")

    # -------------------------------------------------------------- the syncer, once a second

    def leases(self, syncer: SyncerProcess) -> None:
        """A learner that is silent for longer than its newest report was good for does not count as alive."""
        now, heard_of = syncer.clock(), self._seen[syncer.epoch].heard
        for row in syncer.machine.view(now):
            heard = heard_of.get((row["name"], row["incarnation"]))
            if not row["alive"] or row["phase"] == STARTING or heard is None:
                continue
            if now > heard.lease_until + SLACK_S:
                silent = f"{row['name']} {row['incarnation']} is held for alive {now - heard.lease_until:.1f} s"
                self._broken("invariants.leases", f"{silent} after its lease")


def _known(syncer: SyncerProcess, learner: str) -> tuple[int, float]:
    """The incarnation that the syncer knows, and for how long it has been silent, in seconds."""
    for row in syncer.machine.view(syncer.clock()):
        if row["name"] == learner and row["lease_age_s"] is not None:
            return row["incarnation"], row["lease_age_s"]
    return 0, math.inf


def waits(options: Options, oracle: Oracle, log: Sequence[Event]) -> None:
    """Steps open no sooner than learners step, and no grace outlasts what was granted.

    Not judged where the syncer's clocks do not run evenly, or it freezes.
    """
    if UNEVEN & {fault.kind for fault in options.faults}:
        return
    fastest = FASTEST * min(options.step_s.values())
    grace = options.sync.grace
    longest = math.inf if isinstance(grace, str) else grace  # no record says what adaptive grace granted
    for epoch in sorted({event.incarnation for event in log if event.writer == SYNCER}):
        said = [(event.at, event.fact) for event in log if (event.writer, event.incarnation) == (SYNCER, epoch)]
        _waits(options.sync, oracle, epoch, said, fastest, longest)


def _waits(
    sync: SyncConfig, oracle: Oracle, epoch: int, facts: Sequence[tuple[float, Any]], fastest: float, longest: float
) -> None:
    """Judge the commits of one epoch but for those that it repeats of an earlier one."""
    lacked = {each.syncer_step for _, each in facts if isinstance(each, StepReopened) and "usable" in each.reason}
    broken, opened_at, known = oracle.broken, float("-inf"), False  # before the first commit no step time may be known
    for at, fact in facts:
        if isinstance(fact, Committed) and fact.syncer_step not in lacked and fact.grace_s > longest + WAKE_S:
            given = f"syncer step {fact.syncer_step} waited {fact.grace_s:.3f} s after its quorum"
            broken("invariants.waits", f"{given}, granted were at most {longest:.3f} s")
        if isinstance(fact, StepOpened):
            if known and sync.pacing == "clock" and at - opened_at < fastest:
                since = f"syncer step {fact.syncer_step} opened {at - opened_at:.3f} s after the one before"
                broken("invariants.waits", f"{since}, no learner steps in less than {fastest:.3f} s")
            opened_at = at
        known = known or (isinstance(fact, Committed) and fact.epoch == epoch)
