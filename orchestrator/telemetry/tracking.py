"""Series for experiment trackers: scalars by syncer step, folded from a run's log and never from the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from orchestrator.eventlog.block import Block
from orchestrator.eventlog.facts import Evaluated, FaultInjected, LearnerLost

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
    """A point for every so many syncer steps, and one for each held-out evaluation. Feed it the log's blocks in order.

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

    def take(self, block: Block) -> Iterator[Point]:
        """The points of a block, in its order."""
        commits, steps = block.commits, block.steps
        due = []
        for number, step in enumerate(commits.syncer_step.tolist()):
            if step // self.every > self._newest // self.every:
                self._newest = step
                due.append(number)
        others = block.others
        joined = np.diff(commits.first)
        begun = begun_others = begun_commits = 0
        ends: list[int | None] = [*due, None]
        for place in ends:
            bound = np.inf if place is None else commits.position[place]
            stop = int(np.searchsorted(steps.position, bound))
            last = len(commits.position) if place is None else place + 1
            losses = steps.loss[begun:stop]
            finite = losses[np.isfinite(losses)]
            sums = self._sums
            sums.loss, sums.losses = sums.loss + float(finite.sum()), sums.losses + len(finite)
            sums.norm += float(commits.norm[begun_commits:last].sum())
            sums.commits += last - begun_commits
            sums.contributions += int(joined[begun_commits:last].sum())
            sums.live += int(commits.live[begun_commits:last].sum())
            while begun_others < len(others) and others[begun_others].position < bound:
                event = others[begun_others].event
                self._lost += isinstance(event.fact, LearnerLost)
                self._injected += isinstance(event.fact, FaultInjected)
                if isinstance(event.fact, Evaluated):
                    metrics = {f"eval/{name}": value for name, value in event.fact.metrics.items()}
                    yield Point(event.fact.syncer_step, event.at, {HELD_OUT: event.fact.loss} | metrics)
                begun_others += 1
            begun, begun_commits = stop, last
            if place is not None:
                yield self._point(block, place)

    def _point(self, block: Block, place: int) -> Point:
        commits, sums = block.commits, self._sums
        at, tokens = float(commits.at[place]), int(commits.tokens_committed[place])
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
        return Point(int(commits.syncer_step[place]), at, values)
