"""Replays a tape with real numbers: every learner repeats its steps, and every commit is computed again.

Uses production's Trainer, FragmentIO and GlobalParameters in one process, without Ray or clocks. A learner steps when a
commit needs it, and state is dropped once the tape needs it no more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.fragment_io import FragmentIO
from learners.protocol.events_effects import Apply
from learners.training import state_arrays
from learners.training.step import make_step
from learners.training.task import Task
from learners.training.trainer import Trainer
from learners.training.tree import deal, initial_parameters, left_out
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.replay.incarnation import Adopt, Give, Inherit, Key, Moment, Read, Spoil, Step, TapeError, named
from orchestrator.replay.tape import Tape, merged_read
from outer.numeric.merge import rules
from outer.numeric.parameters import GlobalParameters
from outer.protocol.facts import Committed
from outer.protocol.messages import Contribution, FragmentCounters

DECISIVE = ("commit", "contribution", "state", "final")  # if these are equal, so is everything else


@dataclass(frozen=True)
class Difference:
    """A recomputed value that differs from the recorded one."""

    what: str  # loss | state | contribution | commit | final
    syncer_step: int  # the commit that was being computed again
    fragment: int | None
    learner: str  # "" where it is nobody's: the merge's or the outer step's
    incarnation: int
    step: int | None  # of the learner
    recorded: str
    found: str


@dataclass
class _Unit:
    """One incarnation's state, as far as it has been replayed."""

    batch_size: int
    trainer: Trainer
    fragment_io: FragmentIO


