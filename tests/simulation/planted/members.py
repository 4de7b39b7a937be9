"""Bugs in what the syncer knows of learners: who may speak, who is alive, what they are lent, what of theirs counts."""

from __future__ import annotations

from typing import Any

from learners.protocol import learner
from learners.protocol.learner import Learner
from outer.protocol import sessions as steward
from outer.protocol import syncer
from outer.protocol.coverage import Coverage
from outer.protocol.events_effects import Fence
from outer.protocol.leases import Leases
from outer.protocol.members import Members
from outer.protocol.messages import STEPPING, Attach, Report
from outer.protocol.sample_spans import SpanPool
from outer.protocol.syncer import Syncer
from tests.simulation.planting import Plant, around, mutant

# ---------------------------------------------------------------- who may speak


def admitting(kind: type[Any]) -> Any:
    """Whatever incarnation sends a message of this kind: the newest is taken for its sender."""

    def wrapper(method: Any) -> Any:
        def admit(self: Members, event: Any, message: str) -> Any:
            member = self._members.get(event.learner)
            if isinstance(event, kind) and member is not None and not member.fenced:
                return member
            return method(self, event, message)

        return admit

    return wrapper


@mutant
def incarnation_unchecked_in_reports(plant: Plant) -> None:
    """A report of an incarnation that is gone is no sign of life of the next one."""
    plant.around(Members, "admit", admitting(Report))


@mutant
def incarnation_unchecked_at_attach(plant: Plant) -> None:
    """An incarnation that is gone attaches no more."""
    plant.around(Members, "admit", admitting(Attach))


@around(Syncer, "_on_fence")
def fence_of_the_wrong_incarnation(method: Any, self: Syncer, now: float, event: Fence) -> None:
    """A fence ends the incarnation that it names, and not the one after it."""
    member = self._members._members.get(event.learner)
    newest = event.incarnation if member is None else member.incarnation
    method(self, now, Fence(event.learner, newest, event.reason))


@mutant
def fence_ignored(plant: Plant) -> None:
    """Of an incarnation that is held for dead nothing new is accepted, and what it was lent returns."""
    plant.put(Syncer, "_on_fence", lambda self, now, event: None)


@mutant
def refused_but_attached(plant: Plant) -> None:
    """A learner of another recipe changes nothing."""

    def wrapper(method: Any) -> Any:
        def refuse(self: Members, event: Any, message: str, reason: str, detail: str = "") -> None:
            method(self, event, message, reason, detail)
            if reason == "wrong_config" and (member := self.get(event.learner, event.incarnation)) is not None:
                member.attached = True

        return refuse

    def attaching(method: Any) -> Any:
        def attach(self: Any, now: float, event: Attach, standing: Any) -> None:
            method(self, now, event, standing)
            member = self._members.get(event.learner, event.incarnation)
            if member is not None and member.attached and event.manifest != self._manifest:  # it was only warned
                method(self, now, Attach(event.learner, event.incarnation, self._manifest), standing)

        return attach

    plant.around(Members, "refuse", wrapper)
    plant.around(steward.Sessions, "attach", attaching)


@around(Members, "record_report")
def overtaken_report_taken(method: Any, self: Members, now: float, member: Any, report: Report) -> bool:
    """The newest report counts, not the last that arrived."""
    method(self, now, member, report)
    member.report = report
    return True


# ---------------------------------------------------------------- who is alive


@mutant
def lease_never_expires(plant: Plant) -> None:
    """A learner that is silent for longer than its lease is not waited for."""
    plant.put(Leases, "expire", lambda self, now: [])
    plant.put(Leases, "next_expiry", None)


@around(Leases, "renew")
def lease_never_renewed(method: Any, self: Leases, learner: str, *given: Any) -> float | None:
    """A learner whose lease has run out, and that reports again, goes on."""
    was = learner in self._expired
    silent_s: float | None = method(self, learner, *given)
    if was:
        self._expired.add(learner)
    return silent_s


@mutant
def never_quarantined(plant: Plant) -> None:
    """A learner that stays non-finite is ended, and starts anew."""
    plant.put(syncer, "NON_FINITE_MAX", 10**9)
    plant.put(learner, "NON_FINITE_MAX", 10**9)


@mutant
def donor_before_it_is_whole(plant: Plant) -> None:
    """A learner gives its state only when every fragment of it came from the syncer."""

    def is_whole(member: Any) -> bool:
        report = member.report
        return report is not None and report.phase == STEPPING and not member.draining and not member.non_finite

    def unfit(self: Learner, request: Any) -> str:
        stale = request.epoch != self._epoch or request.donor_incarnation != self.incarnation
        return "stale" if stale else "" if self.phase == STEPPING else "not_whole"

    plant.put(steward, "is_whole", is_whole)
    plant.put(Learner, "_unfit", unfit)


# ---------------------------------------------------------------- spans and books


@around(SpanPool, "release")
def span_wholly_returned(method: Any, self: Any, name: Any, incarnation: Any, committed: Any, aside: Any) -> Any:
    """What returns of a dead learner's spans comes after its last committed step."""
    return method(self, name, incarnation, 0, aside)


@around(SpanPool, "release")
def set_aside_and_lent_again(method: Any, self: SpanPool, *given: Any) -> Any:
    """Samples that are set aside are lent no more."""
    found = method(self, *given)
    for span, returns in found:
        if not returns:
            self._add_returned(span.start, span.stop)
    return found


@around(SpanPool, "release")
def span_never_returned(method: Any, self: SpanPool, *given: Any) -> list[Any]:
    """What a dead learner did not come to returns to the pool."""
    method(self, *given)
    return []


@around(SpanPool, "_next_range")
def span_returned_but_kept(method: Any, self: SpanPool, samples: int, batch_size: int) -> tuple[int, int]:
    """What returned to the pool is lent to one learner at a time."""
    kept = list(self._returned)
    taken: tuple[int, int] = method(self, samples, batch_size)
    self._returned = kept
    return taken


@mutant
def coverage_of_a_learner(plant: Plant) -> None:
    """Tokens are counted by incarnation: each begins again with step 1."""

    class ByLearner(dict[tuple[str, int], Coverage]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            return super().setdefault((key[0], 1), default)

    def wrapper(method: Any) -> Any:
        def init(self: Members, *given: Any) -> None:
            method(self, *given)
            self._coverage = ByLearner()

        return init

    plant.around(Members, "__init__", wrapper)


@around(Members, "cover")
def tokens_of_every_fragment(method: Any, self: Members, contribution: Any) -> int:
    """A token is committed once, by the first fragment that holds it."""
    method(self, contribution)
    tokens: int = contribution.counters.tokens
    return tokens
