"""Series for experiment trackers: scalars by syncer step, taken from a run's log and never from the loop."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.eventlog.events import fact_of
from orchestrator.eventlog.facts import Evaluated, FaultInjected, LearnerLost
from orchestrator.eventlog.tables import LogPart

KINDS = tuple(kind.__name__ for kind in (Evaluated, FaultInjected, LearnerLost))
COMMITTED, HELD_OUT = SERIES = ("tokens/committed", "loss/held_out")


@dataclass(frozen=True)
class Point:
    """Scalars of one syncer step. `at`: Unix seconds. Steps grow within a series, not from one to the other."""

    step: int
    at: float
    values: dict[str, float]

    @property
    def series(self) -> str:
        """The one of SERIES that it belongs to, which is also the name of a value that it has."""
        return next(name for name in SERIES if name in self.values)


@dataclass
class _Sums:
    """Since the newest point."""

    loss: float = 0.0
    losses: int = 0
    norm: float = 0.0
    commits: int = 0
    contributions: int = 0
    live: int = 0


@dataclass
class Curves:
    """A point for every so many syncer steps, and one for each held-out evaluation. Feed it the log's parts in order.

    loss/train: mean over all learners' finite losses since the newest point. participation: contributions of live
    learners' possible ones. outer/norm: mean norm of the merged outer gradients. tokens/committed and
    faults/learners_lost, faults/injected: sums over the run.
    """

    every: int
    _newest: int = -1  # syncer step of the newest point
    _before: tuple[int, float] | None = None  # tokens committed then, and when
    _sums: _Sums = field(default_factory=_Sums)
    _lost: int = 0
    _injected: int = 0

    def take(self, part: LogPart) -> Iterator[Point]:
        """The points of a part, in its order."""
        joined = Counter(position for position, *_ in part.in_order("contributions", "position"))
        steps = part.in_order("steps", "position", "loss")
        commits = part.in_order("commits", "position", "time", "syncer_step", "norm", "live", "tokens_committed")
        others = part.only((), KINDS).in_order("facts", "position", "time", "kind", "fact")
        for position, *row in merge(steps, commits, others, key=itemgetter(0)):
            sums = self._sums
            match row:
                case [loss] if math.isfinite(loss):
                    sums.loss, sums.losses = sums.loss + loss, sums.losses + 1
                case [at, step, norm, live, tokens]:
                    sums.norm, sums.commits, sums.live = sums.norm + norm, sums.commits + 1, sums.live + live
                    sums.contributions += joined[position]
                    if step // self.every > self._newest // self.every:
                        self._newest = step
                        yield self._point(step, at, tokens)
                case [at, kind, text]:
                    self._lost += kind == LearnerLost.__name__
                    self._injected += kind == FaultInjected.__name__
                    if isinstance(fact := fact_of(kind, json.loads(text)), Evaluated):
                        metrics = {f"eval/{name}": value for name, value in fact.metrics.items()}
                        yield Point(fact.syncer_step, at, {HELD_OUT: fact.loss} | metrics)

    def _point(self, step: int, at: float, tokens: int) -> Point:
        sums = self._sums
        values = {
            COMMITTED: float(tokens),
            "outer/norm": sums.norm / sums.commits,
            "faults/learners_lost": float(self._lost),
            "faults/injected": float(self._injected),
        }
        if sums.losses:
            values["loss/train"] = sums.loss / sums.losses
        if sums.live:
            values["participation"] = sums.contributions / sums.live
        if self._before is not None and at > self._before[1]:
            values["tokens/per_second"] = (tokens - self._before[0]) / (at - self._before[1])
        self._before, self._sums = (tokens, at), _Sums()
        return Point(step, at, values)


SUFFIX = ".diloco"  # of TensorBoard's files that are ours
STEP = "syncer_step"


class Sink:
    """One tracker's view of one run. Its methods raise whatever its library does."""

    newest: Mapping[str, int] = MappingProxyType({})  # by series, the syncer step up to which it has all points

    def write(self, point: Point) -> None:
        raise NotImplementedError

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard(Sink):
    """Event files in a folder, written anew by each command: earlier ones of this kind go."""

    def __init__(self, target: str, name: str, identity: str) -> None:
        self._folder = Path(target) / name
        for old in self._folder.glob(f"*{SUFFIX}"):
            old.unlink()
        library: Any = importlib.import_module("tensorboardX")
        self._writer = library.SummaryWriter(str(self._folder), filename_suffix=SUFFIX, write_to_disk=True)

    def write(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(name, value, point.step, point.at)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
    """A run of the project `target`, under the run's own identity; what it has is not sent again."""

    def __init__(self, target: str, name: str, identity: str) -> None:
        library: Any = importlib.import_module("wandb")
        self._run = library.init(project=target, name=name, id=identity, resume="allow")
        self._run.define_metric("*", step_metric=STEP)
        sent = {name: self._run.summary.get(f"{STEP}/{name}") for name in SERIES}
        self.newest = {name: int(step) for name, step in sent.items() if step is not None}

    def write(self, point: Point) -> None:
        self._run.log(point.values | {STEP: point.step, f"{STEP}/{point.series}": point.step})

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[str, str, str], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
