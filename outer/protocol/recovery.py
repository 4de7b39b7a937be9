"""What another epoch of the syncer goes on from: the journal's records, and nothing else.

Pure: which records survived, and whether they are whole, is the journal's to know; the fragments' values that go
with the commits are the shell's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outer.protocol.coverage import Coverage, Mark
from outer.protocol.events_effects import NOTHING_LOGGED
from outer.protocol.facts import Committed, Finished, Record, SpanGranted
from outer.protocol.spans import Span, SpanPool


@dataclass(frozen=True)
class Entry:
    """One durable record, as Append gave it."""

    epoch: int
    sequence: int
    logged: int
    record: Record


Key = tuple[str, int]  # learner, incarnation


@dataclass
class Recovered:
    """Where the epoch before stopped. Handed to one Syncer, which goes on writing to it."""

    versions: list[int]  # by fragment
    digests: list[str]
    tokens_committed: int = 0
    spans: SpanPool = field(default_factory=SpanPool)
    coverage: dict[Key, Coverage] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)  # the newest of each learner that any record names
    batch_sizes: dict[Key, int] = field(default_factory=dict)  # in samples
    merged_step: dict[Key, dict[int, int]] = field(default_factory=dict)  # then by fragment
    unlogged: tuple[Record, ...] = ()  # what the log may lack
    finished: Finished | None = None
    clock: int = 0  # where it is above every version: later commits were announced, and are lost


def recover(entries: Iterable[Entry], fragments: int) -> Recovered:
    """JournalReplay the journal. Raises ValueError, naming the entry, where one is missing or out of order."""
    replay = JournalReplay.empty(fragments)
    for entry in entries:
        replay.apply(entry)
    return replay.found


@dataclass
class JournalReplay:
    """The records up to some entry, one after another; whoever keeps it need not keep them."""

    found: Recovered
    epoch: int = 0
    due: int = 0  # the sequence of the entry that follows, if it is of the same epoch
    tail: list[Entry] = field(default_factory=list)  # of which the log may lack any

    @classmethod
    def empty(cls, fragments: int) -> JournalReplay:
        return cls(Recovered([0] * fragments, [""] * fragments))

    def apply(self, entry: Entry) -> None:
        """The entry that follows. Raises ValueError, and changes nothing, for any other."""
        epoch, due = max(entry.epoch, self.epoch), 0 if entry.epoch > self.epoch else self.due
        if (entry.epoch, entry.sequence) != (epoch, due):
            found = f"entry {entry.sequence} of epoch {entry.epoch}"
            raise ValueError(f"the journal has {found} where entry {due} of epoch {epoch} is due")
        self.epoch, self.due = epoch, due + 1
        self._count(entry.record)
        self.tail.append(entry)
        if entry.logged > NOTHING_LOGGED:  # else it does not even tell what of the epoch before was said
            self.tail = [each for each in self.tail if each.epoch == entry.epoch and each.sequence > entry.logged]
        self.found.unlogged = tuple(each.record for each in self.tail)

    def _count(self, record: Record) -> None:
        found = self.found
        match record:
            case Committed() as commit:
                _commit(found, commit)
                found.finished = None  # that run was reopened
            case SpanGranted() as granted:
                key = (granted.learner, granted.incarnation)
                found.batch_sizes[key] = granted.batch_size
                found.spans.lent(*key, Span(granted.span, granted.start, granted.stop))
                _name(found, *key)
            case Finished() as finished:
                found.finished = finished
            case returned:
                key = (returned.learner, returned.incarnation)
                found.spans.given_back(*key, Span(returned.span, returned.start, returned.stop))


def _commit(found: Recovered, commit: Committed) -> None:
    found.versions[commit.fragment] = commit.syncer_step
    found.digests[commit.fragment] = commit.digest
    found.tokens_committed = commit.tokens_committed
    for one in commit.participants:
        key = (one.learner, one.incarnation)
        covered = found.coverage.setdefault(key, Coverage())
        covered.add(Mark(one.base_step, one.processed - one.tokens), Mark(one.step, one.processed))
        found.spans.trim(*key, covered.last_step * found.batch_sizes.get(key, 0))
        found.merged_step.setdefault(key, {})[commit.fragment] = one.step
        _name(found, *key)


def _name(found: Recovered, learner: str, incarnation: int) -> None:
    found.incarnations[learner] = max(incarnation, found.incarnations.get(learner, 0))
