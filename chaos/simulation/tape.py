"""A recipe as a simulated run. Its log is a tape (orchestrator/simulation/tape_log.py) for real training to follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from chaos.simulation.checks.history import BY_TIME, UNTIMED
from chaos.simulation.checks.oracle import Violation
from chaos.simulation.cluster import Cluster, make_learner, make_syncer
from chaos.simulation.faults.injection import Injection
from chaos.simulation.profile import Options
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import check
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunStarted
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.simulation.tape_log import bare
from outer.protocol.manifest import code_digest

LOOK_S = 1.0


class Broken(Exception):
    """The simulated run fails checks: a machine, or the simulator, is wrong."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        super().__init__("; ".join(f"{each.check}: {each.reason}" for each in violations))


@dataclass(frozen=True)
class Simulated:
    """A run that never was."""

    events: list[Event]
    verdicts: list[Verdict]  # the checkers', on its log
    virtual_s: float
    fault_counts: dict[str, int]  # how often faults had an effect, by the simulator's kinds


def record(recipe: Recipe, options: Options) -> Simulated:
    """Simulate a recipe. Raises InputError if the run does not end, Broken if a check fails."""
    cluster = Cluster(options, make_syncer, make_learner)
    context, supervisor = cluster.context, cluster.supervisor
    injection = Injection(context, supervisor, cluster.schedule, recipe.chaos, options.learners, options.seed)
    made = RunStarted(recipe.name, recipe.config_hash, recipe.seed, _versions(options))
    context.facts["orchestrator", 1].insert(0, (0.0, made))
    supervisor.start()
    injection.start()
    _run(cluster, recipe.run.idle_s)
    if context.oracle.violations:
        raise Broken(context.oracle.violations)
    events = [replace(event, fact=bare(event.fact)) for event in context.events()]
    verdicts, unjudged = check(events), BY_TIME if UNTIMED & context.fault_counts.keys() else frozenset()
    if broken := [each for each in verdicts if each.status == "violated" and each.name not in unjudged]:
        raise Broken(Violation(each.name, each.reason) for each in broken)
    return Simulated(events, verdicts, context.time.now, dict(sorted(context.fault_counts.items())))


def _versions(options: Options) -> dict[str, str]:
    fastest = min(options.step_s.values())
    made = f"simulated, seed {options.seed}, profile {options.profile}, fastest step {fastest:g} s"
    return {"synthetic": made, "code": code_digest()}


def _run(cluster: Cluster, idle_s: float) -> None:
    """To the end. With no syncer step for so long it is given up, as a real run is."""
    time, supervisor = cluster.context.time, cluster.supervisor
    newest, moved_at = 0, 0.0
    while not supervisor.over:
        time.run(time.now + LOOK_S)
        committed = supervisor.syncer.machine.committed_step if supervisor.syncer is not None else 0
        if committed > newest:
            newest, moved_at = committed, time.now
        elif time.now - moved_at > idle_s:
            message = f"the simulated run stands still: no syncer step after {newest} for {idle_s:g} virtual seconds"
            fix = "plan fewer faults, or lower sync.quorum; or shorten --step-seconds and --startup-seconds"
            raise InputError([Problem("run.idle_s", idle_s, message, fix)])
