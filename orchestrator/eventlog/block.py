"""A block: a stretch of the log in its canonical order, the frequent facts as columns and all others as events.

Whole histories are read block by block, so that no Python object is made for each step, adoption or contribution.
Nobody changes a block's arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from heapq import merge
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.events import Event
from outer.protocol.facts import Committed, Participant

T = TypeVar("T")
Key = tuple[str, int]  # writer, incarnation; for the syncer its epoch
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Objects = NDArray[np.object_]
NONE = -1  # in a column of steps: no value


class Steps(NamedTuple):
    """StepFinished facts, arrays of [n]. `source` indexes Block.sources, `waited_for` indexes Block.names."""

    position: Ints  # in the whole log
    source: Ints
    sequence: Ints
    at: Floats  # Unix seconds
    step: Ints
    tokens: Ints
    span: Ints
    sample: Ints  # StepFinished.position
    loss: Floats
    seconds: Floats
    waited_s: Floats
    waited_for: Ints
    progress: Floats  # NaN: None
    aux: Objects  # dict[str, float] | None


class Adoptions(NamedTuple):
    """Adopted facts, arrays of [n]. `source` indexes Block.sources, `mode` indexes Block.names."""

    position: Ints
    source: Ints
    sequence: Ints
    at: Floats
    fragment: Ints
    version: Ints
    after_step: Ints
    mode: Ints
    read_at: Ints  # NONE: None
    bytes: Ints


class Commits(NamedTuple):
    """Committed facts, arrays of [n]; the participants of commit i are contributions first[i] to first[i + 1]."""

    position: Ints
    source: Ints
    sequence: Ints
    at: Floats
    syncer_step: Ints
    fragment: Ints
    epoch: Ints
    base_version: Ints
    live: Ints
    digest: Objects  # str
    norm: Floats
    tokens_committed: Ints
    quorum_s: Floats
    grace_s: Floats
    sync_s: Floats
    reason: Objects  # str
    first: Ints  # [n + 1]


class ContributionRows(NamedTuple):
    """The participants of the block's commits, arrays of [m]. `learner` indexes Block.sources."""

    commit: Ints  # its commit's place in Commits
    learner: Ints
    step: Ints
    base_step: Ints
    steps: Ints
    tokens: Ints
    weight: Floats
    digest: Objects  # str
    processed: Ints
    age: Ints
    codec: Objects  # str


class PlacedEvent(NamedTuple):
    """An event and its position in the whole log."""

    position: int
    event: Event


@dataclass(frozen=True)
class Block:
    """Rows `start` to `start + rows` of the log. Each table is in the log's order."""

    start: int
    rows: int
    sources: tuple[Key, ...]  # who said the columns' facts, and who took part in the commits
    names: tuple[str, ...]  # the words of columns that hold words
    steps: Steps
    adoptions: Adoptions
    commits: Commits
    contributions: ContributionRows
    others: tuple[PlacedEvent, ...]  # facts of all other kinds

    @property
    def stop(self) -> int:
        return self.start + self.rows

    def code(self, name: str) -> int:
        """The number that stands for a word in this block's columns; -1 where it does not occur."""
        return self.names.index(name) if name in self.names else -1

    def _key(self, source: int) -> Key:
        return self.sources[source]

    def events(self) -> Iterator[Event]:
        """All events, in order. Slow: for readers that need every fact as an object."""
        tables = (self.others, self._steps(), self._adoptions(), self.committed())
        return map(itemgetter(1), merge(*tables, key=itemgetter(0)))

    def _steps(self) -> Iterator[PlacedEvent]:
        for position, source, sequence, at, *rest in _rows(self.steps):
            step, tokens, span, sample, loss, seconds, waited_s, waited_for, progress, aux = rest
            fact = StepFinished(
                step,
                tokens,
                span,
                sample,
                loss,
                seconds,
                waited_s,
                self.names[waited_for],
                None if math.isnan(progress) else progress,
                aux,
            )
            yield PlacedEvent(position, Event(*self._key(source), sequence, at, fact))

    def _adoptions(self) -> Iterator[PlacedEvent]:
        for position, source, sequence, at, *rest in _rows(self.adoptions):
            fragment, version, after_step, mode, read_at, came = rest
            fact = Adopted(fragment, version, after_step, self.names[mode], None if read_at == NONE else read_at, came)
            yield PlacedEvent(position, Event(*self._key(source), sequence, at, fact))

    def committed(self) -> Iterator[PlacedEvent]:
        """The commits as events, in order."""
        parts = [
            Participant(*self._key(learner), *rest)  # the columns are in the order of its fields
            for _, learner, *rest in _rows(self.contributions)
        ]
        commits, first = self.commits, self.commits.first.tolist()
        for index, row in enumerate(_rows(commits._replace(first=commits.first[:-1]))):
            position, source, sequence, at, syncer_step, fragment, epoch, base, live, digest, *rest = row
            norm, tokens_committed, quorum_s, grace_s, sync_s, reason, _ = rest
            fact = Committed(
                syncer_step,
                fragment,
                epoch,
                base,
                tuple(parts[first[index] : first[index + 1]]),
                live,
                digest,
                norm,
                tokens_committed,
                quorum_s,
                grace_s,
                sync_s,
                reason,
            )
            yield PlacedEvent(position, Event(*self._key(source), sequence, at, fact))


