"""The facts of each writer of a log, in its own order: steps and adoptions as columns, without an object for each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.protocol.facts import Adopted, DeviceTaken, Spoiled, StateReceived, StepFinished
from orchestrator.eventlog.block import NONE, Block
from orchestrator.eventlog.facts import RunFinished, RunStarted
from orchestrator.replay.incarnation import Key, TapeError, named
from outer.protocol.facts import Committed, SyncerStarted

KEPT = (Committed, DeviceTaken, RunFinished, RunStarted, Spoiled, StateReceived, SyncerStarted)
STEP_COLUMNS = ("step", "tokens", "sample", "loss", "progress")
ADOPTION_COLUMNS = ("fragment", "version", "after_step", "mode", "read_at")


class Said(Iterable[object]):
    """One writer's facts, in order. A fact that a replay does not need is left out; so are a step's durations."""

    def __init__(self) -> None:
        self._steps: list[tuple[NDArray[Any], ...]] = []  # parts; each (sequence, *STEP_COLUMNS), arrays of [n]
        self._adoptions: list[tuple[NDArray[Any], ...]] = []  # the same; `mode` as its word
        self._objects: dict[int, object] = {}  # by sequence
        self._others: list[int] = []  # the sequences of facts that are left out

    def add(self, sequence: int, fact: object) -> None:
        if isinstance(fact, KEPT) and sequence not in self._objects:  # else `check` finds it twice
            self._objects[sequence] = fact
        else:
            self._others.append(sequence)

    def add_steps(self, *columns: NDArray[Any]) -> None:
        self._steps.append(columns)

    def add_adoptions(self, *columns: NDArray[Any]) -> None:
        self._adoptions.append(columns)

    def check(self, key: Key) -> None:
        """Raises TapeError where a fact is missing, or there twice."""
        parts = [part[0] for part in (*self._steps, *self._adoptions)]
        numbers = np.sort(np.concatenate([*parts, np.array([*self._objects, *self._others], np.int64)]))
        wrong = np.flatnonzero(numbers != np.arange(len(numbers)))
        if len(wrong):
            first = int(wrong[0])
            if numbers[first] < first:
                raise TapeError(f"{named(key)}: its fact {numbers[first]} is told twice")
            raise TapeError(f"{named(key)}: its fact {first} is missing, and later ones are there")

    def __iter__(self) -> Iterator[object]:
        steps, adoptions = _joined(self._steps), _joined(self._adoptions)
        objects = sorted(self._objects)
        numbers = np.concatenate([steps[0], adoptions[0], np.array(objects, np.int64)])
        for place in np.argsort(numbers, kind="stable").tolist():
            if place < len(steps[0]):
                yield _step(*(column[place].item() for column in steps[1:]))
            elif (place := place - len(steps[0])) < len(adoptions[0]):
                yield _adopted(*(column[place] for column in adoptions[1:]))
            else:
                yield self._objects[objects[place - len(adoptions[0])]]


def _joined(parts: list[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """One array a column; the parts are replaced by it."""
    if not parts:
        return (np.zeros(0, np.int64),)
    parts[:] = [tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))]
    return parts[0]


def _step(step: int, tokens: int, sample: int, loss: float, progress: float) -> StepFinished:
    known = None if math.isnan(progress) else progress
    return StepFinished(step, tokens, 0, sample, loss, 0.0, 0.0, "", known, None)


def _adopted(fragment: Any, version: Any, after_step: Any, mode: str, read_at: Any) -> Adopted:
    return Adopted(int(fragment), int(version), int(after_step), mode, None if read_at == NONE else int(read_at))


def said_in(blocks: Iterable[Block]) -> dict[Key, Said]:
    """Return the facts of each writer of a log."""
    said: dict[Key, Said] = defaultdict(Said)
    for block in blocks:
        modes = np.array(block.names, object)
        for source, key in enumerate(block.sources):
            if len(mine := np.flatnonzero(block.steps.source == source)):
                columns = (getattr(block.steps, name)[mine] for name in ("sequence", *STEP_COLUMNS))
                said[key].add_steps(*columns)
            if len(mine := np.flatnonzero(block.adoptions.source == source)):
                table = block.adoptions
                words = modes[table.mode[mine]]
                said[key].add_adoptions(
                    *(
                        words if name == "mode" else getattr(table, name)[mine]
                        for name in ("sequence", *ADOPTION_COLUMNS)
                    )
                )
        for _, event in (*block.others, *block.committed()):
            said[event.writer, event.incarnation].add(event.sequence, event.fact)
    return dict(said)


def checked(said: Mapping[Key, Said]) -> Mapping[Key, Said]:
    """The same. Raises TapeError where a fact is missing, or there twice."""
    for key, each in said.items():
        each.check(key)
    return said
