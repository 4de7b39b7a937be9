"""The run's one log: envelope, registry, segments, and their merge.

Every process that says something appends JSON lines to a segment of its own; `events.jsonl` is their merge.
From this log alone come the summary, the books, the checkers, the report and the replay tape.
"""

from __future__ import annotations

import json
import math
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

from learners.protocol.facts import LearnerFact
from orchestrator.eventlog.decode import build, reader
from orchestrator.eventlog.seal import chained, link
from outer.protocol.facts import SyncerFact

# ------------------------------------------------------------------ facts of the cluster and of faults


@dataclass(frozen=True)
class RunStarted:
    name: str
    config_hash: str
    seed: int
    versions: dict[str, str]  # python, jax, ray, numpy, optax, platform, XLA flags, digest of the code


@dataclass(frozen=True)
class LearnerRequested:
    """An incarnation was granted and its actor asked for; the wait for a place begins."""

    learner: str
    incarnation: int
    pool: str
    region: str | None


@dataclass(frozen=True)
class LearnerStarted:
    """The actor's process answers."""

    learner: str
    incarnation: int
    pid: int
    node: str


@dataclass(frozen=True)
class LearnerLost:
    """The orchestrator holds an incarnation for dead, or has ended it itself."""

    learner: str
    incarnation: int
    cause: str  # died | lease_expired | failed
    detail: str


@dataclass(frozen=True)
class SyncerLost:
    """The orchestrator holds an epoch of the syncer for dead, and lets another follow."""

    epoch: int
    cause: str  # died | lease_expired | failed
    detail: str


@dataclass(frozen=True)
class ReplicaLost:
    """The process that held the second copy of all commits is gone; nothing is announced until another has them."""

    replica: int
    detail: str


@dataclass(frozen=True)
class CheckpointWritten:
    """It is whole, and can be gone on from."""

    snapshot: int
    syncer_step: int  # of the newest commit in it
    final: bool  # the run is suspended with it
    bytes: int
    omitted: tuple[str, ...]  # learners that gave no state in time
    seconds: float  # from the cut


@dataclass(frozen=True)
class CheckpointFailed:
    """Nothing can be gone on from by this number, or something about it went wrong."""

    snapshot: int
    reason: str


@dataclass(frozen=True)
class RunResumed:
    """A run that an earlier orchestrator began goes on."""

    epochs: int  # of the syncer, before
    snapshot: int  # the checkpoint that learners start from; 0: none
    exact: tuple[str, ...]  # learners that go on as the same incarnation
    damaged: tuple[str, ...]  # newer checkpoints that are not whole, and why


@dataclass(frozen=True)
class OrchestratorFollowed:
    """An orchestrator took over a run that went on without one."""

    epoch: int  # of the syncer that it found; 0: none
    learners: tuple[str, ...]  # that it found


@dataclass(frozen=True)
class PoolScaled:
    """A pool wants another number of learners from here on."""

    pool: str
    learners: int
    added: tuple[str, ...]
    removed: tuple[str, ...]  # they drain


@dataclass(frozen=True)
class NodePreempted:
    """A node gave notice: its learners drain, and come back elsewhere."""

    node: str
    learners: tuple[str, ...]
    remaining_s: float | None  # until it goes; None when it did not say


@dataclass(frozen=True)
class Evaluated:
    """Held-out loss of the syncer's parameters."""

    syncer_step: int
    loss: float
    tokens: int
    unit: str = ""  # of the loss, as the task says; left out of the log where it says none


@dataclass(frozen=True)
class ReferenceLosses:
    """Held-out loss of counting models fitted on the same training text, in nats per token."""

    bigram: float
    trigram: float


@dataclass(frozen=True)
class FaultInjected:
    fault: int  # identifies the fault in this run
    fault_kind: str  # kill | freeze | slow | straggle | link | corrupt | non_finite | wrong_config
    target: str
    incarnation: int
    pid: int
    duration_s: float  # 0: does not heal by itself
    delay_s: float = 0.0  # of every step (slow), or of a step on average (straggle)


@dataclass(frozen=True)
class FaultHealed:
    fault: int
    target: str


@dataclass(frozen=True)
class FaultSkipped:
    """A planned fault that found no living target."""

    fault_kind: str
    target: str
    reason: str


@dataclass(frozen=True)
class RunFinished:
    state: str  # finished | stopped | failed
    reason: str
    digest: str = ""  # SHA-256 over all final parameters, fragment by fragment; "" where there are none


