"""One run: both production machines under a virtual clock in a hostile world, from one seed.

The safety phase is under faults; then everything heals, and in the liveness phase the run has to get to its end, in
bounded time. Everything is checked on the way, and the history at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos.simulation import conduct
from chaos.simulation.bounds import Bounds
from chaos.simulation.history import Digest, digest_of, events_of, judged
from chaos.simulation.hosts import Host
from chaos.simulation.network import Network
from chaos.simulation.profile import Options, between, draw, stream
from chaos.simulation.server import Server
from chaos.simulation.setting import MANIFEST, Setting
from chaos.simulation.storage import Store, Write
from chaos.simulation.supervisor import Supervisor
from chaos.simulation.trace import Trace
from chaos.simulation.truth import Truth, Violation
from chaos.simulation.weather import Weather
from learners.protocol import learner as learners
from orchestrator.simulation.timeline import Timeline
from outer.protocol import recovery
from outer.protocol import syncer as syncers
from outer.protocol.facts import Committed, SpanGranted, SpanReturned

REASONED = frozenset({"Refused", "ReadFailed", "DonorFailed", "LearnerFenced", "LearnerLost", "AdoptionRefused"})


def make_syncer(**given: Any) -> Any:
    """The production machine; looked up when it is made, so that a mutant can take its place."""
    return syncers.Syncer(**given)


def make_learner(**given: Any) -> Any:
    return learners.Learner(**given)


@dataclass(frozen=True)
class Outcome:
    """What became of one seed."""

    seed: int
    profile: str
    violations: tuple[Violation, ...]
    digest: Digest
    events: int  # handed to machines
    virtual_s: float
    commits: int
    fired: dict[str, int]  # by kind of fault
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
        time, fired = Timeline(), Counter[str]()
        network = Network(time, stream(options.seed, "network"), fired, options.latency_s, options.jitter_s)
        self.setting = Setting(
            options,
            time,
            network,
            Truth(options),
            stream(options.seed, "hosts"),
            fired,
            make_syncer,
            make_learner,
            trace,
        )
        network.trace = trace
        clocks = stream(options.seed, "clocks")
        self.hosts = {
            name: Host(name, between(clocks, 0.99, 1.01), between(clocks, 0.0, 1e5), between(clocks, -0.05, 0.05))
            for name in ("syncer", *options.step_s)
        }
        self.store = Store(stream(options.seed, "store"), fired, options.append_s, self._taken)
        self.supervisor = Supervisor(self.setting, stream(options.seed, "supervisor"), self.hosts, self._begin_epoch)
        self.weather = Weather(self.setting, stream(options.seed, "weather"), self.hosts, self.store, self.supervisor)
        self.bounds = Bounds(self.setting, self.supervisor, self.store)
        self.servers: list[Server] = []
        self.crash_after = math.inf  # effects of the first epoch

    def run(self) -> None:
        """Safety phase, healing, liveness phase, end."""
        time, options = self.setting.time, self.options
        if self.setting.trace is not None:
            self.setting.trace.line(0.0, "", "", "options", options.words())
        self.supervisor.start()
        self.bounds.start()
        time.run(options.storm_s)
        self.weather.heal()
        self.bounds.heal()
        while not self.supervisor.over and not self.bounds.given_up:
            time.run(time.now + 1.0)
        self.bounds.end()

    # -------------------------------------------------------------- the syncer's epochs

    def _begin_epoch(self, epoch: int) -> Server | None:
        """Read the journal and open the next epoch, on condition that what was read is all there is."""
        seen = self.store.read()
        if not self.store.open(epoch, seen):
            return None
        options = self.options
        values = list(self.setting.truth.origin)
        for write in seen:
            if isinstance(write.entry.record, Committed):
                values[write.entry.record.fragment] = write.entry.proposal.version
        entries = [
            recovery.Entry(write.epoch, write.sequence, write.entry.logged, write.entry.record) for write in seen
        ]
        machine = self.setting.make_syncer(
            epoch=epoch,
            config=options.sync,
            fragments=options.model,
            learners={name: options.batch[name] for name in options.learners},
            quorum=options.quorum,
            span_steps=options.span_steps,
            budget=options.budget,
            manifest=MANIFEST,
            recovered=recovery.recover(entries, options.fragments) if epoch > 1 else None,
        )
        self.setting.truth.recovered(epoch, values, list(machine.versions))
        server = Server(self.setting, self.hosts["syncer"], epoch, machine, self.store, values, self.supervisor.mourn)
        if not self.servers:
            server.crash_at = self.crash_after
        self.servers.append(server)
        return server

    def _taken(self, write: Write) -> None:
        """An entry became durable."""
        record = write.entry.record
        if isinstance(record, Committed):
            self.setting.truth.committed(record, write.entry.proposal)
        elif isinstance(record, SpanGranted):
            self.setting.truth.lent(record)
        elif isinstance(record, SpanReturned):
            self.setting.truth.returned(record)


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
    """Run these options, and hold what came of it against every promise.

    `crash_after`: the first epoch dies after so many effects.
    """
    cluster = Cluster(options, make_syncer, make_learner, trace)
    cluster.crash_after = crash_after
    violations: list[Violation] = []
    try:
        cluster.run()
    except BrokenPipeError:
        raise  # whoever read the trace has gone
    except Exception as error:  # a machine's assertion, or its shell's: as bad as a broken promise
        violations.append(_raised("machine.raises", error))
    try:
        conduct.waits(cluster.setting)
        violations += judged(events_of(cluster.setting), cluster.setting.fired)
    except Exception as error:  # of this seed, and not of all that follow
        violations.append(_raised("checkers.raise", error))
    return _outcome(cluster, violations)


def _raised(promise: str, error: Exception) -> Violation:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{frame.tb_lineno}" if frame is not None else ""
    return Violation(promise, f"{type(error).__name__} at {where}: {error}")


def _outcome(cluster: Cluster, violations: list[Violation]) -> Outcome:
    setting, options = cluster.setting, cluster.options
    facts: Counter[str] = Counter()
    for said in setting.facts.values():
        for _, fact in said:
            name = type(fact).__name__
            facts[name] += 1
            if name in REASONED:
                facts[f"{name} {fact.cause if name == 'LearnerLost' else fact.reason}"] += 1
    return Outcome(
        options.seed,
        options.profile,
        (*setting.truth.violations, *violations),
        digest_of(setting),
        sum(process.handled for process in cluster.bounds.processes),
        setting.time.now,
        setting.truth.checked,
        dict(sorted(setting.fired.items())),
        dict(sorted(facts.items())),
    )
