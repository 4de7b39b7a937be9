"""The one reader of the log: blocks in the canonical order, with bounded memory.

The order is the syncer's chain, so facts precede the commits that cover them. The orchestrator's and chaos's facts are
merged into it by wall time: before the first of the syncer's own facts that is later, where of the times up to a fact
the latest counts.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from heapq import merge
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, get_args

import numpy as np

from orchestrator.eventlog.block import Block, Floats, Ints, PlacedEvent, block_of
from orchestrator.eventlog.chain_reader import ChainReader, Decoded, Findings, decoded
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.log_writer import LOGS
from orchestrator.eventlog.segment_codec import FORMAT
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import stored
from outer.journal.chain import SEGMENT_ROWS, Segmented
from outer.journal.object_store import Folder, Objects, objects
from outer.protocol.facts import Record

SYNCER, ORCHESTRATOR, CHAOS = LOGS
RECORDS = get_args(Record)
SEAL_FILE = "seal.json"
RECIPE_FILE = "config.toml"


def store_of(run_dir: Path) -> Objects:
    """Where a run's log is: in its folder, or where its recipe's durability.store says. Raises ValueError, OSError."""
    path = run_dir / RECIPE_FILE
    try:
        elsewhere = stored(path).durability.store if path.is_file() and not (run_dir / "log").is_dir() else None
    except InputError:
        elsewhere = None  # a recipe that cannot be read hides no log that is in the folder
    if elsewhere is None or (run_dir / "log").is_dir():  # a tape's log is in its folder, whatever its recipe says
        return Folder(run_dir.absolute())
    return objects(elsewhere)


def blocks(run_dir: Path) -> Iterator[Block]:
    """A run's whole log. Raises OSError; what is damaged is left out, `LogReader.findings` says what."""
    return LogReader(run_dir).rest()


def intact(run_dir: Path) -> Iterator[Block]:
    """The same. Raises ValueError, at the end, for a log of which something cannot be read; OSError."""
    log = LogReader(run_dir)
    yield from log.rest()
    if log.findings.unreadable:
        raise ValueError(log.findings.unreadable[0])


def events(run_dir: Path) -> Iterator[Event]:
    """The same as events: slow, for those who need every fact as an object."""
    for block in blocks(run_dir):
        yield from block.events()


def read_run(run_dir: Path) -> list[Event]:
    """A whole log as a list. For short runs: it is all in memory."""
    return list(events(run_dir))


def records(blocks: Iterable[Block]) -> Iterator[tuple[int, Record]]:
    """(epoch, record), in the syncer's order: what a syncer starts from when its journal is damaged."""
    for block in blocks:
        others = (each for each in block.others if each.event.writer == SYNCER and isinstance(each.event.fact, RECORDS))
        for _, event in merge(others, block.committed(), key=itemgetter(0)):
            yield event.incarnation, event.fact


