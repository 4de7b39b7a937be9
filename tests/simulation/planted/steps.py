"""Bugs in the life of a syncer step: quorum and grace, what is merged and with what weight, the order of commits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from outer.config import SyncConfig
from outer.protocol import open_step
from outer.protocol import read_requests as reading
from outer.protocol.messages import STEPPING, Report
from outer.protocol.open_step import OpenStep, Stage
from outer.protocol.quorum import Decision, QuorumVerdict, StepTiming
from outer.protocol.read_requests import ReadRequests
from outer.protocol.syncer import Syncer
from tests.simulation.planting import Plant, around, instead, mutant


@around(ReadRequests, "ask", "close")
def quorum_off_by_one(method: Any, self: ReadRequests, *args: Any) -> None:
    """Nothing commits below the quorum."""
    quorum, self._quorum = self._quorum, max(1, self._quorum - 1)
    method(self, *args)
    self._quorum = quorum


@instead(ReadRequests, "close")
def quorum_of_the_asked(self: ReadRequests, now: float, step: OpenStep, version: int) -> None:
    """Contributions that are valid make a quorum, not learners that were asked."""
    assert step.fragment is not None
    for learner in list(step.awaited):
        self._members.note_missed(self._members.known(learner), step.fragment, None)
        self._out.emit(step.miss(learner, "timeout"))
    if step.contributions:  # K were asked, or it would not be reading
        self._out.add(step.merge(version, self._config.round_steps))
    else:
        self.reopen(now, step, "nobody answered")


@around(Syncer, "_on_report")
def any_report_counts(method: Any, self: Syncer, now: float, event: Report) -> None:
    """A quorum is of learners that finished a step, as they report it, after the syncer step opened."""
    member = self._members.get(event.learner, event.incarnation)
    for step in self._open if event.phase == STEPPING and member is not None else ():
        step.reported.add(event.learner)
        step.count(member, self._config.overlap)
    method(self, now, event)


@around(open_step, "decide")
def grace_never_closes(decide: Any, now: float, **given: Any) -> QuorumVerdict:
    """Grace without end is over once every live learner has reported."""
    if given["quorum_at"] is not None and given["grace_s"] is None:
        return QuorumVerdict(Decision.WAIT, "grace is without end")
    return decide(now, **given)


@around(OpenStep, "judge")
def grace_twice(
    method: Any, self: OpenStep, now: float, quorum: int, live: int, reported: int, grace_s: float | None
) -> QuorumVerdict:
    """More than a quorum is waited for no longer than the grace that was granted."""
    verdict = method(self, now, quorum, live, reported, grace_s)
    if self.stage is Stage.GRACE and verdict.decision is Decision.MERGE and reported < live and self.reason == "":
        self.reason, self.grace_s = "once more", 2 * self.grace_s
        return QuorumVerdict(Decision.WAIT, self.reason)
    return verdict


@around(Syncer, "_open_next")
def steps_open_at_once(method: Any, self: Syncer, now: float) -> bool:
    """Paced by the clock, a syncer step opens no sooner than one median step after the one before."""
    self._opened_at = float("-inf")
    return method(self, now)


@around(StepTiming, "open_max")
def a_round_too_many(method: Any, self: StepTiming, step_s: float) -> int:
    """Less than a round's syncer steps are open, so that no fragment is open twice."""
    return int(method(self, step_s)) + self._config.round_steps


@mutant
def spins_below_quorum(plant: Plant) -> None:
    """Below the quorum the syncer idles: it asks to be woken only when something may happen."""

    def wrapper(prop: Any) -> Any:
        def wake_at(self: Syncer) -> float | None:
            at = prop.fget(self)
            if self.finished or self._open:
                return at
            return min(self._opened_at + self.step_s, at if at is not None else float("inf"))

        return property(wake_at)

    plant.around(Syncer, "wake_at", wrapper)


# ---------------------------------------------------------------- what is merged


@around(ReadRequests, "close")
def weights_of_the_last_report(method: Any, self: ReadRequests, now: float, step: OpenStep, version: int) -> None:
    """A contribution weighs by the counters of the step that was read, not by those of a report."""
    told = {member.name: member.report.counters for member in self._members.live if member.report}
    weigh = open_step.weigh

    def stale(contributions: Any, *how: Any) -> Any:
        counters = [told.get(c.learner, {c.fragment: c.counters})[c.fragment] for c in contributions]
        usable = [now if now.steps else c.counters for now, c in zip(counters, contributions, strict=True)]
        return weigh([replace(c, counters=now) for c, now in zip(contributions, usable, strict=True)], *how)

    with patch.object(open_step, "weigh", stale):
        method(self, now, step, version)


