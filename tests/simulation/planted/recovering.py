"""Bugs in going on from a journal: what another epoch forgets, and who may still write beside it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from chaos.simulation.ports.storage import Store, Write
from outer.protocol import recovery
from outer.protocol.facts import Committed
from outer.protocol.members import Members
from outer.protocol.recovery import Recovered
from outer.protocol.sample_spans import SpanPool
from outer.protocol.syncer import Syncer
from tests.simulation.planting import Plant, around, mutant


def forgets(name: str, breaks: str, **nothing: Any) -> Any:
    """A bug: this is recovered as if the journal named none of it."""

    def bug(recover: Any, entries: Any, fragments: int) -> Recovered:
        return replace(recover(entries, fragments), **deepcopy(nothing))

    bug.__name__, bug.__doc__ = f"{name}_not_recovered", breaks
    return around(recovery, "recover")(bug)


forgets("tokens", "The count of committed tokens goes on from the journal.", tokens_committed=0)
forgets("coverage", "What earlier epochs have counted is not counted again.", coverage={})
forgets("merged_steps", "Another epoch knows which steps of each learner are in which fragment.", merged_step={})
forgets(
    "incarnations",
    "Another epoch fences who died meanwhile: it knows the incarnations that the journal names.",
    incarnations={},
)


@around(recovery, "recover")
def last_commit_not_recovered(recover: Any, entries: Any, fragments: int) -> Recovered:
    """Another epoch goes on from every durable commit."""
    last = max((i for i, entry in enumerate(entries) if isinstance(entry.record, Committed)), default=len(entries))
    return recover(entries[:last], fragments)


@around(recovery, "recover")
def first_commit_recovered(recover: Any, entries: Any, fragments: int) -> Recovered:
    """Recovery continues from the newest durable version of each fragment."""
    found = recover(entries, fragments)
    for entry in reversed(entries):
        if isinstance(entry.record, Committed):
            found.versions[entry.record.fragment] = entry.record.syncer_step
    return found


def clock_moved(by: int) -> Any:
    def wrapper(method: Any) -> Any:
        def restore(self: Syncer, recovered: Recovered) -> None:
            method(self, recovered)
            self.syncer_step = self.committed_step = max(0, self.syncer_step + by)

        return restore

    return wrapper


@mutant
def clock_ahead_after_recovery(plant: Plant) -> None:
    """The syncer's clock goes on with the step after the newest commit: no fragment loses its turn."""
    plant.around(Syncer, "_restore", clock_moved(1))


@mutant
def clock_behind_after_recovery(plant: Plant) -> None:
    """What is committed is not committed again by the next epoch."""
    plant.around(Syncer, "_restore", clock_moved(-1))


# ---------------------------------------------------------------- spans


@around(SpanPool, "replay_grant")
def high_water_mark_not_recovered(method: Any, self: SpanPool, *given: Any) -> None:
    """Another epoch lends no samples that are lent."""
    before = self._next_sample
    method(self, *given)
    self._next_sample = before


@around(SpanPool, "replay_grant")
def span_numbers_not_recovered(method: Any, self: SpanPool, *given: Any) -> None:
    """Spans of all epochs have numbers of their own: a learner takes each once."""
    before = self._next_identifier
    method(self, *given)
    self._next_identifier = before


@around(SpanPool, "replay_grant")
def returned_span_lent_twice(method: Any, self: SpanPool, *given: Any) -> None:
    """What returned and was lent again is not in another epoch's pool."""
    before = list(self._returned)
    method(self, *given)
    self._returned = before


@mutant
def return_not_recovered(plant: Plant) -> None:
    """What an earlier epoch took back does not return twice."""
    plant.put(SpanPool, "replay_return", lambda self, learner, incarnation, back, returns: None)


@around(Members, "restore")
def spans_not_trimmed_after_recovery(method: Any, self: Members, recovered: Recovered) -> None:
    """Another epoch knows how much of each span is committed."""
    method(self, recovered)
    for member in self._members.values():
        member.first_step = (
            self._coverage[key].last_step if (key := (member.name, member.incarnation)) in (self._coverage) else 0
        )


@around(Members, "restore")
def durable_span_not_recovered(method: Any, self: Members, recovered: Recovered) -> None:
    """A span that an earlier epoch has granted is sent again to a learner that lacks it."""
    method(self, recovered)
    for member in self._members.values():
        member.durable_span = -1


# ---------------------------------------------------------------- the store's conditions


@around(Store, "put")
def zombie_appends(method: Any, self: Store, write: Write) -> str:
    """The journal takes a record of the newest epoch only."""
    if write.epoch == self.epoch:
        return method(self, write)
    self.entries.append(write)
    self._taken(write)
    return "ok"


@around(Store, "open")
def opened_on_a_stale_reading(method: Any, self: Store, epoch: int, seen: list[Write]) -> bool:
    """An epoch opens only on all that is durable."""
    return method(self, epoch, self.entries)


@around(Store, "put")
def record_written_twice(method: Any, self: Store, write: Write) -> str:
    """A record whose acknowledgement was lost is written once."""
    if write.epoch == self.epoch and self.entries and self.entries[-1] == write:
        self.entries.append(write)
        self._taken(write)
        return "ok"
    return method(self, write)
