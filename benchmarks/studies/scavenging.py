"""How much sooner a run ends where more learners join it for a while (paper section 8, scavenging).

    python benchmarks/studies/scavenging.py [--json] [--extra 25,50,100,300] ...

The production machines: newcomers start, join from a peer, step, and leave by draining. The run's length is given in
tokens; the learners that are there anyhow would need all of its time alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.studies.models import even
from benchmarks.studies.script import numbers, options, show
from orchestrator.eventlog.facts import LearnerRequested
from orchestrator.planner.fleet.description import Fleet, FleetLink, FleetMember, Steady, Timing, constant
from orchestrator.planner.fleet.world import World
from outer.config import SyncConfig
from outer.protocol.schedule import Budget

BATCH, TOKENS = 8, 8192  # of a step; no figure depends on them
STATE_BYTES = 1_000_000  # nor on this: their time is given


@dataclass(frozen=True)
class Scavenging:
    """`share`: of all tokens, that are processed while the newcomers are there."""

    learners: int = 8
    step_s: float = 10.0
    steps: int = 1000  # that each learner would take alone
    share: float = 0.5
    start_s: float = 60.0  # a newcomer's process, imports and compiling
    state_s: float = 10.0  # a peer's state on its way


@dataclass(frozen=True)
class Row:
    """Times are shares of the time without newcomers."""

    extra: float  # newcomers, as a share of the learners
    time: float
    ideal: float  # as if newcomers stepped from the moment they are wanted
    participation: float
    joined_s: float | None  # from being wanted to the first step, on average


def ideal(extra: float, share: float) -> float:
    """1 - share at the learners' own pace, the rest faster."""
    return 1.0 - share + share / (1.0 + extra)


def study(setting: Scavenging, extras: Sequence[float]) -> Iterator[Row]:
    """One row for each, against the same run alone."""
    alone_s, *_ = _run(setting, 0)
    for extra in extras:
        newcomers = max(1, round(extra * setting.learners))
        extra = newcomers / setting.learners
        seconds, participation, joined_s = _run(setting, newcomers)
        yield Row(extra, seconds / alone_s, ideal(extra, setting.share), participation, joined_s)


def _run(setting: Scavenging, newcomers: int) -> tuple[float, float, float | None]:
    """Seconds until every token is committed, participation, and how long newcomers took to step."""
    sync = SyncConfig()
    total_s = setting.steps * setting.step_s
    comes, goes = 0.5 - 0.5 * setting.share, 0.5 + 0.5 * setting.share
    names = [f"learner-own-{i}" for i in range(setting.learners)]
    guests = [f"learner-spot-{i}" for i in range(newcomers)]
    fleet = Fleet(
        sync=sync,
        quorum=1,
        fragments=even(sync.round_steps, sync.round_steps),
        members=tuple(
            FleetMember(name, BATCH, TOKENS, Steady(setting.step_s), region=name, present=name in names)
            for name in (*names, *guests)
        ),
        budget=Budget(setting.learners * setting.steps * TOKENS, None),
        timing=Timing(
            import_s=constant(0.4 * setting.start_s),
            compile_s=constant(0.6 * setting.start_s),
            start_s=max(120.0, 2.0 * setting.start_s, 10.0 * setting.step_s),
        ),
        links={(one, other): FleetLink(8.0 * STATE_BYTES / setting.state_s) for one in names for other in guests}
        if setting.state_s
        else {},
        state_bytes=STATE_BYTES,
        look_s=max(1.0, 0.1 * setting.step_s),
    )
    world = World(fleet)
    _at_progress(world, comes, [partial(world.cluster.want, name) for name in guests])
    _at_progress(world, goes, [partial(world.cluster.unwant, name) for name in guests])
    outcome = world.run(2.0 * total_s)
    assert outcome.finished_at is not None
    asked = {fact.learner: at for at, _, fact in world.context.said if isinstance(fact, LearnerRequested)}
    took = [world.steps[name][0].began - asked[name] for name in guests if world.steps.get(name)]
    return outcome.finished_at, outcome.participation, sum(took) / len(took) if took else None


def _at_progress(world: World, share: float, happen: Sequence[Callable[[], object]]) -> None:
    """Call all of `happen` once this share of the budget is committed; looked at as often as the orchestrator looks."""

    def look() -> None:
        syncer = world.cluster.syncer
        if syncer is not None and not syncer.machine.finished and share <= syncer.machine.progress:
            for each in happen:
                each()
        elif not world.cluster.over:
            world.time.after(world.fleet.look_s, look)

    world.time.after(world.fleet.look_s, look)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--extra", type=numbers, default="25,50,100,300", help="newcomers, as per cent of the learners")
    parser.add_argument("--learners", type=int, default=8, help="of the run")
    parser.add_argument("--share", type=float, default=0.5, help="of all tokens, processed while newcomers are there")
    parser.add_argument("--step-seconds", type=float, default=10.0, help="of every learner")
    parser.add_argument("--steps", type=int, default=1000, help="that each learner would take alone")
    parser.add_argument("--start-seconds", type=float, default=60.0, help="a newcomer's process, imports and compiling")
    parser.add_argument("--state-seconds", type=float, default=10.0, help="a peer's state on its way to it")
    given = parser.parse_args()
    setting = Scavenging(
        given.learners, given.step_seconds, given.steps, given.share, given.start_seconds, given.state_seconds
    )
    rows = list(study(setting, [extra / 100 for extra in given.extra]))
    show(rows, given.json)
    if given.plot:
        from benchmarks.studies.figures import scavenging_figure

        given.plot.write_text(scavenging_figure(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
