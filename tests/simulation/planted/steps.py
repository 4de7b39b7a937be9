"""Bugs in the life of a syncer step: quorum and grace, what is merged and with what weight, the order of commits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from outer.config import SyncConfig
from outer.protocol import open_step
from outer.protocol import read_requests as reading
from outer.protocol.link_ladder import Clock
from outer.protocol.messages import STEPPING, Report
from outer.protocol.open_step import OpenStep, Stage
from outer.protocol.quorum import Decision, QuorumVerdict
from outer.protocol.read_requests import ReadRequests
from outer.protocol.syncer import Syncer
from tests.simulation.planting import Plant, mutant


@mutant
def quorum_off_by_one(plant: Plant) -> None:
    """Nothing commits below the quorum."""

    def wrapper(method: Any) -> Any:
        def with_one_fewer(self: ReadRequests, *args: Any) -> None:
            quorum, self._quorum = self._quorum, max(1, self._quorum - 1)
            method(self, *args)
            self._quorum = quorum

        return with_one_fewer

    plant.around(ReadRequests, "ask", wrapper)
    plant.around(ReadRequests, "close", wrapper)


@mutant
def quorum_of_the_asked(plant: Plant) -> None:
    """Contributions that are valid make a quorum, not learners that were asked."""

    def close(self: ReadRequests, now: float, step: OpenStep, version: int, clock: Clock) -> None:
        assert step.fragment is not None
        for learner in list(step.awaited):
            self._members.note_missed(self._members.known(learner), None)
            self._out.emit(step.miss(learner, "timeout"))
        if step.contributions:  # K were asked, or it would not be reading
            self._out.add(step.merge(version, self._config.round_steps))
        else:
            self.reopen(now, step, "nobody answered")

    plant.put(ReadRequests, "close", close)


@mutant
def any_report_counts(plant: Plant) -> None:
    """A quorum is of learners that finished a step, as they report it, after the syncer step opened."""

    def wrapper(method: Any) -> Any:
        def on_report(self: Syncer, now: float, event: Report) -> None:
            if event.phase == STEPPING and self._members.get(event.learner, event.incarnation) is not None:
                for step in self._open:
                    step.reported.add(event.learner)
            method(self, now, event)

        return on_report

    plant.around(Syncer, "_on_report", wrapper)


@mutant
def grace_never_closes(plant: Plant) -> None:
    """Grace without end is over once every live learner has reported."""

    def wrapper(decide: Any) -> Any:
        def waits(now: float, **given: Any) -> QuorumVerdict:
            if given["quorum_at"] is not None and given["grace_s"] is None:
                return QuorumVerdict(Decision.WAIT, "grace is without end")
            return decide(now, **given)

        return waits

    plant.around(open_step, "decide", wrapper)


@mutant
def grace_twice(plant: Plant) -> None:
    """More than a quorum is waited for no longer than the grace that was granted."""

    def wrapper(method: Any) -> Any:
        def judge(
            self: OpenStep, now: float, quorum: int, live: int, reported: int, grace_s: float | None
        ) -> QuorumVerdict:
            verdict = method(self, now, quorum, live, reported, grace_s)
            if (
                self.stage is Stage.GRACE
                and verdict.decision is Decision.MERGE
                and reported < live
                and self.reason == ""
            ):
                self.reason, self.grace_s = "once more", 2 * self.grace_s
                return QuorumVerdict(Decision.WAIT, self.reason)
            return verdict

        return judge

    plant.around(OpenStep, "judge", wrapper)


@mutant
def steps_open_at_once(plant: Plant) -> None:
    """Paced by the clock, a syncer step opens no sooner than one median step after the one before."""

    def wrapper(method: Any) -> Any:
        def open_next(self: Syncer, now: float) -> bool:
            self._opened_at = float("-inf")
            return method(self, now)

        return open_next

    plant.around(Syncer, "_open_next", wrapper)


@mutant
def one_step_too_many(plant: Plant) -> None:
    """At most max(1, tau) syncer steps are open."""

    def wrapper(method: Any) -> Any:
        def may_open(self: Syncer) -> bool:
            steps, self._open = self._open, self._open[1:]
            may = method(self)
            self._open = steps
            return may

        return may_open

    plant.around(Syncer, "_may_open", wrapper)


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


@mutant
def weights_of_the_last_report(plant: Plant) -> None:
    """A contribution weighs by the counters of the step that was read, not by those of a report."""

    def wrapper(method: Any) -> Any:
        def close(self: ReadRequests, now: float, step: OpenStep, version: int, clock: Clock) -> None:
            told = {member.name: member.report.counters for member in self._members.live if member.report}

            def stale(contributions: Any, *how: Any) -> Any:
                counters = [told.get(c.learner, {c.fragment: c.counters})[c.fragment] for c in contributions]
                usable = [now if now.steps else c.counters for now, c in zip(counters, contributions, strict=True)]
                return weigh([replace(c, counters=now) for c, now in zip(contributions, usable, strict=True)], *how)

            with patch.object(open_step, "weigh", stale):
                method(self, now, step, version, clock)

        return close

    weigh = open_step.weigh
    plant.around(ReadRequests, "close", wrapper)


@mutant
def weights_by_tokens(plant: Plant) -> None:
    """Weights are tokens^2 / steps, normalised."""

    def weigh(contributions: Any, *how: Any) -> tuple[float, ...]:
        total = sum(c.counters.tokens for c in contributions)
        return tuple(c.counters.tokens / total for c in contributions)

    plant.put(open_step, "weigh", weigh)


@mutant
def doubled_answer_merged(plant: Plant) -> None:
    """A learner merges at most once into a commit, however often its answer arrives."""

    def wrapper(method: Any) -> Any:
        def take(self: OpenStep, contribution: Any, *args: Any) -> str:
            reason: str = method(self, contribution, *args)
            if reason != "doubled":
                return reason
            self.contributions[f"{contribution.learner} again"] = contribution
            return ""

        return take

    plant.around(OpenStep, "accept", wrapper)


@mutant
def kept_over_reopening(plant: Plant) -> None:
    """A step that reopens begins with no contribution: who is asked again does not merge twice."""

    def reopening(method: Any) -> Any:
        def reopen(self: OpenStep, *args: Any) -> Any:
            kept = {f"{name} before": one for name, one in self.contributions.items()}
            fact = method(self, *args)
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


@mutant
def defects_merged(plant: Plant) -> None:
    """A contribution whose payload is damaged, or not finite, is refused."""

    def wrapper(unusable: Any) -> Any:
        def blind(contribution: Any, *args: Any) -> str:
            return unusable(replace(contribution, defect=""), *args)

        return blind

    plant.around(open_step, "unusable", wrapper)


@mutant
def overflow_committed(plant: Plant) -> None:
    """A merged update that is not finite is thrown away."""

    def wrapper(method: Any) -> Any:
        return lambda self, now, event: method(self, now, replace(event, finite=True))

    plant.around(Syncer, "_on_merged", wrapper)


# ---------------------------------------------------------------- commits


@mutant
def commits_out_of_order(plant: Plant) -> None:
    """Steps commit in the order of t, whichever is merged first."""

    def wrapper(method: Any) -> Any:
        def commit_next(self: Syncer, now: float) -> bool:
            under_way = any(step.stage is Stage.JOURNALING for step in self._open)
            if not under_way:
                self._open.sort(key=lambda step: (step.stage is not Stage.MERGED, step.syncer_step))
            return method(self, now)

        return commit_next

    plant.around(Syncer, "_commit_next", wrapper)


@mutant
def passed_out_of_order(plant: Plant) -> None:
    """A step at which nothing is due keeps its place in the order of t."""

    def wrapper(method: Any) -> Any:
        def pass_if_first(self: Syncer, now: float, step: OpenStep) -> bool:
            self._open.remove(step)
            self._open.insert(0, step)
            return method(self, now, step)

        return pass_if_first

    plant.around(Syncer, "_pass_if_first", wrapper)


@mutant
def never_at_its_end(plant: Plant) -> None:
    """The run ends with the commit that reaches its budget."""
    plant.put(Syncer, "_finish_if_due", lambda self: None)


# ---------------------------------------------------------------- late work


@mutant
def late_steps_merged_again(plant: Plant) -> None:
    """Who has not adopted the version that merged its steps does not contribute them again."""

    def wrapper(is_usable: Any) -> Any:
        def forgetful(counters: Any, member: Any, *args: Any) -> bool:
            return bool(is_usable(counters, SimpleNamespace(merged_step={}), *args))

        return forgetful

    plant.around(open_step, "is_usable", wrapper)


@mutant
def window_off_by_one(plant: Plant) -> None:
    """No base is further behind than the recipe's window."""

    def wrapper(is_usable: Any) -> Any:
        def generous(counters: Any, member: Any, fragment: int, version: int, config: SyncConfig) -> bool:
            wider = config.model_copy(update={"base_window": config.base_window + 1}) if config.base_window else config
            return bool(is_usable(counters, member, fragment, version, wider))

        return generous

    plant.around(open_step, "is_usable", wrapper)


@mutant
def late_work_at_full_weight(plant: Plant) -> None:
    """Late work weighs less, by its age."""
    plant.around(open_step, "weigh", lambda weigh: lambda each, ages, *how: weigh(each, [0] * len(ages), *how))
