"""Repeats the incarnations of a tape with real numbers, in the order that it is told, as far as it has what they adopt.

Uses production's Trainer and FragmentIO, without Ray or clocks. State is dropped once the tape needs it no more. Who
merges, and whether that is in this process, it does not know.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.fragment_io import FragmentIO
from learners.protocol.events_effects import Apply
from learners.training import state_arrays
from learners.training.devices.device import device_taken
from learners.training.step import make_step
from learners.training.task import Task
from learners.training.trainer import InFlight, Trainer
from learners.training.tree import deal
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.replay.crew import (
    AdoptedValue,
    Finish,
    FromLearners,
    News,
    Order,
    PeerState,
    ReplayTally,
    Sent,
    Stretch,
    ToLearners,
)
from orchestrator.replay.incarnation import (
    Adopt,
    Give,
    IncarnationTape,
    InheritState,
    Key,
    Moment,
    Read,
    Spoil,
    Step,
    TapeError,
    named,
)
from outer.protocol.messages import Contribution, FragmentCounters

NEWS_S = 0.5  # between two tallies
NEAR = 8  # moments in which the next step is looked for, so that its batch is built while this one runs


@dataclass
class _Unit:
    """One incarnation's state, as far as it has been replayed."""

    batch_size: int
    trainer: Trainer
    fragment_io: FragmentIO
    flying: tuple[InFlight, Step, Order, int] | None = None  # the step that was dispatched last


