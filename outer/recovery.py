"""What another epoch of the syncer goes on from: the journal's records, and nothing else.

Pure: which records survived, and whether they are whole, is the journal's to know; the fragments' values that go
with the commits are the shell's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outer.coverage import Coverage, Mark
from outer.facts import Committed, Finished, Record, SpanGranted
from outer.outgoing import NOTHING
from outer.spans import Span, SpanPool


@dataclass(frozen=True)
class Entry:
    """One durable record, as Append gave it."""

    epoch: int
    sequence: int
    said: int
    record: Record


@dataclass
class Recovered:
    """Where the epoch before stopped. Handed to one Syncer, which goes on writing to it."""

    versions: list[int]  # by fragment
    digests: list[str]
    tokens_committed: int
    spans: SpanPool
    coverage: dict[tuple[str, int], Coverage]  # by (learner, incarnation)
    incarnations: dict[str, int]  # the newest of each learner that any record names
    batch_sizes: dict[tuple[str, int], int]  # in samples, by (learner, incarnation)
    merged_step: dict[tuple[str, int], dict[int, int]]  # by (learner, incarnation), then fragment
    unsaid: tuple[Record, ...]  # what the log may lack
    finished: Finished | None = None


def recover(entries: Sequence[Entry], fragments: int) -> Recovered:
    """Replay the journal. Raises ValueError, naming the entry, where one is missing or out of order."""
    _follow(entries)
    found = Recovered([0] * fragments, [""] * fragments, 0, SpanPool(), {}, {}, {}, {}, _unsaid(entries))
    for entry in entries:
        match entry.record:
            case Committed() as commit:
                _commit(found, commit)
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
    return found


def _follow(entries: Iterable[Entry]) -> None:
    epoch, expected = 0, 0
    for entry in entries:
        if entry.epoch > epoch:
            epoch, expected = entry.epoch, 0
        if (entry.epoch, entry.sequence) != (epoch, expected):
            found = f"entry {entry.sequence} of epoch {entry.epoch}"
            raise ValueError(f"the journal has {found} where entry {expected} of epoch {epoch} is due")
        expected += 1


def _unsaid(entries: Sequence[Entry]) -> tuple[Record, ...]:
    """What the last entry does not count as said: records of its epoch, and of those before that said nothing."""
    if not entries:
        return ()
    last = entries[-1]
    before = _unsaid([e for e in entries if e.epoch < last.epoch]) if last.said <= NOTHING else ()
    return (*before, *(e.record for e in entries if e.epoch == last.epoch and e.sequence > last.said))


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
