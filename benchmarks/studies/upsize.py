"""What it costs those who train that another learner joins, by the bandwidth of its link (paper section 6, upsizing).

    python benchmarks/studies/upsize.py [--json] [--copy-steps 0.5,1,2] ...

Beside it elastic data-parallel training, which stands still while at least three times the model (parameters and both
moments) is sent. The production machines: a newcomer's donor steps on, and its state crosses the same links as the
fragments of the round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.studies.models import even
from benchmarks.studies.script import numbers, options, show
from learners.protocol.facts import StateReceived
from orchestrator.planner.fleet.description import Fleet, FleetFault, FleetLink, FleetMember, Steady, Timing, constant
from orchestrator.planner.fleet.world import simulate
from orchestrator.planner.sizing.traffic import DOWN_BYTES
from orchestrator.simulation.log import read
from outer.config import SyncConfig
from outer.protocol.facts import Committed
from outer.protocol.schedule import Budget

BATCH, TOKENS = 8, 8192  # of a step; no figure depends on them
STATE_COPIES = 3  # parameters, and AdamW's two moments
NEWCOMER = "learner-new-0"


@dataclass(frozen=True)
class Upsize:
    """`parameters` only sets the scale: what matters is how many steps one copy of the model takes."""

    learners: int = 8
    step_s: float = 1.0
    parameters: int = 24_000_000
    rounds: int = 8  # that are simulated; in the third one the newcomer comes
    round_steps: int = 24  # H, and P


@dataclass(frozen=True)
class Row:
    """Of one bandwidth. Steps are those of a learner."""

    copy_steps: float  # that one copy of the model takes on a learner's link
    gbit_s: float  # of that link, each way
    elastic_downtime_steps: float  # of all learners, in data-parallel training
    downtime_steps: float  # of those who train, here: none of them waited
    participation: float  # of those who train, from the newcomer's coming on
    source: str  # of the newcomer's state: peer, or syncer where the peer's came too late
    joined_steps: float | None  # from its attaching to its first step; None: it never stepped


def study(setting: Upsize, copy_steps: Sequence[float]) -> Iterator[Row]:
    """One row for each bandwidth, given as the steps that one copy of the model takes."""
    yield from (_row(setting, steps) for steps in copy_steps)


def _row(setting: Upsize, copy_steps: float) -> Row:
    bits = 8.0 * DOWN_BYTES * setting.parameters / (copy_steps * setting.step_s)
    sync = SyncConfig(H=setting.round_steps)
    round_s = sync.round_steps * setting.step_s
    # A third of join_s is what one donor is given: here a round, as the paper has it.
    sync = sync.model_copy(update={"read_timeout_s": round_s, "transfer_s": 10.0 * round_s, "join_s": 3.0 * round_s})
    names = [f"learner-own-{i}" for i in range(setting.learners)]
    comes_s, total_s = 2.0 * round_s, setting.rounds * round_s
    everybody = [*names, NEWCOMER]
    links = {}
    for one in everybody:
        for other in [*everybody, ""]:
            links[one, other] = FleetLink(bits, 0.0, f"up {one}")
            if not other:
                links["", one] = FleetLink(bits, 0.0, f"down {one}")
    fleet = Fleet(
        sync=sync,
        quorum=1,
        fragments=even(setting.parameters, sync.round_steps),
        members=tuple(
            FleetMember(name, BATCH, TOKENS, Steady(setting.step_s), region=name, present=name != NEWCOMER)
            for name in everybody
        ),
        budget=Budget(None, 100 * setting.rounds * sync.round_steps),
        timing=Timing(import_s=constant(0.0), start_s=total_s),
        links=links,
        state_bytes=STATE_COPIES * DOWN_BYTES * setting.parameters,
        faults=(FleetFault("join", NEWCOMER, comes_s),),
        look_s=max(1.0, setting.step_s),
    )
    outcome, world = simulate(fleet, total_s, comes_s)
    waited_s = sum(outcome.seconds - outcome.useful_s[name] for name in names)
    stepped = world.steps.get(NEWCOMER, [])
    joined = None if not stepped else (stepped[0].began - comes_s) / setting.step_s
    log, _ = read(world.context)
    received = [event.fact for event in log if event.writer == NEWCOMER and isinstance(event.fact, StateReceived)]
    commits = [event.fact for event in log if isinstance(event.fact, Committed) and event.at >= comes_s]
    merged = sum(one.learner != NEWCOMER for fact in commits for one in fact.participants)
    return Row(
        copy_steps=copy_steps,
        gbit_s=bits / 1e9,
        elastic_downtime_steps=STATE_COPIES * copy_steps,
        downtime_steps=waited_s / setting.step_s / setting.learners,
        participation=merged / (len(commits) * setting.learners),
        source=received[0].source if received else "",
        joined_steps=joined,
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--copy-steps",
        type=numbers,
        default="0.5,1,2,4,5,6,8,12,24",
        help="steps that one copy of the model takes over a learner's link",
    )
    parser.add_argument("--learners", type=int, default=8, help="of the run")
    parser.add_argument("--parameters", type=float, default=5e9, help="of the model: for the Gbit/s alone")
    parser.add_argument("--step-seconds", type=float, default=1.0, help="of every learner")
    given = parser.parse_args()
    rows = list(study(Upsize(given.learners, given.step_seconds, round(given.parameters)), given.copy_steps))
    show(rows, given.json)
    if given.plot:
        from benchmarks.studies.figures import upsize_figure

        given.plot.write_text(upsize_figure(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