class Learners:
    """Repeats these incarnations. Everything that it finds goes to `emit`."""

    def __init__(
        self,
        incarnations: Mapping[Key, IncarnationTape],
        merged: Mapping[tuple[Key, Read], str],
        recipe: Recipe,
        task: Task,
        emit: Callable[[FromLearners], None],
    ) -> None:
        """`merged`: the reads that go into commits, and their number formats.

        Raises TapeError for an incarnation that is of no pool.
        """
        self.fragments = deal(task, recipe.sync)
        self._incarnations, self._merged = incarnations, merged
        self._recipe, self._task, self._emit = recipe, task, emit
        self._pools = {key: pool_of(recipe, key) for key in incarnations}
        self._train_step = make_step(task, recipe.inner)
        self._units: dict[Key, _Unit] = {}
        self._positions: Counter[Key] = Counter()  # in each incarnation's moments
        self._inbox: deque[Stretch | Finish] = deque()
        self._values: dict[tuple[int, int], tuple[NDArray[np.float32], int]] = {}  # and how many adoptions are left
        self._states: dict[Key, list[NDArray[Any]]] = {}  # by joiner
        self._tally, self._told_at = ReplayTally(), time.monotonic()

    def run(self) -> Generator[None, ToLearners, None]:
        """Repeat what is sent to it; ends after Finish. Raises TapeError."""
        while True:
            while not self._inbox:
                self._hear((yield))
            asked = self._inbox.popleft()
            if isinstance(asked, Finish):
                devices = next((each.device.devices for each in self._incarnations.values() if each.device), 1)
                self._emit(News(self._tally, device_taken(devices)))
                return
            yield from self._advance(asked)

    def _hear(self, message: ToLearners) -> None:
        match message:
            case AdoptedValue(fragment, version, theta, adoptions):
                self._values[fragment, version] = theta, adoptions
            case PeerState(joiner, arrays):
                self._states[joiner] = arrays
            case _:
                self._inbox.append(message)

    def _advance(self, to: Stretch) -> Generator[None, ToLearners, None]:
        key, moments = to.key, self._incarnations[to.key].moments
        unit = self._units.get(key) or self._begin(key)
        for position in range(self._positions[key], to.place + 1):
            moment = moments[position]
            if isinstance(moment, Adopt):
                while (moment.fragment, moment.version) not in self._values:
                    self._hear((yield))
            elif isinstance(moment, InheritState):
                while key not in self._states:
                    self._hear((yield))
            self._perform(key, unit, moment, (*to.number, position), to.syncer_step)
            if isinstance(moment, Step):
                later = (each.start for each in moments[position + 1 : position + NEAR] if isinstance(each, Step))
                unit.trainer.expect(list(islice(later, 1)), unit.batch_size)
        self._positions[key] = to.place + 1
        if self._positions[key] == len(moments):
            self._land(key, unit)
            del self._units[key]

    def _begin(self, key: Key) -> _Unit:
        incarnation, pool = self._incarnations[key], self._pools[key]
        devices = incarnation.device.devices if incarnation.device else (pool.devices or 1) * pool.processes
        alone = devices == 1
        try:
            trainer = Trainer(
                self._task,
                self.fragments,
                self._recipe.inner,
                self._recipe.seed,
                self._train_step if alone else None,
                devices=devices,
                model_parallel=pool.model_parallel,
                warm_start=self._recipe.warm_start,
            )
        except ValueError as error:  # devices that are not here
            raise TapeError(f"{named(key)} computed on {devices} devices: {error}") from error
        fragment_io = FragmentIO(trainer, self._recipe.sync, len(self.fragments), self._recipe.seed)
        unit = self._units[key] = _Unit(pool.batch_size, trainer, fragment_io)
        return unit

    def _perform(self, key: Key, unit: _Unit, moment: Moment, order: Order, syncer_step: int) -> None:
        match moment:
            case Step():
                self._step(key, unit, moment, order, syncer_step)
            case Adopt(fragment, version, mode, read_at):
                unit.fragment_io.apply(Apply(fragment, version, self._value(fragment, version), mode, read_at))
            case Spoil(fragment):
                unit.trainer.load(fragment, np.full(self.fragments[fragment].size, np.nan, np.float32))
            case InheritState(_, digest):
                arrays = self._states.pop(key)
                found = state_arrays.digest(arrays)
                if self._tally.compare("state", digest, found, order, syncer_step, key):
                    self._tell()
                unit.trainer.restore(arrays)
            case Read():
                self._read(key, unit, moment)
            case Give(joiner):
                self._give(joiner, state_arrays.pack(unit.trainer.captured_on_host()))

    def _step(self, key: Key, unit: _Unit, step: Step, order: Order, syncer_step: int) -> None:
        if (tokens := self._task.tokens(unit.batch_size)) != step.tokens:
            raise TapeError(
                f"{key[0]} {key[1]}: its step {step.step} had {step.tokens} tokens, and by the recipe it has {tokens}"
            )
        dispatched = unit.trainer.dispatch(step.start, unit.batch_size, step.progress)
        self._land(key, unit)
        unit.flying = dispatched, step, order, syncer_step

    def _land(self, key: Key, unit: _Unit) -> None:
        """Wait for the step that was dispatched last, and compare its loss."""
        if unit.flying is None:
            return
        (in_flight, step, order, syncer_step), unit.flying = unit.flying, None
        loss, _ = in_flight.result()
        self._tally.steps += 1
        differs = self._tally.compare("loss", repr(step.loss), repr(loss), order, syncer_step, key, step.step)
        if differs or time.monotonic() - self._told_at >= NEWS_S:
            self._tell()

    def _value(self, fragment: int, version: int) -> NDArray[np.float32]:
        """A version's parameters; dropped after its last adoption."""
        theta, adoptions = self._values.pop((fragment, version))
        if adoptions > 1:
            self._values[fragment, version] = theta, adoptions - 1
        return theta

    def _read(self, key: Key, unit: _Unit, read: Read) -> None:
        """Encode what was sent at this read."""
        copy = unit.fragment_io.stage([read.fragment])[read.fragment]
        counters = FragmentCounters(read.version, 0, 0, 0)
        codec = self._merged.get((key, read), "")
        asked = Contribution(*key, 0, 0, read.fragment, 0, read.step, 0, counters, copy, "", codec)
        sent = unit.fragment_io.encode(asked)  # which remembers it, where adopting will ask for it
        if (key, read) in self._merged:
            self._emit(Sent(key, read, sent.payload, sent.digest))

    def _give(self, joiner: Key, arrays: list[NDArray[Any]]) -> None:
        if joiner in self._incarnations:
            self._states[joiner] = arrays
        else:
            self._emit(PeerState(joiner, arrays))

    def _tell(self) -> None:
        self._emit(News(self._tally))
        self._tally, self._told_at = ReplayTally(), time.monotonic()


def pool_of(recipe: Recipe, key: Key) -> PoolConfig:
    """Raises TapeError."""
    try:
        return recipe.pool_of(key[0])
    except KeyError as error:
        raise TapeError(f"{named(key)} is of no pool of the recipe") from error