ClusterFact = (
    RunStarted
    | LearnerRequested
    | LearnerStarted
    | LearnerLost
    | SyncerLost
    | ReplicaLost
    | CheckpointWritten
    | CheckpointFailed
    | RunResumed
    | OrchestratorFollowed
    | PoolScaled
    | NodePreempted
    | Evaluated
    | ReferenceLosses
    | FaultInjected
    | FaultHealed
    | FaultSkipped
    | RunFinished
)
Fact = SyncerFact | LearnerFact | ClusterFact
REGISTRY: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Fact)}


# Fields that came later than their kind: empty, they are not written, so that an older log keeps its bytes.
LEFT_OUT = {"Evaluated": "unit", "StepFinished": "aux"}

# ------------------------------------------------------------------ envelope


_ENVELOPE = {"writer": reader(str), "incarnation": reader(int), "sequence": reader(int), "at": reader(float)}


@dataclass(frozen=True)
class Event:
    """A fact with who said it, as which incarnation (a syncer's: epoch), as its how-many-th, and when.

    `at` is that process's wall clock in Unix seconds: good for durations, never for decisions.
    """

    writer: str  # syncer | orchestrator | chaos | a learner's name
    incarnation: int
    sequence: int  # from 0, without gaps, per (writer, incarnation)
    at: float
    fact: Any
    chain: str = field(default="", compare=False)  # orchestrator/eventlog/seal.py; "" before it is written down

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.writer, self.incarnation, self.sequence)

    def to_json(self) -> str:
        """One line, strict JSON: a number that is not finite is written as its name, a string."""
        return chained(self.content, self.chain) if self.chain else self.content

    @property
    def content(self) -> str:
        """The same without the chain."""
        kind, fact = type(self.fact).__name__, finite(asdict(self.fact))
        if not fact.get(LEFT_OUT.get(kind), True):
            del fact[LEFT_OUT[kind]]
        record = {
            "writer": self.writer,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "at": round(self.at, 6),
            "kind": kind,
            "fact": fact,  # apart: a fact has fields of the envelope's names
        }
        return json.dumps(record, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(line: str) -> Event:
        """The event of one line. Raises ValueError with the reason for anything else."""
        try:
            record = json.loads(line)
            envelope = {name: read(record[name]) for name, read in _ENVELOPE.items()}
            chain = _ENVELOPE["writer"](record.get("chain", ""))
            if not math.isfinite(envelope["at"]):
                raise TypeError(f"at {envelope['at']} is no time")
            return Event(**envelope, fact=build(REGISTRY[record["kind"]], record["fact"]), chain=chain)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not an event: {error!r} in {line[:120]!r}") from error


def finite(value: Any) -> Any:
    """The same, for strict JSON: numbers that are not finite as `nan`, `inf`, `-inf`."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


# ------------------------------------------------------------------ segments and their merge


class SegmentWriter:
    """Appends events to one file, a line each, a write per call: a killed process loses nothing written.

    Every writer's events are chained (orchestrator/eventlog/seal.py). An existing file is continued: a last line
    that was cut short is dropped, and the chains continue from what the file holds.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.last: dict[tuple[str, int], tuple[int, str]] = {}  # (sequence, chain) by writer and incarnation
        if path.exists():
            self._resume(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._damage = ""  # why nothing more can be written

    def _resume(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        for event in read_segment(path):
            key = (event.writer, event.incarnation)
            if event.sequence > self.last.get(key, (-1, ""))[0]:
                self.last[key] = (event.sequence, event.chain)

    def write(self, events: Iterable[Event]) -> None:
        lines: list[str] = []
        last = dict[tuple[str, int], tuple[int, str]]()
        for event in events:
            key, content = (event.writer, event.incarnation), event.content
            before = last.get(key) or self.last.get(key, (-1, ""))
            chain = link(before[1], content)
            last[key] = (event.sequence, chain)
            lines.append(chained(content, chain) + "\n")
        self._append("".join(lines).encode())
        self.last.update(last)

    def _append(self, data: bytes) -> None:
        """All of it or nothing: behind a part of a line, every later one would be lost."""
        if self._damage:
            raise OSError(f"nothing more is written to {self._file.name}: {self._damage}")
        begin, done, rest = os.fstat(self._file.fileno()).st_size, 0, memoryview(data)
        try:
            while rest:
                done += (count := self._file.write(rest))  # a disk that fills up takes a part, then raises
                rest = rest[count:]
        except BaseException as error:
            self._take_back(begin, done, error)
            raise

    def _take_back(self, begin: int, done: int, error: BaseException) -> None:
        file = self._file.fileno()
        try:
            # Another epoch's recorder may have written behind it: that is not ours to cut off.
            if done and os.fstat(file).st_size == begin + done:
                os.ftruncate(file, begin)
                done = 0
        except OSError as refused:
            error.add_note(f"and what was written of it cannot be taken back: {refused}")
        if done:
            self._damage = f"a line of it was cut short ({error})"

    def close(self) -> None:
        self._file.close()


class EventEmitter:
    """Numbers and dates one writer's facts, in the order in which it says them."""

    def __init__(self, writer: str, incarnation: int, clock: Callable[[], float]) -> None:
        self.writer, self.incarnation, self._clock = writer, incarnation, clock
        self._sequence = 0

    def say(self, fact: Any) -> Event:
        event = Event(self.writer, self.incarnation, self._sequence, self._clock(), fact)
        self._sequence += 1
        return event


class SegmentRecorder:
    """The syncer's recorder: its own facts, and those that learners' messages carry, in one segment.

    A learner's facts ride again until acknowledged; each is written once. A later epoch goes on with the same segment.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: SegmentWriter | None = None  # opened where it is used, which is another process
        self._closed = False

    def record(self, writer: str, incarnation: int, facts: Iterable[tuple[int, float, Any]]) -> int:
        """Append those of (sequence, wall time, fact) that follow what is recorded; return the last recorded.

        Once it is closed nothing is taken, and nothing acknowledged.
        """
        if self._closed:
            return -1
        if self._writer is None:
            self._writer = SegmentWriter(self._path)
        last = self._writer.last.get((writer, incarnation), (-1, ""))[0]
        fresh = []
        for sequence, at, fact in facts:
            if sequence == last + 1 and type(fact).__name__ in REGISTRY:
                fresh.append(Event(writer, incarnation, sequence, at, fact))
                last = sequence
        self._writer.write(fresh)
        return last

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()


def read_segment(path: Path) -> Iterator[Event]:
    """The events of one file. A last line cut short by a crash is left out; any other damage raises ValueError."""
    data = path.read_bytes()
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield Event.from_json(line.decode())
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error


def merge(segments: Iterable[Iterable[Event]]) -> list[Event]:
    """All events once, by time; what one writer said stays in the order in which it was said."""
    return woven(by_writer(event for segment in segments for event in segment))


def by_writer(events: Iterable[Event]) -> dict[tuple[str, int], list[Event]]:
    """Events by (writer, incarnation), doubles included, in the order in which they come."""
    apart: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        key = (event.writer, event.incarnation)
        if key in apart:
            apart[key].append(event)
        else:
            apart[key] = [event]
    return apart


def woven(apart: Mapping[tuple[str, int], Sequence[Event]]) -> list[Event]:
    """The merge of what each writer said."""
    events: list[Event] = []
    dates: list[float] = []
    for _, said in sorted(apart.items(), key=itemgetter(0)):
        once = _once(said)
        events += once
        dates += accumulate([event.at for event in once], max)  # a clock set back does not reorder its own writer
    return [events[i] for i in sorted(range(len(events)), key=dates.__getitem__)]


def _once(said: Sequence[Event]) -> Sequence[Event]:
    """The first event of each number, in their order."""
    if [event.sequence for event in said] == list(range(len(said))):
        return said
    first: dict[int, Event] = {}
    for event in said:
        first.setdefault(event.sequence, event)
    return [first[sequence] for sequence in sorted(first)]


def read_run(run_dir: Path) -> list[Event]:
    """Everything a run has said: `events.jsonl` where it is written, else the live segments."""
    return merge([read_lines(run_dir)])


def read_lines(run_dir: Path) -> Iterator[Event]:
    """The same as it stands in the files, doubles included: who is to find two facts under one number needs them."""
    whole = run_dir / "events.jsonl"
    for path in [whole] if whole.exists() else sorted((run_dir / "events").glob("*.jsonl")):
        yield from read_segment(path)


def ends(events: Iterable[Event]) -> list[tuple[str, int, int, str]]:
    """Of a merged log, for each writer: (name, incarnation, events, last chain)."""
    return [(*key, len(said), said[-1].chain) for key, said in sorted(by_writer(events).items())]