def block_of(events: Iterable[Event], start: int = 0) -> Block:
    """The block of these events, which are in the log's order; the first is row `start`."""
    rows = Rows(start)
    for event in events:
        rows.add(event)
    return rows.block()


def as_blocks(log: Iterable[Event] | Iterable[Block]) -> Iterator[Block]:
    """Blocks as they are, and events as one block."""
    things: list[Any] = []
    for thing in log:
        if isinstance(thing, Block):
            yield thing
        else:
            things.append(thing)
    if things:
        yield block_of(things)


class Rows:
    """Collects the rows of a block, in the log's order; the first is row `start`."""

    def __init__(self, start: int) -> None:
        self._start = self.next = start  # the next row's position
        self._steps: list[tuple[Any, ...]] = []
        self._adoptions: list[tuple[Any, ...]] = []
        self._commits: list[tuple[Any, ...]] = []
        self._parts: list[tuple[Any, ...]] = []
        self._first = [0]
        self._others: list[PlacedEvent] = []
        self._sources, self._names = Numbers[Key](), Numbers[str]()

    def __len__(self) -> int:
        return self.next - self._start

    def skip_to(self, position: int) -> None:
        """The rows before this position are lost."""
        self.next = max(self.next, position)

    def add(self, event: Event) -> None:
        fact, key = event.fact, (event.writer, event.incarnation)
        match fact:
            case StepFinished():
                self.step(key, event.sequence, event.at, _step_fields(fact))
            case Adopted():
                self.adoption(key, event.sequence, event.at, _adoption_fields(fact))
            case Committed():
                self.commit(key, event.sequence, event.at, _commit_fields(fact), map(_part_fields, fact.participants))
            case _:
                self._others.append(PlacedEvent(self.next, event))
                self.next += 1

    def step(self, key: Key, sequence: int, at: float, values: Sequence[Any]) -> None:
        """A StepFinished, by the values of its fields in order."""
        *most, waited_for, progress, aux = values
        word, progress = self._names[waited_for], math.nan if progress is None else progress
        self._steps.append((self.next, self._sources[key], sequence, at, *most, word, progress, aux))
        self.next += 1

    def adoption(self, key: Key, sequence: int, at: float, values: Sequence[Any]) -> None:
        """An Adopted, by the values of its fields in order."""
        *most, mode, read_at, came = values
        word, read_at = self._names[mode], NONE if read_at is None else read_at
        self._adoptions.append((self.next, self._sources[key], sequence, at, *most, word, read_at, came))
        self.next += 1

    def commit(
        self, key: Key, sequence: int, at: float, values: Sequence[Any], participants: Iterable[Sequence[Any]]
    ) -> None:
        """A Committed, by the values of its fields in order; those of each participant apart."""
        number = len(self._commits)
        self._parts += [(number, self._sources[who, which], *rest) for who, which, *rest in participants]
        self._first.append(len(self._parts))
        before, after = values[:PARTICIPANTS], values[PARTICIPANTS + 1 :]
        self._commits.append((self.next, self._sources[key], sequence, at, *before, *after, 0))
        self.next += 1

    def block(self) -> Block:
        """The block of all rows so far."""
        return Block(
            self._start,
            len(self),
            tuple(self._sources),
            tuple(self._names),
            Steps(*columns(Steps, self._steps)),
            Adoptions(*columns(Adoptions, self._adoptions)),
            Commits(*columns(Commits, self._commits))._replace(first=np.array(self._first, np.int64)),
            ContributionRows(*columns(ContributionRows, self._parts)),
            tuple(self._others),
        )


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


PARTICIPANTS = _names(Committed).index("participants")
_step_fields = attrgetter(*_names(StepFinished))
_adoption_fields = attrgetter(*_names(Adopted))
_commit_fields = attrgetter(*_names(Committed))
_part_fields = attrgetter(*_names(Participant))


class Numbers(dict[T, int], Generic[T]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, thing: T) -> int:
        number = self[thing] = len(self)
        return number


_DTYPES: dict[str, Any] = {"Ints": np.int64, "Floats": np.float64, "Objects": np.object_}


def dtypes(table: type[Any]) -> dict[str, Any]:
    """The dtype of each column of Steps, Adoptions, Commits or Contributions."""
    return {name: _DTYPES[hint.__forward_arg__] for name, hint in table.__annotations__.items()}


def columns(table: type[Any], rows: Sequence[tuple[Any, ...]]) -> Iterator[NDArray[Any]]:
    columns = zip(*rows, strict=True) if rows else repeat((), len(dtypes(table)))
    for dtype, values in zip(dtypes(table).values(), columns, strict=True):
        column = np.empty(len(values), dtype)
        column[:] = values
        yield column


def _rows(table: tuple[NDArray[Any], ...]) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in table), strict=True)