@instead(open_step, "weigh")
def weights_by_tokens(contributions: Any, *how: Any) -> tuple[float, ...]:
    """Weights are tokens^2 / steps, normalised."""
    total = sum(c.counters.tokens for c in contributions)
    return tuple(c.counters.tokens / total for c in contributions)


@mutant
def kept_over_reopening(plant: Plant) -> None:
    """A step that reopens begins with no contribution: who is asked again does not merge twice."""

    def reopening(method: Any) -> Any:
        def reopen(self: OpenStep, *args: Any, **named: Any) -> Any:
            kept = {f"{name} before": one for name, one in self.contributions.items()}
            fact = method(self, *args, **named)
            self.kept = kept  # type: ignore[attr-defined]
            return fact

        return reopen

    def asking(method: Any) -> Any:
        def ask(self: OpenStep, *args: Any, **more: Any) -> None:
            method(self, *args, **more)
            self.contributions = dict(getattr(self, "kept", {}))

        return ask

    plant.around(OpenStep, "reopen", reopening)
    plant.around(OpenStep, "ask", asking)


@mutant
def base_unchecked(plant: Plant) -> None:
    """A contribution on another base than the fragment's current version weighs nothing."""

    def has_progress(member: Any, fragment: int, version: int, config: Any) -> bool:
        counters = member.report.counters[fragment : fragment + 1]
        return any(each.base_version is not None and each.steps for each in counters)

    def wrapper(unusable: Any) -> Any:
        def forgiving(*args: Any) -> str:
            reason: str = unusable(*args)
            return "" if reason == "stale_base" else reason

        return forgiving

    plant.put(reading, "has_progress", has_progress)
    plant.around(open_step, "unusable", wrapper)


@around(open_step, "unusable")
def defects_merged(unusable: Any, contribution: Any, *args: Any) -> str:
    """A contribution whose payload is damaged, or not finite, is refused."""
    return unusable(replace(contribution, defect=""), *args)


@around(Syncer, "_on_merged")
def overflow_committed(method: Any, self: Any, now: Any, event: Any) -> Any:
    """A merged update that is not finite is thrown away."""
    return method(self, now, replace(event, finite=True))


# ---------------------------------------------------------------- commits


@around(Syncer, "_commit_next")
def commits_out_of_order(method: Any, self: Syncer, now: float) -> bool:
    """Steps commit in the order of t, whichever is merged first."""
    under_way = any(step.stage is Stage.JOURNALING for step in self._open)
    if not under_way:
        self._open.sort(key=lambda step: (step.stage is not Stage.MERGED, step.syncer_step))
    return method(self, now)


@around(Syncer, "_pass_if_first")
def passed_out_of_order(method: Any, self: Syncer, now: float, step: OpenStep) -> bool:
    """A step at which nothing is due keeps its place in the order of t."""
    self._open.remove(step)
    self._open.insert(0, step)
    return method(self, now, step)


@mutant
def never_at_its_end(plant: Plant) -> None:
    """The run ends with the commit that reaches its budget."""
    plant.put(Syncer, "_finish_if_due", lambda self: None)


# ---------------------------------------------------------------- late work


@around(open_step, "is_usable")
def late_steps_merged_again(is_usable: Any, counters: Any, member: Any, *args: Any) -> bool:
    """Who has not adopted the version that merged its steps does not contribute them again."""
    return bool(is_usable(counters, SimpleNamespace(merged_step={}), *args))


@around(open_step, "is_usable")
def window_off_by_one(
    is_usable: Any, counters: Any, member: Any, fragment: int, version: int, config: SyncConfig
) -> bool:
    """No base is further behind than the recipe's window."""
    wider = config.model_copy(update={"base_window": config.base_window + 1}) if config.base_window else config
    return bool(is_usable(counters, member, fragment, version, wider))


@mutant
def late_work_at_full_weight(plant: Plant) -> None:
    """Late work weighs less, by its age."""
    plant.around(open_step, "weigh", lambda weigh: lambda each, ages, *how: weigh(each, [0] * len(ages), *how))