class LogReader:
    """Reads a run's log, once or as it grows."""

    def __init__(
        self,
        run_dir: Path,
        store: Objects | None = None,
        hold_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`hold_s`: `poll` leaves out what is newer, because facts of another process may still have to go before it,
        but nothing that it has seen for as long: dates may be of a clock that is ahead. 0: it leaves out nothing, and
        puts what comes later where it comes.
        """
        self.findings = Findings()
        self._hold_s, self._clock = hold_s, clock
        store = self._counted = _Counted(store or store_of(run_dir))
        self.syncer = ChainReader(store, SYNCER, self.findings)
        self.others = {log: ChainReader(store, log, self.findings) for log in (ORCHESTRATOR, CHAOS)}
        self._held: deque[_Dated] = deque()
        self._merging: list[tuple[int, Event]] = []  # the guests before rows of the first of them
        self._latest = float("-inf")  # the latest time of the syncer's own facts so far
        self._shift = 0  # rows that are not the syncer's chain's, so far
        self._guests = [_Guests(reader) for reader in self.others.values()]

    @property
    def bytes_read(self) -> int:
        return self._counted.bytes_read

    @property
    def rows(self) -> int:
        """Rows given so far."""
        return self.syncer.rows + self._shift - sum(each.block.rows for each in self._held)

    def poll(self) -> Iterator[Block]:
        """Return the new events. Raises OSError; then the next call goes on at the same place."""
        for block in self.syncer.poll(quick=True):
            self._held.append(self._dated(block))  # first: a caller may stop at any block
            yield from self._settled()
        yield from self._settled()
        if not self._hold_s:
            yield from self._rest_of_guests()

    def _settled(self) -> Iterator[Block]:
        for guests in self._guests:
            guests.look()  # after the chain: what was written before it is there
        settled = self._clock() - self._hold_s
        while self._held and (not self._hold_s or min(self._held[0].latest, self._held[0].seen_at) <= settled):
            yield self._merged()

    def rest(self) -> Iterator[Block]:
        """All that is there: the run is over, or is not waited for. Memory is bounded by the length of a segment."""
        for guests in self._guests:
            guests.look()
        while self._held:
            yield self._merged()
        for block in self.syncer.poll():
            self._held.append(self._dated(block))
            yield self._merged()
        yield from self._rest_of_guests()

    # -------------------------------------------------------------- merging

    def _dated(self, block: Block) -> _Dated:
        """The syncer's own facts of a block, and the latest time up to each."""
        own = [n for n, (writer, _) in enumerate(block.sources) if writer == SYNCER]
        mine = np.isin(block.commits.source, own)
        rare = [(position, event.at) for position, event in block.others if event.writer == SYNCER]
        positions = np.concatenate([block.commits.position[mine], [each for each, _ in rare]]).astype(np.int64)
        times = np.concatenate([block.commits.at[mine], [at for _, at in rare]])
        order = np.argsort(positions)
        dates = np.maximum.accumulate(np.concatenate([[self._latest], times[order]]))[1:]
        if len(dates):
            self._latest = float(dates[-1])
        return _Dated(block, positions[order], dates, self._latest, self._clock())

    def _merged(self) -> Block:
        """The first block that is held, with the guests that belong into it. Raises OSError; then call it again."""
        block, positions, dates, *_ = self._held[0]
        if len(dates):
            for event, at in self._until(float(dates[-1])):
                self._merging.append((int(positions[np.searchsorted(dates, at, side="right")]), event))
        shifted = shift(block, self._shift, self._merging)
        self._shift += len(self._merging)
        self._merging = []
        self._held.popleft()
        return shifted

    def _until(self, date: float) -> Iterator[tuple[Event, float]]:
        """The guests before this time, in their order."""
        while True:
            first = min((guests for guests in self._guests if guests.next), key=_Guests.date, default=None)
            if first is None or first.date() >= date:
                return
            yield first.take()

    def _rest_of_guests(self) -> Iterator[Block]:
        rest = self._until(float("inf"))
        while True:
            for event, _ in rest:
                self._merging.append((self.syncer.rows, event))
                if len(self._merging) == SEGMENT_ROWS:
                    break
            if not self._merging:
                return
            block = block_of([event for _, event in self._merging], self.rows)
            self._shift, self._merging = self._shift + block.rows, []
            yield block


class _Counted:
    """A store that counts the bytes that are read from it."""

    def __init__(self, store: Objects) -> None:
        self._store = store
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str) -> bytes:
        content = self._store.read(name)
        self.bytes_read += len(content)
        return content


class _Dated(NamedTuple):
    """A block of the syncer's chain, its own facts' positions, the latest time up to each and to the end, and when it
    was read.
    """

    block: Block
    positions: Ints
    dates: Floats
    latest: float
    seen_at: float


class _Guests:
    """The facts of the orchestrator's or chaos's log, each with the latest time up to it."""

    def __init__(self, reader: ChainReader) -> None:
        self._reader = reader
        self._latest = float("-inf")
        self._events: Iterator[Event] = iter(())
        self.next: Event | None = None

    def look(self) -> None:
        """See what is new."""
        if self.next is None:
            self._advance()

    def _advance(self) -> None:
        self.next = next(self._events, None)
        if self.next is None:
            self._events = (event for block in self._reader.poll(quick=True) for event in block.events())
            self.next = next(self._events, None)
        if self.next is not None:
            self._latest = max(self._latest, self.next.at)

    def date(self) -> float:
        return self._latest

    def take(self) -> tuple[Event, float]:
        assert self.next is not None
        taken = self.next, self._latest
        self._advance()
        return taken


