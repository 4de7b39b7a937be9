"""isolation.* (I6): when a learner is lost or falls silent, the others' steps take as long as before.

Before and after are told apart by the commits on both sides: each names the step at which a survivor was read, so that
no clocks are compared. A survivor was held up if, in the WINDOW steps after, its median step took more than RATIO times
that of those before and EXTRA_S, or its longest more than RATIO times their longest and STALL_S. Troubles of a
host itself are not in the log, so losses are judged only where faults were injected: steps of learners with faults of
their own are left out, and the check fails where every other survivor was held up. Waiting time does not count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Incarnation, Key, Said
from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.facts import FaultInjected
from outer.protocol.facts import LearnerFenced, LeaseExpired

RATIO, EXTRA_S, STALL_S = 3.0, 0.05, 2.0
WINDOW, FEWEST = 40, 8  # learner steps
LEAVING = frozenset({"stopped", "drained", "superseded"})
BLUR_S = 1.0  # of the dates of two processes, where a survivor's own faults are looked for


def check(history: History) -> list[Verdict]:
    claim = "when a learner is lost or silent, the others' steps take as long as before"
    losses = [
        said
        for said in history.by_syncer(LeaseExpired, LearnerFenced)
        if isinstance(said.fact, LeaseExpired) or said.fact.reason not in LEAVING
    ]
    not_exercised = "no learner was lost while others stepped on" if history.commits else ""
    if losses and not history.of(FaultInjected):
        losses, not_exercised = [], "no fault was injected: troubles of the hosts are not in the log"
    checked, failures = 0, []
    reads = _Reads(history) if losses else None
    for said in losses:
        assert reads is not None
        told = [_held_up(incarnation, before, after) for incarnation, before, after in reads.around(said)]
        checked += bool(told)
        if told and all(told):
            failures.append(f"when {said.fact.learner} {said.fact.incarnation} was lost, {told[0]}")
    return [judge("isolation.steps", claim, checked, "losses", failures, not_exercised)]


def _held_up(incarnation: Incarnation, before: Sequence[float], after: Sequence[float]) -> str:
    """How it was held up, in words; empty if it was not. Inputs: step seconds, ascending."""
    name = f"step of {incarnation.learner} {incarnation.number} rose from"
    medians = before[len(before) // 2], after[len(after) // 2]
    if medians[1] > RATIO * medians[0] + EXTRA_S:
        return f"the median {name} {medians[0]:.3f} s to {medians[1]:.3f} s"
    if after[-1] > RATIO * before[-1] + STALL_S:
        return f"the longest {name} {before[-1]:.3f} s to {after[-1]:.3f} s"
    return ""


class _Reads:
    """The steps at which each incarnation was read, commit by commit."""

    def __init__(self, history: History) -> None:
        self._incarnations = history.incarnations
        self._at: dict[Key, tuple[list[tuple[int, int]], list[int]]] = {}
        for said, one, *_ in history.contributions:
            places, steps = self._at.setdefault((one.learner, one.incarnation), ([], []))
            places.append((said.incarnation, said.position))
            steps.append(one.step)

    def around(self, said: Said[Any]) -> Iterator[tuple[Incarnation, list[float], list[float]]]:
        """(survivor, step seconds before, step seconds after), seconds ascending."""
        for key, (places, steps) in self._at.items():
            last = bisect_right(places, (said.incarnation, said.position))
            if key[0] == said.fact.learner or last in (0, len(places)) or key not in self._incarnations:
                continue
            incarnation = self._incarnations[key]
            middle = incarnation.inside(0, steps[last - 1])[1]
            before = incarnation.steps[max(0, middle - WINDOW) : middle]
            after = incarnation.steps[middle : middle + WINDOW]
            if (
                len(before) >= FEWEST
                and len(after) >= FEWEST
                and not _had_faults(incarnation, before[0].at, after[-1].at)
            ):
                yield incarnation, _seconds(before), _seconds(after)


def _seconds(steps: Sequence[Said[Any]]) -> list[float]:
    return sorted(said.fact.seconds for said in steps)


def _had_faults(incarnation: Incarnation, start: float, stop: float) -> bool:
    """Whether it had faults of its own in this interval, by the recorded times."""
    times = [(at, math.inf if until is None else until) for at, until in incarnation.expired]
    times += [(freeze.start, math.inf if freeze.stop is None else freeze.stop) for freeze in incarnation.freezes]
    times += [(said.at, said.at + said.fact.duration_s) for said in incarnation.other_faults]
    return any(begin <= stop + BLUR_S and end >= start - BLUR_S for begin, end in times)
