"""Bugs in going on from a journal: what another epoch forgets, and who may still write beside it."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from dataclasses import replace
from typing import Any

from outer.journal.chain import group_key
from outer.journal.journal import Opened, StoredJournal
from outer.protocol import recovery
from outer.protocol.facts import Committed
from outer.protocol.members import Members
from outer.protocol.recovery import Recovered
from outer.protocol.sample_spans import SpanPool
from outer.protocol.syncer import Syncer
from tests.simulation.planting import Plant, around, mutant


def forgets(name: str, breaks: str, **nothing: Any) -> Any:
    """A bug: this is recovered as if the journal named none of it."""

    def bug(method: Any, self: StoredJournal) -> Opened:
        opened: Opened = method(self)
        opened.found = replace(opened.found, **deepcopy(nothing))
        return opened

    bug.__name__, bug.__doc__ = f"{name}_not_recovered", breaks
    return around(StoredJournal, "open")(bug)


forgets("tokens", "The count of committed tokens goes on from the journal.", tokens_committed=0)
forgets("coverage", "What earlier epochs have counted is not counted again.", coverage={})
forgets("merged_steps", "Another epoch knows which steps of each learner are in which fragment.", merged_step={})
forgets(
    "incarnations",
    "Another epoch fences who died meanwhile: it knows the incarnations that the journal names.",
    incarnations={},
)


@around(StoredJournal, "_replay_all")
def last_commit_not_recovered(method: Any, self: StoredJournal, chain: Any) -> None:
    """Another epoch goes on from every durable commit."""
    has_commit = [any(isinstance(entry.record, Committed) for entry in group.entries()) for group in chain]
    method(self, chain[has_commit.index(True) + 1 :] if True in has_commit else chain)


@around(recovery, "_commit")
def first_commit_recovered(method: Any, found: Recovered, commit: Committed) -> None:
    """Recovery continues from the newest durable version of each fragment."""
    before = list(found.versions)
    method(found, commit)
    if before[commit.fragment]:
        found.versions[commit.fragment] = before[commit.fragment]


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


@around(StoredJournal, "_put")
def zombie_appends(method: Any, self: StoredJournal, *group: Any) -> None:
    """The journal takes a record of the newest epoch only."""
    try:
        method(self, *group)
    except FileExistsError:
        if self._opening.position < 0:
            raise
        self._next += 1  # there is room behind what the other one wrote
        zombie_appends_again(method, self, *group)


def zombie_appends_again(method: Any, self: StoredJournal, *group: Any) -> None:
    newest = self._chain.group(self._next - 1)
    self._after, self._before = newest.position, newest.seal
    with contextlib.suppress(FileExistsError):
        method(self, *group)


@around(StoredJournal, "_put")
def opened_on_a_stale_reading(method: Any, self: StoredJournal, *group: Any) -> None:
    """An epoch opens only on all that is durable."""
    while self._opening.position < 0:
        with contextlib.suppress(FileExistsError):
            return method(self, *group)
        self._next += 1
    return method(self, *group)


@around(StoredJournal, "_put")
def record_written_twice(method: Any, self: StoredJournal, *group: Any) -> None:
    """A record whose acknowledgement was lost is written once."""
    lost, written = self._unsure, self._next
    unread = self._store.names(self._folder) if lost else []
    method(self, *group)
    if group_key(self._folder, written) in unread:  # it was there already
        method(self, *group)