def shift(block: Block, rows: int, guests: Sequence[tuple[int, Event]]) -> Block:
    """The block `rows` further on in the log, with these events before these of its rows, in order."""
    places = np.array([position for position, _ in guests], np.int64)

    def moved(position: Ints) -> Ints:
        return position + rows + np.searchsorted(places, position, side="right")

    others = [
        PlacedEvent(int(place), event) for (_, event), place in zip(block.others, moved(_positions(block)), strict=True)
    ]
    others += [PlacedEvent(position + rows + number, event) for number, (position, event) in enumerate(guests)]
    return replace(
        block,
        start=block.start + rows,
        rows=block.rows + len(guests),
        steps=block.steps._replace(position=moved(block.steps.position)),
        adoptions=block.adoptions._replace(position=moved(block.adoptions.position)),
        commits=block.commits._replace(position=moved(block.commits.position)),
        others=tuple(sorted(others, key=lambda placed: placed.position) if guests else others),
    )


def _positions(block: Block) -> Ints:
    return np.array([position for position, _ in block.others], np.int64)


# ------------------------------------------------------------------ segments decoded in other processes


class Ahead:
    """A context in which a reader gets the syncer's segments from `jobs` other processes; none if `jobs` is 0."""

    def __init__(self, reader: LogReader, run_dir: Path, jobs: int) -> None:
        self._chain, self._run_dir, self._jobs = reader.syncer, run_dir, jobs
        self._pool: ProcessPoolExecutor | None = None
        self._coming: dict[int, Future[Decoded | None]] = {}

    def __enter__(self) -> None:
        if self._jobs:
            self._pool = ProcessPoolExecutor(self._jobs, multiprocessing.get_context("spawn"))
            self._chain.segment = self._segment

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _segment(self, number: int) -> Decoded | None:
        """Read a segment, as ChainReader.segment."""
        assert self._pool is not None
        for next_ in range(number, number + self._jobs + 1):
            if next_ not in self._coming:
                self._coming[next_] = self._pool.submit(_in_process, self._run_dir, next_)
        for before in [each for each in self._coming if each < number]:
            del self._coming[before]
        return self._coming.pop(number).result()


def _in_process(run_dir: Path, number: int) -> Decoded | None:
    return decoded(store_of(run_dir), SYNCER, number)


# ------------------------------------------------------------------ the seal of a run that is over


def seal(ends: Mapping[str, Segmented]) -> dict[str, Any]:
    """The content of seal.json: where each log ended."""
    logs = {log: {"segments": end.segments, "seal": end.seal, "rows": end.rows} for log, end in ends.items()}
    return {"format": FORMAT, "logs": logs}


def sealed(run_dir: Path) -> Mapping[str, Mapping[str, Any]] | None:
    """Where each log ended; None if the run was not sealed. Raises ValueError for damage."""
    try:
        record = json.loads((run_dir / SEAL_FILE).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}, not {FORMAT}")
        return {
            str(log): {name: end[name] for name in ("segments", "seal", "rows")} for log, end in record["logs"].items()
        }
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{SEAL_FILE} is damaged: {error!r}") from error


def differs(reader: LogReader, ends: Mapping[str, Mapping[str, Any]]) -> str:
    """How a log that was read to its end differs from its seal; empty if it does not."""
    for log, chain in ((SYNCER, reader.syncer), *reader.others.items()):
        end = ends.get(log, {"segments": 0, "seal": "", "rows": 0})
        if chain.rows != end["rows"]:
            return f"{log} has {chain.rows} facts, {end['rows']} were sealed"
        if (chain.segments, chain.seal) != (end["segments"], end["seal"]):
            return f"the last segment of {log} is not the one that was sealed"
    return ""
