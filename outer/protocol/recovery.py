"""Rebuilds the syncer's state from the journal's records, for the next epoch.

Pure. outer/journal reads and verifies the records; the shell restores the fragments' values that belong to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from outer.protocol.coverage import Coverage, Mark
from outer.protocol.facts import Committed, Finished, Record, SetAside, SpanGranted
from outer.protocol.sample_spans import SUSPECTS_MAX, Span, SpanPool


@dataclass(frozen=True)
class Entry:
    """One durable record with its epoch and sequence number, from an Append effect."""

    epoch: int
    sequence: int
    record: Record


Key = tuple[str, int]  # learner, incarnation


@dataclass
class Recovered:
    """The state at which the previous epoch stopped. One Syncer takes it over and changes it in place."""

    versions: list[int]  # by fragment
    digests: list[str]
    tokens_committed: int = 0
    spans: SpanPool = field(default_factory=SpanPool)
    coverage: dict[Key, Coverage] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)  # the newest one that a record names, by learner
    batch_sizes: dict[Key, int] = field(default_factory=dict)  # samples
    merged_step: dict[Key, dict[int, int]] = field(default_factory=dict)  # then by fragment
    finished: Finished | None = None
    whole: bool = True  # whether every loan is known
    set_aside: int = 0  # ranges of samples that are not lent again
    suspects: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SUSPECTS_MAX))  # samples
    clock: int = 0  # the syncer step of the newest announced commit, where that commit was lost


def recover(entries: Iterable[Entry], fragments: int) -> Recovered:
    """Apply all entries. Raises ValueError, naming the entry, when one is missing or out of order."""
    replay = JournalReplay.empty(fragments)
    for entry in entries:
        replay.apply(entry)
    return replay.found


@dataclass
class JournalReplay:
    """The state after some prefix of the journal. It replaces the records themselves."""

    found: Recovered
    epoch: int = 0
    due: int = 0  # sequence number of the next entry of this epoch

    @classmethod
    def empty(cls, fragments: int) -> JournalReplay:
        return cls(Recovered([0] * fragments, [""] * fragments))

    def apply(self, entry: Entry) -> None:
        """Apply the next entry. Raises ValueError, and changes nothing, for any other entry."""
        self.epoch, self.due = self.follow([entry])
        self._count(entry.record)

    def follow(self, entries: Iterable[Entry]) -> tuple[int, int]:
        """Return the epoch and sequence number that are due after these entries. Raises ValueError for one that is not
        due.
        """
        epoch, due = self.epoch, self.due
        for entry in entries:
            epoch, due = max(entry.epoch, epoch), 0 if entry.epoch > epoch else due
            if (entry.epoch, entry.sequence) != (epoch, due):
                found = f"entry {entry.sequence} of epoch {entry.epoch}"
                raise ValueError(f"the journal has {found} where entry {due} of epoch {epoch} is due")
            due += 1
        return epoch, due

    def _count(self, record: Record) -> None:
        found = self.found
        match record:
            case Committed() as commit:
                _commit(found, commit)
                found.finished = None  # that run was reopened
            case SpanGranted() as granted:
                key = (granted.learner, granted.incarnation)
                _forget_older(found, *key)
                found.batch_sizes[key] = granted.batch_size
                found.spans.replay_grant(*key, Span(granted.span, granted.start, granted.stop))
                _name(found, *key)
            case Finished() as finished:
                found.finished = finished
            case back:
                if isinstance(back, SetAside):
                    found.set_aside += 1
                elif back.ended_on:
                    found.suspects.append(back.ended_on)
                span = Span(back.span, back.start, back.stop)
                found.spans.replay_return(back.learner, back.incarnation, span, not isinstance(back, SetAside))


def _commit(found: Recovered, commit: Committed) -> None:
    found.versions[commit.fragment] = commit.syncer_step
    found.digests[commit.fragment] = commit.digest
    found.tokens_committed = commit.tokens_committed
    for one in commit.participants:
        key = (one.learner, one.incarnation)
        if one.incarnation < found.incarnations.get(one.learner, 0):
            continue  # it was merged before its successor was granted samples
        covered = found.coverage.setdefault(key, Coverage())
        covered.add(Mark(one.base_step, one.processed - one.tokens), Mark(one.step, one.processed))
        found.spans.trim(*key, covered.last_step * found.batch_sizes.get(key, 0))
        found.merged_step.setdefault(key, {})[commit.fragment] = one.step
        _name(found, *key)


def _forget_older(found: Recovered, learner: str, incarnation: int) -> None:
    """A newer incarnation is granted samples only after all that earlier ones had left was returned."""
    if incarnation > found.incarnations.get(learner, 0):
        for by_key in (found.coverage, found.batch_sizes, found.merged_step):
            for key in [key for key in by_key if key[0] == learner]:
                del by_key[key]
        found.spans.forget(learner)


def _name(found: Recovered, learner: str, incarnation: int) -> None:
    found.incarnations[learner] = max(incarnation, found.incarnations.get(learner, 0))