class Replayer:
    """Replays one tape once. `on_step` is called after every step."""

    def __init__(self, tape: Tape, recipe: Recipe, task: Task, on_step: Callable[[], None] = lambda: None) -> None:
        """Raises TapeError where the task deals into other fragments than the run's."""
        self.fragments, self.left_out = deal(task, recipe.sync), left_out(task)
        names = tuple(tuple(tensor.name for tensor in fragment.tensors) for fragment in self.fragments)
        if (names, tuple(fragment.size for fragment in self.fragments)) != (tape.rules.fragments, tape.rules.sizes):
            raise TapeError(
                "the recipe's task deals into other fragments than the run had: its code or [model] changed"
            )
        tensors = [tensor for fragment in self.fragments for tensor in fragment.tensors]
        self.parameters = GlobalParameters(
            self.fragments,
            initial_parameters(task, self.fragments, recipe.seed, recipe.warm_start),
            recipe.outer,
            recipe.sync.codec,
            rules(tensors, recipe.outer.merge, getattr(task, "merge_rules", {})),
        )
        self.difference: Difference | None = None  # the first
        self.computed: Counter[str] = Counter()  # by what: how many were computed again
        self.compared: Counter[str] = Counter()  # of them, how many had something to be compared with
        self.equal: Counter[str] = Counter()
        self.steps = 0
        self._tape, self._recipe, self._task, self._on_step = tape, recipe, task, on_step
        self._pools = {key: _pool_of(recipe, key) for key in tape.incarnations}
        self._bare = not any(
            commit.digest or any(one.digest for one in commit.participants) for commit in tape.commits
        )  # nothing was computed when it was recorded
        self._train_step = make_step(task, recipe.inner)
        self._units: dict[Key, _Unit] = {}
        self._positions: Counter[Key] = Counter()  # in each incarnation's moments
        self._sent: dict[tuple[Key, Read], Contribution | None] = {
            ((one.learner, one.incarnation), merged_read(commit, one)): None
            for commit in tape.commits
            for one in commit.participants
        }  # until it is merged
        self._given: dict[Key, list[Any]] = {}  # by joiner
        self._adoptions = Counter(
            (moment.fragment, moment.version)
            for incarnation in tape.incarnations.values()
            for moment in incarnation.moments
            if isinstance(moment, Adopt)
        )  # still to come, by fragment and version
        self._values = {(index, 0): theta for index, theta in enumerate(self.parameters.thetas)}
        self._syncer_step = 0

    def play(self) -> Iterator[Committed]:
        """Compute every commit again; yields each once it is installed. Raises TapeError."""
        for commit in self._tape.commits:
            self._syncer_step = commit.syncer_step
            payloads = [self._contribution(commit, index) for index in range(len(commit.participants))]
            weights = [one.weight for one in commit.participants]
            proposal = self.parameters.propose(commit.fragment, payloads, weights)
            self._compare("commit", commit.digest, proposal.digest, fragment=commit.fragment)
            self.parameters.install(proposal, commit.syncer_step)
            if self._adoptions[commit.fragment, commit.syncer_step]:
                self._values[commit.fragment, commit.syncer_step] = proposal.theta
            yield commit

    # -------------------------------------------------------------- learners

    def _contribution(self, commit: Committed, index: int) -> NDArray[Any]:
        one = commit.participants[index]
        key, read = (one.learner, one.incarnation), merged_read(commit, one)
        self._advance(key, self._tape.incarnations[key].places[read])
        sent = self._sent.pop((key, read))
        assert sent is not None
        self._compare("contribution", one.digest, sent.digest, key, one.step, commit.fragment)
        payload: NDArray[Any] = sent.payload
        return payload

    def _advance(self, key: Key, place: int) -> None:
        """Replay an incarnation, and its donors, up to this moment."""
        if self._positions[key] > place:
            return
        unit, moments = self._units.get(key) or self._begin(key), self._tape.incarnations[key].moments
        while (position := self._positions[key]) <= place:
            self._positions[key] = position + 1
            self._perform(key, unit, moments[position])
        if self._positions[key] == len(moments):
            del self._units[key]

    def _begin(self, key: Key) -> _Unit:
        incarnation, pool = self._tape.incarnations[key], self._pools[key]
        devices = incarnation.device.devices if incarnation.device else pool.devices or 1
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
        fragment_io = FragmentIO(trainer, self._recipe.sync, len(self.fragments))
        unit = self._units[key] = _Unit(pool.batch_size, trainer, fragment_io)
        return unit

    def _perform(self, key: Key, unit: _Unit, moment: Moment) -> None:
        match moment:
            case Step():
                self._step(key, unit, moment)
            case Adopt(fragment, version, mode, read_at):
                unit.fragment_io.apply(Apply(fragment, version, self._value(key, fragment, version), mode, read_at))
            case Spoil(fragment):
                unit.trainer.load(fragment, np.full(self.fragments[fragment].size, np.nan, np.float32))
            case Inherit(donor, digest):
                self._inherit(key, unit, donor, digest)
            case Read():
                self._read(key, unit, moment)
            case Give(joiner):
                self._given[joiner] = unit.fragment_io.capture()

    def _step(self, key: Key, unit: _Unit, step: Step) -> None:
        if (tokens := self._task.tokens(unit.batch_size)) != step.tokens:
            raise TapeError(
                f"{key[0]} {key[1]}: its step {step.step} had {step.tokens} tokens, and by the recipe it has {tokens}"
            )
        loss = unit.trainer.step(step.start, unit.batch_size, step.progress)
        self.steps += 1
        recorded = "" if self._bare and not math.isfinite(step.loss) else repr(step.loss)
        self._compare("loss", recorded, repr(loss), key, step.step)
        self._on_step()

    def _value(self, key: Key, fragment: int, version: int) -> NDArray[np.float32]:
        """A version's parameters; dropped after its last adoption."""
        if (fragment, version) not in self._values:
            raise TapeError(f"{key[0]} {key[1]} adopts version {version} of fragment {fragment} before it is committed")
        self._adoptions[fragment, version] -= 1
        if self._adoptions[fragment, version]:
            return self._values[fragment, version]
        return self._values.pop((fragment, version))

    def _inherit(self, key: Key, unit: _Unit, donor: Key, digest: str) -> None:
        self._advance(donor, self._tape.incarnations[donor].places[Give(key)])
        arrays = state_arrays.pack(self._given.pop(key))
        self._compare("state", digest, state_arrays.digest(arrays), key)
        unit.trainer.inherit(state_arrays.unpack(arrays, unit.trainer.state_leaves()))

    def _read(self, key: Key, unit: _Unit, read: Read) -> None:
        """Encode what was sent at this read."""
        copy = unit.fragment_io.stage([read.fragment])[read.fragment]
        counters = FragmentCounters(read.version, 0, 0, 0)
        asked = Contribution(*key, 0, 0, read.fragment, 0, read.step, 0, counters, copy, "")
        sent = unit.fragment_io.encode(asked)  # which remembers it, where adopting will ask for it
        if (key, read) in self._sent:
            self._sent[key, read] = sent

    # -------------------------------------------------------------- comparing

    def _compare(
        self,
        what: str,
        recorded: str,
        found: str,
        key: Key = ("", 0),
        step: int | None = None,
        fragment: int | None = None,
    ) -> None:
        self.computed[what] += 1
        if not recorded:
            return
        self.compared[what] += 1
        if recorded == found:
            self.equal[what] += 1
        elif self.difference is None:
            self.difference = Difference(what, self._syncer_step, fragment, *key, step, recorded, found)

    def finish(self) -> str:
        """The digest of all parameters; compared with the run's if the tape is whole."""
        digest = self.parameters.digest()
        finished = self._tape.finished
        if self._tape.whole and finished is not None and (finished.digest or finished.state != "failed"):
            self._compare("final", finished.digest, digest)  # of a run that failed there is none
        return digest

    @property
    def bit_equal(self) -> bool | None:
        """Whether everything that decides the parameters equals the record; None if some of it was not recorded."""
        if self.difference is not None:
            return False
        whole = all(self.compared[what] == self.computed[what] for what in DECISIVE)
        return True if whole and any(self.compared[what] for what in DECISIVE) else None


def _pool_of(recipe: Recipe, key: Key) -> PoolConfig:
    try:
        return recipe.pool_of(key[0])
    except KeyError as error:
        raise TapeError(f"{named(key)} is of no pool of the recipe") from error
