"""Both machines in the simulator, with no faults but a test's own: what everybody says, in the order of its clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from chaos.simulation.checks.history import judged
from chaos.simulation.cluster import Cluster
from chaos.simulation.profile import Fault, draw
from orchestrator.eventlog.events import Event
from orchestrator.simulation.log import read

T = TypeVar("T")


class Said(NamedTuple):
    """A fact, who said it, and at which second of its own clock."""

    at: float
    writer: str
    incarnation: int
    fact: Any


class History(list[Said]):
    events: Sequence[Event]  # the same, as in a run's log

    def facts(self, kind: type[T], writer: str = "", incarnation: int = 0) -> list[T]:
        """Of one kind, in order; of one writer and incarnation alone, if they are named."""
        said = (each for each in self if isinstance(each.fact, kind) and writer in ("", each.writer))
        return [each.fact for each in said if incarnation in (0, each.incarnation)]


def history(step_s: Mapping[str, float], sync: Mapping[str, Any], steps: int, *faults: Fault, **change: Any) -> History:
    """A run of so many syncer steps, by learners whose steps take so long, that kept every promise.

    Messages take 1 ms. `sync` is the recipe's, on top of what seed 1 draws; `change`, of the simulator's options.
    """
    plain: dict[str, Any] = {"recover": "peer", "adopt": "overwrite", "pacing": "clock", "participants": "eligible"}
    fixed = plain | {"base_window": 0, "adaptive": False, "grace": "adaptive", "read_timeout_s": 4.0, **sync}
    options = draw(1, "calm", syncer_steps=steps, learners=tuple(step_s), **fixed)
    quick = dict.fromkeys(("latency_s", "append_s", "merge_s"), 0.001) | {"jitter_s": 0.0, "quorum": 1, "notice_s": 0.2}
    last = max((fault.at + fault.duration_s for fault in faults), default=0.0)
    given = quick | {"step_s": options.step_s | dict(step_s), "faults": faults, "storm_s": last} | change
    cluster = Cluster(replace(options, **given))
    cluster.run()
    context = cluster.context
    events, damage = read(context)
    assert [*context.oracle.violations, *damage, *judged(events, context.fault_counts)] == []
    assert {fault.kind for fault in faults} <= context.fault_counts.keys()
    told = [Said(each.at, each.writer, each.incarnation, each.fact) for each in events]
    made = History(sorted(told, key=lambda said: said.at))
    made.events = events
    return made
