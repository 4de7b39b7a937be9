"""One run: the production shells and machines under a virtual clock in a hostile world, from one seed.

The safety phase is under faults; then everything heals, and in the liveness phase the run has to get to its end, in
bounded time. Everything is checked on the way, and the history at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from chaos.simulation.checks import history
from chaos.simulation.checks.bounds import Bounds
from chaos.simulation.checks.facts import kept
from chaos.simulation.checks.invariants import Invariants, waits
from chaos.simulation.checks.oracle import Oracle, Violation
from chaos.simulation.checks.values import LearnerValues, SyncerValues
from chaos.simulation.faults.schedule import TAIL_LOST, FaultSchedule
from chaos.simulation.ports.context import HostileContext
from chaos.simulation.ports.damage import Damage
from chaos.simulation.ports.durations import DrawnDurations
from chaos.simulation.ports.network import HostileNetwork
from chaos.simulation.ports.storage import Header, Store
from chaos.simulation.profile import FAR, HOME, SHARDS, SHARED, Options, between, draw, stream
from learners.config import DataConfig
from orchestrator.analysis.database import Used
from orchestrator.eventlog.compactor import Compactor
from orchestrator.eventlog.events import Event
from orchestrator.simulation import log as log_of
from orchestrator.simulation.context import SimLearner, Trace
from orchestrator.simulation.orchestrator_process import VirtualCluster
from orchestrator.simulation.process import Host
from orchestrator.simulation.timeline import Timeline
from outer.config import OuterConfig
from outer.journal.groups import OPENING
from outer.journal.journal import inspect
from outer.journal.journal_writer import FOLDER
from outer.protocol.facts import Committed, SetAside, SpanGranted, SpanReturned
from outer.protocol.manifest import manifest
from outer.spec import SyncerSpec

SHARD_LEASE_S = 2.0
REASONED = frozenset({"Refused", "ReadFailed", "DonorFailed", "LearnerFenced", "LearnerLost", "AdoptionRefused"})


@dataclass(frozen=True)
class Outcome:
    """The outcome of one seed."""

    seed: int
    profile: str
    violations: tuple[Violation, ...]
    digest: str
    events: int  # handed to machines
    virtual_s: float
    commits: int
    fault_counts: dict[str, int]  # by kind of fault
    facts: dict[str, int]  # by kind of fact, and by reason where it has one


class Cluster:
    """Hosts, network, store and cluster of one run."""

    def __init__(self, options: Options, trace: Trace | None = None) -> None:
        self.options = options
        time, fault_counts, hosts = Timeline(), Counter[str](), stream(options.seed, "hosts")
        oracle, clocks = Oracle(options), stream(options.seed, "clocks")
        self.hosts = {
            name: Host(name, between(clocks, 0.99, 1.01), between(clocks, 0.0, 1e5), between(clocks, -0.05, 0.05))
            for name in ("syncer", *options.step_s, *SHARDS)
        }
        apart = stream(options.seed, "clocks of ranks")
        others = [other for name in options.ranks for other in options.others(name)]
        ranks = {name: Host(name, between(apart, 0.99, 1.01)) for name in others}
        self.store = Store(stream(options.seed, "store"), fault_counts, options.append_s, self._taken)
        damage = Damage(options, time, oracle, hosts, fault_counts, self.store)
        chance = stream(options.seed, "supervisor")
        self.context = HostileContext(
            time=time,
            network=HostileNetwork(options, time, stream(options.seed, "network"), fault_counts, trace, damage),
            durations=DrawnDurations(options, time, hosts, chance, fault_counts, self.store),
            sync=options.sync,
            data=DataConfig(span_steps=options.span_steps, ahead_s=options.ahead_s),
            specs={
                name: SimLearner(
                    self.hosts[options.hosts.get(name, name)],
                    options.batch[name],
                    *options.place(name),
                    options.tokens[name],
                    tuple(ranks[other] for other in options.others(name)),
                    int(name in options.standbys),
                )
                for name in options.step_s
            },
            manifest=manifest(SHARED, options.model, "", None),
            model=SyncerValues(oracle, damage, options.model, options.sync.base_window > 0),
            make_values=lambda key: LearnerValues(key, oracle),
            store=self.store,
            faults=damage,
            observer=Invariants(options, oracle),
            fault_counts=fault_counts,
            trace=trace,
            options=options,
            oracle=oracle,
            rng=hosts,
            in_flight_max=options.in_flight_max,
            joined=FAR if options.joined else "",
            opportunistic=options.opportunistic,
            saving=options.every_s > 0.0 or options.profile == "ended",
            shard_hosts=[self.hosts[name] for name in SHARDS],
        )
        spec = SyncerSpec(
            epoch=0,
            sync=options.sync,
            outer=OuterConfig(),
            learners={name: options.batch[name] for name in options.learners},
            quorum=options.quorum,
            span_steps=options.span_steps,
            ahead_s=options.ahead_s,
            budget=options.budget,
            shared=SHARED,
            code="",
            store=self.store,
            segmenter=Compactor(self.store, "syncer"),
            region=HOME,
            shards=options.shards,
            shard_lease_s=SHARD_LEASE_S,
            aside_max=options.aside_max,
        )
        learners, host = options.learners, self.hosts["syncer"]
        self.virtual = VirtualCluster(self.context, learners, spec, host, options.quorum, options.every_s, shows=True)
        # The stream's name is part of what a seed means.
        rng = stream(options.seed, "weather")
        self.schedule = FaultSchedule(self.context, rng, self.hosts, self.store, self.virtual)
        self.bounds = Bounds(options, oracle, self.context.observer, self.virtual)

    def run(self) -> None:
        """Safety phase, healing, liveness phase, end."""
        time, options = self.context.time, self.options
        if self.context.trace is not None:
            self.context.trace(0.0, "options", options)
        self.virtual.start()
        self.bounds.start()
        time.run(options.storm_s)
        self.schedule.heal()
        self.bounds.heal()
        while not self.virtual.over and not self.bounds.given_up:
            time.run(time.now + 1.0)
        self.bounds.end()

    def _taken(self, header: Header) -> None:
        """The store has taken a group of the journal: its records are durable, unless a later epoch has opened, which
        removed what stood in their way.
        """
        oracle = self.context.oracle
        if header["kind"] == OPENING:
            oracle.epoch = max(oracle.epoch, header["epoch"])
        if header["epoch"] < oracle.epoch:
            return
        for item in header.get("items", ()):
            if not isinstance(item, dict):
                continue
            effect = oracle.appends[item["epoch"], item["sequence"]]
            record = effect.record
            if isinstance(record, Committed):
                oracle.committed(record, oracle.proposed[item["epoch"], record.fragment, record.syncer_step])
            elif isinstance(record, SpanGranted):
                oracle.lent(record)
            elif isinstance(record, SpanReturned | SetAside):
                oracle.returned(record)


def simulate(seed: int, profile: str = "mixed", *, trace: Trace | None = None, used: Used = None) -> Outcome:
    """Run one seed; its log is judged in `used`."""
    return play(draw(seed, profile), trace, used=used)


def play(options: Options, trace: Trace | None = None, crash_after: float = math.inf, used: Used = None) -> Outcome:
    """Run these options, and check the outcome.

    `crash_after`: the first epoch dies after so many effects.
    """
    cluster = Cluster(options, trace)
    cluster.virtual.crash_after = crash_after
    oracle = cluster.context.oracle
    try:
        cluster.run()
    except BrokenPipeError:
        raise  # nobody reads the trace any more
    except Exception as error:  # an assertion of the world
        oracle.violations.append(_raised("world.raises", error))
    log: list[Event] = []
    try:
        log = _judged(cluster, used)
    except Exception as error:  # so that the following seeds still run
        oracle.violations.append(_raised("checks.raise", error))
    cluster.context.time.close()
    return _outcome(cluster, log)


def _judged(cluster: Cluster, used: Used) -> list[Event]:
    """Read the log, and have it checked."""
    context, counts = cluster.context, cluster.context.fault_counts
    cluster.store.heal()
    log, damage = log_of.read(context)
    tail_lost = bool(counts[TAIL_LOST])
    found = inspect(context.store, FOLDER)
    if not (cluster.store.damaged or context.fault_counts["storage_torn"]):
        damage += found
    context.oracle.violations += [Violation("log.damage", each) for each in damage]
    waits(cluster.options, context.oracle, log)
    context.oracle.violations += kept(log, context.faults.acknowledged, tail_lost, cluster.virtual)
    context.oracle.violations += history.judged(log, counts, used)
    return log


def _raised(check: str, error: Exception) -> Violation:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{frame.tb_lineno}" if frame is not None else ""
    return Violation(check, f"{type(error).__name__} at {where}: {error}")


def _outcome(cluster: Cluster, log: list[Event]) -> Outcome:
    context, options = cluster.context, cluster.options
    facts: Counter[str] = Counter()
    for fact in (event.fact for event in log):
        name = type(fact).__name__
        facts[name] += 1
        if name in REASONED:
            facts[f"{name} {fact.cause if name == 'LearnerLost' else fact.reason}"] += 1
    return Outcome(
        options.seed,
        options.profile,
        tuple(context.oracle.violations),
        history.digest_of(log),
        sum(process.handled for process in cluster.bounds.processes),
        context.time.now,
        context.oracle.checked,
        dict(sorted(context.fault_counts.items())),
        dict(sorted(facts.items())),
    )
