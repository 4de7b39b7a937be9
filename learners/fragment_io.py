"""The learner's numbers on their way out and in: host copies, encoding, adoption.

Sits between the pure machine's effects and the trainer; used by every shell that trains. Knows no transport.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learners.protocol.events_effects import Apply
from learners.training import state_arrays
from outer.numeric import codec as codecs
from outer.protocol.messages import Contribution, State, StateRequest

if TYPE_CHECKING:
    from learners.training.trainer import Trainer
    from outer.config import SyncConfig

Flat = NDArray[np.float32]


@dataclass(frozen=True)
class HostCopy:
    """A fragment as of one completed step, and the syncer's value it grew from; float32[n] each."""

    theta: Flat
    base: Flat


@dataclass(frozen=True)
class StateSnapshot:
    """A learner's numbers as of one boundary. None of these arrays ever changes: any thread may pack them."""

    leaves: list[Any]  # parameters and inner optimizer
    bases: list[Flat | None]
    read: dict[tuple[int, int], Flat]
    asked: dict[int, tuple[int, int, int]]

    def pack(self) -> tuple[dict[str, Any], Sequence[NDArray[Any]]]:
        """(header, arrays), as `FragmentIO.restore` takes them."""
        leaves = state_arrays.pack(self.leaves)
        header = {
            "digest": state_arrays.digest(leaves),
            "leaves": len(leaves),
            "bases": [base is not None for base in self.bases],
            "reads": [list(at) for at in self.read],
            "asked": [[fragment, *newest] for fragment, newest in self.asked.items()],
        }
        return header, [*leaves, *(base for base in self.bases if base is not None), *self.read.values()]


class FragmentIO:
    """Keeps pristine host copies of what the syncer sent last: for codecs and for rebase."""

    def __init__(self, trainer: Trainer, config: SyncConfig, fragments: int) -> None:
        self._trainer, self._config = trainer, config
        self._bases: list[Flat | None] = [None] * fragments
        self._read: dict[tuple[int, int], Flat] = {}  # by fragment and step: what was sent for its newest read
        self._asked: dict[int, tuple[int, int, int]] = {}  # that read's epoch, syncer step and attempt, by fragment
        self._lock = threading.Lock()  # answers are encoded, and remembered, in other threads

    def stage(self, fragments: Iterable[int]) -> dict[int, HostCopy]:
        """Copy fragments to the host, as they are now."""
        copies = {}
        for fragment in fragments:
            base = self._bases[fragment]
            assert base is not None, "what did not come from the syncer is nobody's contribution"
            copies[fragment] = HostCopy(self._trainer.read(fragment), base)
        return copies

    def snapshot(self) -> StateSnapshot:
        """Everything as it is now, without copying."""
        with self._lock:
            return StateSnapshot(self._trainer.state_leaves(), list(self._bases), dict(self._read), dict(self._asked))

    def restore(self, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        """Go on from what a Holding packed. Raises ValueError where it is none of this task's."""
        like, asked, at = self._trainer.state_leaves(), header["asked"], header["reads"]
        count = len(like)
        leaves = [np.array(array) for array in arrays[:count]]
        if defect := state_arrays.defect(leaves, like):
            raise ValueError(f"what was saved is of another task, or damaged: {defect}")
        self._trainer.inherit(state_arrays.unpack(leaves, like))
        rest = iter(arrays[count:])
        self._bases = [next(rest) if there else None for there in header["bases"]]
        self._read = {(fragment, step): next(rest) for fragment, step in at}
        self._asked = {fragment: tuple(newest) for fragment, *newest in asked}

    def state_leaves(self) -> list[Any]:
        """Parameters and inner state as they are now, to be packed later, in any thread."""
        return self._trainer.state_leaves()

    def pack(
        self, held: list[Any], request: StateRequest, step: int, syncer_step: int, versions: tuple[int, ...] = ()
    ) -> State:
        """What was held, as it goes over the wire."""
        arrays = state_arrays.pack(held)
        origin = (request.donor, request.donor_incarnation, step, syncer_step)
        return State(*origin, arrays, state_arrays.digest(arrays), state_arrays.size(arrays), versions)

    def examine(self, state: State) -> str:
        """Why a peer's state cannot be used: bad_digest | wrong_shape | non_finite; empty when it can."""
        if defect := state_arrays.defect(state.payload, self._trainer.state_leaves()):
            return defect
        return "" if state_arrays.digest(state.payload) == state.digest else "bad_digest"

    def inherit(self, state: State) -> None:
        """Go on from a peer's parameters and inner state; no fragment has a base yet."""
        self._trainer.inherit(state_arrays.unpack(state.payload, self._trainer.state_leaves()))

    def base(self, fragment: int) -> Flat | None:
        """What the syncer sent last of a fragment."""
        return self._bases[fragment]

    def encode(self, contribution: Contribution) -> Contribution:
        """Turn a machine's answer, whose payload is a HostCopy, into what goes over the wire."""
        copy: HostCopy = contribution.payload
        if self._config.adopt == "rebase":
            self._remember(contribution, copy.theta)
        payload = codecs.encode(self._config.codec, copy.theta, copy.base)
        return replace(contribution, payload=payload, digest=codecs.digest(payload))

    def _remember(self, contribution: Contribution, theta: Flat) -> None:
        """What was sent for the newest read of its fragment; answers to an older one can merge no more."""
        asked = (contribution.epoch, contribution.syncer_step, contribution.attempt)
        with self._lock:
            newest = self._asked.setdefault(contribution.fragment, asked)
            if asked > newest:
                self._asked[contribution.fragment] = asked
                self._forget(contribution.fragment)
            if asked >= newest:
                self._read[contribution.fragment, contribution.step] = theta

    def _forget(self, fragment: int) -> None:
        for key in [key for key in self._read if key[0] == fragment]:
            del self._read[key]

    def apply(self, effect: Apply) -> None:
        """Adopt a fragment (float32[n], read-only) into the trainer."""
        if effect.mode == "bootstrap":
            self._trainer.load(effect.fragment, effect.payload)
        else:
            anchor = self._bases[effect.fragment]
            if effect.read_at is not None:
                anchor = self._read[effect.fragment, effect.read_at]
            self._trainer.adopt(effect.fragment, effect.payload, effect.mode, anchor, self._config.alpha)
        with self._lock:
            self._forget(effect.fragment)
        self._bases[effect.fragment] = effect.payload
