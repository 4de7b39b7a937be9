"""One run: both production machines under a virtual clock in a hostile world, from one seed.

The safety phase is under faults; then everything heals, and in the liveness phase the run has to get to its end, in
bounded time. Everything is checked on the way, and the history at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from chaos.simulation.checks.bounds import Bounds
from chaos.simulation.checks.facts import kept
from chaos.simulation.checks.history import Digest, digest_of, judged
from chaos.simulation.checks.invariants import Invariants, waits
from chaos.simulation.checks.oracle import Oracle, Violation
from chaos.simulation.checks.values import LearnerValues, SyncerValues
from chaos.simulation.faults.schedule import FaultSchedule
from chaos.simulation.ports.context import HostileContext
from chaos.simulation.ports.damage import Damage
from chaos.simulation.ports.durations import DrawnDurations
from chaos.simulation.ports.network import HostileNetwork, uplinks
from chaos.simulation.ports.storage import Store, Write, Writer
from chaos.simulation.profile import MANIFEST, TOKENS, Options, between, draw, stream
from learners.protocol import learner as learners
from orchestrator.simulation.context import SimLearner, Trace
from orchestrator.simulation.process import Host
from orchestrator.simulation.supervisor import Supervisor
from orchestrator.simulation.syncer_process import SyncerProcess
from orchestrator.simulation.timeline import Timeline
from outer.protocol import recovery
from outer.protocol import syncer as syncers
from outer.protocol.facts import Committed, SetAside, SpanGranted, SpanReturned

REASONED = frozenset({"Refused", "ReadFailed", "DonorFailed", "LearnerFenced", "LearnerLost", "AdoptionRefused"})


def make_syncer(**given: Any) -> Any:
    """The production machine; looked up when it is made, so that a mutant can take its place."""
    return syncers.Syncer(**given)


def make_learner(**given: Any) -> Any:
    return learners.Learner(**given)


def _learner(options: Options, make: Callable[..., Any], name: str, incarnation: int) -> Any:
    return make(
        name=name,
        incarnation=incarnation,
        config=options.sync,
        fragments=options.fragments,
        batch_size=options.batch[name],
        span_steps=options.span_steps,
        start_s=options.start_s,
        ahead_s=options.ahead_s,
    )


@dataclass(frozen=True)
class Outcome:
    """The outcome of one seed."""

    seed: int
    profile: str
    violations: tuple[Violation, ...]
    digest: Digest
    events: int  # handed to machines
    virtual_s: float
    commits: int
    fault_counts: dict[str, int]  # by kind of fault
    facts: dict[str, int]  # by kind of fact, and by reason where it has one


class Cluster:
    """Hosts, network, store and supervisor of one run."""

    def __init__(
        self,
        options: Options,
        make_syncer: Callable[..., Any] = make_syncer,
        make_learner: Callable[..., Any] = make_learner,
        trace: Trace | None = None,
    ) -> None:
        self.options = options
        time, fault_counts, hosts = Timeline(), Counter[str](), stream(options.seed, "hosts")
        oracle, clocks = Oracle(options), stream(options.seed, "clocks")
        self.hosts = {
            name: Host(name, between(clocks, 0.99, 1.01), between(clocks, 0.0, 1e5), between(clocks, -0.05, 0.05))
            for name in ("syncer", *options.step_s)
        }
        self.store = Store(stream(options.seed, "store"), fault_counts, options.append_s, self._on_durable)
        damage = Damage(options, time, oracle, hosts, fault_counts)
        self.context = HostileContext(
            time=time,
            network=HostileNetwork(options, time, stream(options.seed, "network"), fault_counts, trace),
            durations=DrawnDurations(options, time, hosts, stream(options.seed, "supervisor"), fault_counts),
            sync=options.sync,
            specs={
                name: SimLearner(self.hosts[name], options.batch[name], *options.place(name)) for name in options.step_s
            },
            manifest=MANIFEST,
            model=SyncerValues(oracle, damage, options.sync.base_window > 0),
            make_learner=partial(_learner, options, make_learner),
            make_values=lambda key: LearnerValues(key, oracle),
            make_journal=partial(Writer, self.store),
            faults=damage,
            observer=Invariants(options, oracle),
            fault_counts=fault_counts,
            trace=trace,
            options=options,
            oracle=oracle,
            rng=hosts,
            in_flight_max=options.in_flight_max,
        )
        self.supervisor = Supervisor(self.context, options.learners, self._begin_epoch, options.quorum)
        # The stream's name is part of what a seed means.
        rng = stream(options.seed, "weather")
        self.schedule = FaultSchedule(self.context, rng, self.hosts, self.store, self.supervisor)
        self.bounds = Bounds(options, oracle, self.context.observer, self.supervisor)
        self.crash_after = math.inf  # effects of the first epoch
        self._make_syncer = make_syncer

    def run(self) -> None:
        """Safety phase, healing, liveness phase, end."""
        time, options = self.context.time, self.options
        if self.context.trace is not None:
            self.context.trace(0.0, "options", options)
        self.supervisor.start()
        self.bounds.start()
        time.run(options.storm_s)
        self.schedule.heal()
        self.bounds.heal()
        while not self.supervisor.over and not self.bounds.given_up:
            time.run(time.now + 1.0)
        self.bounds.end()

    # -------------------------------------------------------------- the syncer's epochs

    def _begin_epoch(self, epoch: int) -> SyncerProcess | None:
        """Read the journal and open the next epoch, if what was read is all there is."""
        seen = self.store.read()
        if not self.store.open(epoch, seen):
            return None
        options = self.options
        values = list(self.context.oracle.origin)
        appended = [(write.epoch, each) for write in seen for each in write.group.records]
        for _, each in appended:
            if isinstance(each.record, Committed):
                values[each.record.fragment] = each.proposal.version
        entries = [recovery.Entry(opened, each.sequence, each.record) for opened, each in appended]
        machine = self._make_syncer(
            epoch=epoch,
            config=options.sync,
            fragments=options.model,
            learners={name: options.batch[name] for name in options.learners},
            quorum=options.quorum,
            span_steps=options.span_steps,
            budget=options.budget,
            manifest=MANIFEST,
            recovered=recovery.recover(entries, options.fragments) if epoch > 1 else None,
            ahead_s=options.ahead_s,
            aside_max=options.aside_max,
            uplinks=uplinks(options.sync, options.model) if options.sync.adaptive else None,
            sample_tokens=TOKENS,
        )
        self.context.oracle.recovered(epoch, values, list(machine.versions))
        on_death = self.supervisor.on_syncer_death
        syncer = SyncerProcess(self.context, self.hosts["syncer"], epoch, machine, values, on_death)
        if epoch == 1:
            syncer.crash_at = self.crash_after
        return syncer

    def _on_durable(self, write: Write) -> None:
        """A group became durable."""
        self.context.log.append(write.group)
        for append in write.group.records:
            record = append.record
            if isinstance(record, Committed):
                self.context.oracle.committed(record, append.proposal)
            elif isinstance(record, SpanGranted):
                self.context.oracle.lent(record)
            elif isinstance(record, SpanReturned | SetAside):
                self.context.oracle.returned(record)


def simulate(
    seed: int,
    profile: str = "mixed",
    *,
    make_syncer: Callable[..., Any] = make_syncer,
    make_learner: Callable[..., Any] = make_learner,
    trace: Trace | None = None,
) -> Outcome:
    """Run one seed, with these machines."""
    return play(draw(seed, profile), make_syncer, make_learner, trace)


def play(
    options: Options,
    make_syncer: Callable[..., Any] = make_syncer,
    make_learner: Callable[..., Any] = make_learner,
    trace: Trace | None = None,
    crash_after: float = math.inf,
) -> Outcome:
    """Run these options, and check the outcome.

    `crash_after`: the first epoch dies after so many effects.
    """
    cluster = Cluster(options, make_syncer, make_learner, trace)
    cluster.crash_after = crash_after
    violations: list[Violation] = []
    try:
        cluster.run()
    except BrokenPipeError:
        raise  # nobody reads the trace any more
    except Exception as error:  # an assertion of a machine or its shell is a violation
        violations.append(_raised("machine.raises", error))
    try:
        waits(cluster.options, cluster.context.oracle, cluster.context.facts)
        violations += kept(cluster.context, cluster.supervisor)
        violations += judged(cluster.context.events(), cluster.context.fault_counts)
    except Exception as error:  # so that the following seeds still run
        violations.append(_raised("checks.raise", error))
    return _outcome(cluster, violations)


def _raised(check: str, error: Exception) -> Violation:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{frame.tb_lineno}" if frame is not None else ""
    return Violation(check, f"{type(error).__name__} at {where}: {error}")


def _outcome(cluster: Cluster, violations: list[Violation]) -> Outcome:
    context, options = cluster.context, cluster.options
    facts: Counter[str] = Counter()
    for said in context.facts.values():
        for _, fact in said:
            name = type(fact).__name__
            facts[name] += 1
            if name in REASONED:
                facts[f"{name} {fact.cause if name == 'LearnerLost' else fact.reason}"] += 1
    return Outcome(
        options.seed,
        options.profile,
        (*context.oracle.violations, *violations),
        digest_of(context),
        sum(process.handled for process in cluster.bounds.processes),
        context.time.now,
        context.oracle.checked,
        dict(sorted(context.fault_counts.items())),
        dict(sorted(facts.items())),
    )
