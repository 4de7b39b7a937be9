"""Moves a learner's parameters between the trainer and messages: host copies, encoding, adoption, peer state.

Every shell with a trainer performs the machine's Stage, Answer, Apply, Donate, Inherit and Save effects with it.
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
    """A fragment as of one completed step, and the syncer's value that it grew from; float32[n] each.

    `offset`: what rounding to leaves narrower than float32 added when `base` was adopted, float32[n]. None stands for
    the rounding of `base`, which is zero where every leaf is float32.
    """

    theta: Flat
    base: Flat
    offset: Flat | None = None


@dataclass(frozen=True)
class StateSnapshot:
    """A learner's arrays as of one step boundary. The arrays never change, so any thread may pack them."""

    leaves: list[Any]  # parameters and inner optimizer
    bases: list[Flat | None]
    read: dict[tuple[int, int], Flat]
    asked: dict[int, tuple[int, int, int]]
    offsets: dict[int, Flat]

    def pack(self) -> tuple[dict[str, Any], Sequence[NDArray[Any]]]:
        """(header, arrays) for a checkpoint, as `FragmentIO.restore` takes them."""
        leaves = state_arrays.pack(self.leaves)
        header = {
            "digest": state_arrays.digest(leaves),
            "leaves": len(leaves),
            "bases": [base is not None for base in self.bases],
            "reads": [list(at) for at in self.read],
            "asked": [[fragment, *newest] for fragment, newest in self.asked.items()],
            "offsets": list(self.offsets),
        }
        bases = (base for base in self.bases if base is not None)
        return header, [*leaves, *bases, *self.read.values(), *self.offsets.values()]


class FragmentIO:
    """One learner's fragments. Keeps unchanged host copies of the syncer's last values, for codecs and rebase."""

    def __init__(self, trainer: Trainer, config: SyncConfig, fragments: int) -> None:
        self._trainer, self._config = trainer, config
        self._bases: list[Flat | None] = [None] * fragments
        self._read: dict[
            tuple[int, int], Flat
        ] = {}  # (fragment, step) -> the value sent for the fragment's newest read
        self._asked: dict[int, tuple[int, int, int]] = {}  # fragment -> that read's epoch, syncer step and attempt
        self._offsets: dict[int, Flat] = {}  # HostCopy.offset, where it is not the rounding of the base
        self._lock = threading.Lock()  # other threads encode answers

    def stage(self, fragments: Iterable[int]) -> dict[int, HostCopy]:
        """Copy fragments to the host, as of now."""
        copies = {}
        for fragment in fragments:
            base = self._bases[fragment]
            assert base is not None, "only a fragment from the syncer can be contributed"
            copies[fragment] = HostCopy(self._trainer.read(fragment), base, self._offsets.get(fragment))
        return copies

    def snapshot(self) -> StateSnapshot:
        """All state as of now, for a checkpoint; copies nothing."""
        with self._lock:
            bases, read, asked, offsets = list(self._bases), dict(self._read), dict(self._asked), dict(self._offsets)
        return StateSnapshot(self._trainer.state_leaves(), bases, read, asked, offsets)

    def restore(self, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        """Restore what a StateSnapshot packed. Raises ValueError if it does not fit this task."""
        like, asked, at = self._trainer.state_leaves(), header["asked"], header["reads"]
        count = len(like)
        leaves = [np.array(array) for array in arrays[:count]]
        if defect := state_arrays.defect(leaves, like):
            raise ValueError(f"the saved state is of another task, or damaged: {defect}")
        self._trainer.inherit(state_arrays.unpack(leaves, like))
        rest = iter(arrays[count:])
        self._bases = [next(rest) if there else None for there in header["bases"]]
        self._read = {(fragment, step): next(rest) for fragment, step in at}
        self._asked = {fragment: tuple(newest) for fragment, *newest in asked}
        self._offsets = {fragment: next(rest) for fragment in header.get("offsets", ())}

    def state_leaves(self) -> list[Any]:
        """Parameters and inner state as of now. Any thread may `pack` them later."""
        return self._trainer.state_leaves()

    def pack(
        self, leaves: list[Any], request: StateRequest, step: int, syncer_step: int, versions: tuple[int, ...] = ()
    ) -> State:
        """The answer to a StateRequest, from `state_leaves`."""
        arrays = state_arrays.pack(leaves)
        origin = (request.donor, request.donor_incarnation, step, syncer_step)
        return State(*origin, arrays, state_arrays.digest(arrays), state_arrays.size(arrays), versions)

    def state_defect(self, state: State) -> str:
        """The defect of a peer's state: bad_digest, wrong_shape or non_finite; empty for none."""
        if defect := state_arrays.defect(state.payload, self._trainer.state_leaves()):
            return defect
        return "" if state_arrays.digest(state.payload) == state.digest else "bad_digest"

    def inherit(self, state: State) -> None:
        """Take over a peer's parameters and inner state. No fragment has a base yet."""
        self._trainer.inherit(state_arrays.unpack(state.payload, self._trainer.state_leaves()))

    def base(self, fragment: int) -> Flat | None:
        """The syncer's last value of a fragment, float32[n]; None before the first."""
        return self._bases[fragment]

    def encode(self, contribution: Contribution) -> Contribution:
        """Encode the machine's answer, whose payload is a HostCopy, for the wire, and add its digest.

        A learner with leaves narrower than float32 starts from the rounding of what it adopts. The rounding is no
        progress, so it is subtracted: without steps, the encoded value is the base, bit for bit.
        """
        copy: HostCopy = contribution.payload
        offset = self._trainer.rounding(contribution.fragment, copy.base) if copy.offset is None else copy.offset
        theta = copy.theta if offset is None else copy.theta - offset
        if self._config.adopt == "rebase":
            self._remember(contribution, theta)
        payload = codecs.encode(self._config.codec, theta, copy.base)
        return replace(contribution, payload=payload, digest=codecs.digest(payload))

    def _remember(self, contribution: Contribution, theta: Flat) -> None:
        """Remember the value sent for the newest read of a fragment. Older reads can no longer merge."""
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
        """Adopt the syncer's value of a fragment, read-only float32[n], into the trainer."""
        index, base = effect.fragment, self._bases[effect.fragment]
        offset = self._offsets.pop(index, None)
        if effect.mode == "bootstrap":
            self._trainer.load(index, effect.payload)
        elif effect.mode == "overwrite":
            self._trainer.adopt(index, effect.payload, effect.mode)
        else:
            assert base is not None, "only what is held can be rebased or mixed"
            anchor = base if effect.read_at is None else self._read[index, effect.read_at]
            offset = self._trainer.rounding(index, base) if offset is None else offset
            adopted = self._trainer.adopt(index, effect.payload, effect.mode, anchor, self._config.alpha, offset)
            if (added := self._trainer.rounding(index, adopted)) is not None:
                self._offsets[index] = added
        with self._lock:
            self._forget(index)
        self._bases[index] = effect.payload
