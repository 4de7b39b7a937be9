"""Simulates a fleet with the production machines, and measures the outcome.

Tens of thousands of events a second, whatever the size of the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.planner.fleet.description import Fleet
from orchestrator.planner.fleet.durations import Stepped
from orchestrator.planner.fleet.world import Commit, World
from orchestrator.recipe.config import SYNCER


@dataclass(frozen=True)
class Outcome:
    """Of one simulation. Shares are of all configured learners, over `seconds`."""

    seconds: float  # from the end of the warm-up
    goodput: float  # full steps' time stepped; one with slices missing counts in proportion
    uptime: float  # share of the time in which at least one learner stepped
    participation: float  # contributions of weight > 0 / (commits x learners); NaN without a commit
    participation_alive: float  # the same over live learners
    commits: int
    merges_per_step: float  # commits for each step of a learner, on average
    steps: dict[str, int]  # by learner
    useful_s: dict[str, float]  # of stepping, by learner
    tokens: int  # processed
    tokens_committed: int
    contributions: dict[str, int]  # of weight > 0, by learner
    moved: dict[tuple[str, str], int]  # bytes over each link, from the very beginning
    finished_at: float | None  # when the budget was reached
    events: int  # handed to machines


def simulate(
    fleet: Fleet, until_s: float, warm_up_s: float = 0.0, progress: Callable[[float], None] = lambda share: None
) -> tuple[Outcome, World]:
    """Simulate for so long, or until the budget is reached. What came before the warm-up is over is not counted.

    `progress` is told the share of the budget that is committed, 0 to 1, at every look.
    """
    dies = any(fault.kind == "kill" and fault.learner == SYNCER for fault in fleet.faults)
    world = World(fleet, keeps_journal=dies)
    time, supervisor = world.time, world.supervisor
    supervisor.start()
    finished_at = None
    while time.now < until_s and not supervisor.over:
        time.run(min(until_s, time.now + fleet.look_s))
        if supervisor.syncer is not None:
            progress(supervisor.syncer.machine.progress)
        if finished_at is None and supervisor.syncer is not None and supervisor.syncer.machine.finished:
            finished_at = supervisor.syncer.machine.moved_at
    stop = time.now if finished_at is None else finished_at
    return _outcome(world, warm_up_s, stop, finished_at), world


def _outcome(world: World, start: float, stop: float, finished_at: float | None) -> Outcome:
    seconds = max(0.0, stop - start)
    steps = {name: [_cut(step, start, stop) for step in all_] for name, all_ in world.steps.items()}
    wanted_s = sum(max(0.0, stop - max(start, member.since_s)) for member in world.fleet.members)
    useful_s = {name: sum(step.share * (step.ended - step.began) for step in each) for name, each in steps.items()}
    done = {name: [step for step in each if start < step.ended <= stop] for name, each in world.steps.items()}
    counted = {name: len(each) for name, each in done.items()}
    merges = [commit for commit in world.commits if start <= commit.at <= stop]
    before = max((merge.tokens_committed for merge in world.commits if merge.at < start), default=0)
    mean_steps = sum(counted.values()) / max(1, len(world.fleet.members))
    return Outcome(
        seconds=seconds,
        goodput=sum(useful_s.values()) / wanted_s if wanted_s else math.nan,
        uptime=covered_s([span for each in steps.values() for span in _spans(each)]) / seconds if seconds else math.nan,
        participation=_share(merges, [len(world.fleet.members)] * len(merges)),
        participation_alive=_share(merges, [merge.live for merge in merges]),
        commits=len(merges),
        merges_per_step=len(merges) / mean_steps if mean_steps else math.nan,
        steps=counted,
        useful_s=useful_s,
        tokens=sum(step.tokens for each in done.values() for step in each),
        tokens_committed=merges[-1].tokens_committed - before if merges else 0,
        contributions=dict(Counter(name for merge in merges for name in merge.participants)),
        moved=dict(world.network.regions.moved),
        finished_at=finished_at,
        events=world.events,
    )


def _cut(step: Stepped, start: float, stop: float) -> Stepped:
    """The part of it that lies in the window."""
    began, ended = max(start, step.began), min(stop, step.ended)
    return step._replace(began=began, ended=max(began, ended))


def _share(merges: Sequence[Commit], of: Sequence[int]) -> float:
    return sum(len(merge.participants) for merge in merges) / sum(of) if merges and sum(of) else math.nan


def _spans(steps: Sequence[Stepped]) -> list[tuple[float, float]]:
    """When a learner was stepping: steps that follow each other without a pause are one."""
    spans: list[tuple[float, float]] = []
    for step in steps:
        if spans and step.began <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], step.ended))
        else:
            spans.append((step.began, step.ended))
    return spans


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, -math.inf
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
