"""A simulated run as a run's folder: its log is a tape that real training follows (`diloco replay`).

Nothing was computed, and the log says so: digests are empty, losses not a number, and RunStarted names what made it.
"""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from chaos.simulation.cluster import Cluster, make_learner, make_syncer
from chaos.simulation.history import BY_TIME, UNTIMED, events_of
from chaos.simulation.injection import Injection
from chaos.simulation.profile import Options
from chaos.simulation.truth import Violation
from learners.facts import Donated, StateReceived, StepFinished
from orchestrator.checkers.suite import check
from orchestrator.checkers.verdicts import Verdict
from orchestrator.config import Recipe
from orchestrator.events import Event, RunFinished, RunStarted, SegmentWriter, ends, merge, read_run
from orchestrator.problems import InputError, Problem
from orchestrator.recipes import dump
from orchestrator.seal import SEAL_FILE, seal
from orchestrator.store import RunStore
from orchestrator.stored import RECIPE_FILE
from orchestrator.summary import summarise
from outer.facts import Committed
from outer.manifest import code_digest

LOOK_S = 1.0


class Broken(Exception):
    """What was simulated broke promises: a machine, or the simulator, is wrong."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        super().__init__("; ".join(f"{each.promise}: {each.reason}" for each in violations))


@dataclass(frozen=True)
class Simulated:
    """A run that never was."""

    events: list[Event]
    verdicts: list[Verdict]  # the checkers', on its log
    virtual_s: float
    fired: dict[str, int]  # how often faults had an effect, by the simulator's kinds


def record(recipe: Recipe, options: Options) -> Simulated:
    """Simulate a recipe. Raises InputError where the run comes to no end, Broken where a promise breaks."""
    cluster = Cluster(options, make_syncer, make_learner)
    setting, supervisor = cluster.setting, cluster.supervisor
    injection = Injection(setting, supervisor, cluster.weather, recipe.chaos, options.learners, options.seed)
    made = RunStarted(recipe.name, recipe.config_hash, recipe.seed, _versions(options))
    setting.facts["orchestrator", 1].insert(0, (0.0, made))
    supervisor.start()
    injection.start()
    _run(cluster, recipe.run.idle_s)
    if setting.truth.violations:
        raise Broken(setting.truth.violations)
    events = merge([[replace(event, fact=bare(event.fact)) for event in events_of(setting)]])
    verdicts, unjudged = check(events), BY_TIME if UNTIMED & setting.fired.keys() else frozenset()
    if broken := [each for each in verdicts if each.status == "violated" and each.name not in unjudged]:
        raise Broken(Violation(each.name, each.reason) for each in broken)
    return Simulated(events, verdicts, setting.time.now, dict(sorted(setting.fired.items())))


def _versions(options: Options) -> dict[str, str]:
    fastest = min(options.step_s.values())
    made = f"simulated, seed {options.seed}, profile {options.profile}, fastest step {fastest:g} s"
    return {"synthetic": made, "code": code_digest()}


def _run(cluster: Cluster, idle_s: float) -> None:
    """To the end. With no syncer step for so long it is given up, as a real run is."""
    time, supervisor = cluster.setting.time, cluster.supervisor
    newest, moved_at = 0, 0.0
    while not supervisor.over:
        time.run(time.now + LOOK_S)
        committed = supervisor.server.machine.committed_step if supervisor.server is not None else 0
        if committed > newest:
            newest, moved_at = committed, time.now
        elif time.now - moved_at > idle_s:
            message = f"the simulated run stands still: no syncer step after {newest} for {idle_s:g} virtual seconds"
            fix = "let fewer faults befall it, or lower sync.quorum; or shorten --step-s and --startup-s"
            raise InputError([Problem("run.idle_s", idle_s, message, fix)])


def bare(fact: Any) -> Any:
    """The fact without numbers that nobody computed."""
    match fact:
        case StepFinished():
            return replace(fact, loss=math.nan)
        case Committed():
            participants = tuple(replace(one, digest="") for one in fact.participants)
            return replace(fact, digest="", norm=0.0, participants=participants)
        case StateReceived() | Donated():
            return replace(fact, digest="", bytes=0)
        case RunFinished():
            return replace(fact, digest="")
    return fact


def write(recipe: Recipe, made: Simulated, store: RunStore) -> dict[str, Any]:
    """A run's folder of it, there as a whole or not at all; returns the summary. Raises OSError."""
    draft = RunStore(store.root.with_name(f".{store.root.name}.{uuid.uuid4().hex}"))
    try:
        draft.create()
        writer = SegmentWriter(draft.path("events.jsonl"))
        writer.write(made.events)
        writer.close()
        written = read_run(draft.root)
        summary = summarise(written, recipe, made.verdicts)
        draft.write_json(SEAL_FILE, seal(ends(written)))
        draft.write_json("summary.json", summary)
        draft.write_text(RECIPE_FILE, dump(recipe))
        os.replace(draft.root, store.root)
    finally:
        shutil.rmtree(draft.root, ignore_errors=True)
    return summary
