"""Moves a learner's parameters between the trainer and messages: copies, encoding, adoption, peer state.

Every shell with a trainer performs the machine's Stage, Answer, Apply, Donate, Inherit and Save effects with it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from learners.protocol.events_effects import Apply
from learners.training import state_arrays
from outer.numeric import codec as codecs
from outer.numeric.formats import below, named
from outer.protocol.messages import Contribution, State, StateRequest

if TYPE_CHECKING:
    from learners.training.devices.placement import Placed
    from learners.training.trainer import Trainer
    from outer.config import SyncConfig

Flat = NDArray[np.float32]


class OnDevices:
    """float32[n] on the devices until a thread first asks for it on the host."""

    def __init__(self, value: Any, to_host: Callable[[Any], Flat]) -> None:
        self.value = value  # float32[n], on the devices or on the host
        self._to_host: Callable[[Any], Flat] | None = to_host
        self._lock = threading.Lock()  # two threads share one transfer

    def host(self) -> Flat:
        """Read-only float32[n]; waits for the devices. Any thread may call it."""
        with self._lock:
            if self._to_host is not None:
                self.value, self._to_host = self._to_host(self.value), None
            held: Flat = self.value
            return held


class Captured:
    """The leaves of parameters and inner state as of one step boundary, for any thread to pack.

    They leave the slot with `pack`, or when nothing refers to this object any more.
    """

    def __init__(
        self,
        leaves: list[Any],
        packed: Callable[[list[Any]], state_arrays.Arrays],
        released: Callable[[], None] = lambda: None,
    ) -> None:
        self._leaves, self._packed = leaves, packed
        self._released = weakref.finalize(self, released)  # runs once, whichever comes first

    def pack(self) -> state_arrays.Arrays:
        """The leaves on the host, as state_arrays.pack has them. Call it once: they are needed no more."""
        try:
            return self._packed(self._leaves)
        finally:
            self._leaves = []
            self._released()


class SnapshotSlot:
    """The one slot for a copy of a learner's whole state, which checkpoints and joiners share.

    A copy in the slot stays on the devices until it is packed. `take` belongs to the training loop: it waits up to
    `wait_s` for an earlier copy to leave, then has the state copied to the host while the loop stands still.
    """

    def __init__(self, trainer: Trainer, wait_s: float) -> None:
        self._trainer, self._wait_s = trainer, wait_s
        self._freed = threading.Condition(threading.RLock())  # a finalizer may run in any thread, at any time
        self._holders = 0  # of the copy in the slot
        self._leaves: list[Any] = []
        self._generation = -1  # of the trainer's state, that the copy has

    def take(self) -> Captured:
        """The state as of now: a copy on the devices if there is room and the slot is free, else on the host."""
        generation = self._trainer.generation
        with self._freed:
            if self._holders and self._generation != generation:
                self._wait()
            if self._holders and self._generation != generation:
                return Captured(self._trainer.captured_on_host(), self._trainer.packed)
            if not self._holders:
                self._leaves, self._generation = self._trainer.capture(), generation
            self._holders += 1
            return Captured(self._leaves, self._trainer.packed, self._release)

    def _wait(self) -> None:
        give_up_at = time.monotonic() + self._wait_s
        while self._holders and (left_s := give_up_at - time.monotonic()) > 0.0:
            self._freed.wait(left_s)

    def _release(self) -> None:
        with self._freed:
            self._holders -= 1
            if not self._holders:
                self._leaves = []
                self._freed.notify_all()


@dataclass(frozen=True)
class StagedCopy:
    """A fragment as of one completed step, and the syncer's value that it grew from, float32[n] each.

    `adopted`: what was adopted then, before it was rounded to leaves narrower than float32. None stands for `base`.
    `residual`: what earlier contributions left out, to be added to the outer gradient; None for nothing.
    """

    theta: OnDevices
    base: Flat
    adopted: OnDevices | None = None
    residual: Flat | None = None


@dataclass(frozen=True)
class Received:
    """The syncer's value of a fragment, float32[n] as it came, and on the devices."""

    theta: Flat
    placed: Placed


@dataclass(frozen=True)
class StateSnapshot:
    """A learner's arrays as of one step boundary, for any thread to pack."""

    captured: Captured
    bases: list[tuple[int, Flat | None]]
    read: dict[tuple[int, int], Flat]
    asked: dict[int, tuple[int, int, int]]
    adopted: dict[int, OnDevices]
    residuals: dict[int, Flat]
    left_out: dict[tuple[int, int], Flat]

    def pack(self) -> tuple[dict[str, Any], Sequence[NDArray[Any]]]:
        """(header, arrays) for a checkpoint, as `FragmentIO.restore` takes them. Call it once."""
        leaves = self.captured.pack()
        header = {
            "digest": state_arrays.digest(leaves),
            "leaves": len(leaves),
            "versions": [version for version, _ in self.bases],
            "reads": [list(at) for at in self.read],
            "asked": [[fragment, *newest] for fragment, newest in self.asked.items()],
            "adopted": list(self.adopted),
            "residuals": list(self.residuals),
            "left_out": [list(at) for at in self.left_out],
        }
        bases = [base for _, base in self.bases if base is not None]
        adopted = [each.host() for each in self.adopted.values()]
        fed_back = *self.residuals.values(), *self.left_out.values()
        return header, [*leaves, *bases, *self.read.values(), *adopted, *fed_back]


class FragmentIO:
    """One learner's fragments. Keeps unchanged host copies of the syncer's last values, for codecs and rebase."""

    def __init__(self, trainer: Trainer, config: SyncConfig, fragments: int, seed: int = 0) -> None:
        """`seed`: the run's, for codecs that round at random."""
        self._trainer, self._config, self._seed = trainer, config, seed
        for codec in (config.codec, *(below(config.codec) if config.adaptive else ())):
            named(codec).warm_up()
        self._slot = SnapshotSlot(trainer, config.lease_s / 2)
        self._bases: list[tuple[int, Flat | None]] = [(-1, None)] * fragments
        self._read: dict[tuple[int, int], Flat] = {}  # (fragment, step) -> what was sent for the newest read
        self._asked: dict[int, tuple[int, int, int]] = {}  # fragment -> that read's epoch, syncer step and attempt
        self._adopted: dict[int, OnDevices] = {}  # StagedCopy.adopted, where it is not the base
        self._residuals: dict[int, Flat] = {}  # StagedCopy.residual, where error feedback has one
        self._left_out: dict[tuple[int, int], Flat] = {}  # (fragment, step) -> what rounding left out of that answer
        self._lock = threading.Lock()  # other threads encode answers

    def stage(self, fragments: Iterable[int]) -> dict[int, StagedCopy]:
        """Copy fragments as of now, on the devices. Does not wait."""
        copies = {}
        for fragment in fragments:
            _, base = self._bases[fragment]
            assert base is not None, "only a fragment from the syncer can be contributed"
            theta = OnDevices(self._trainer.copy(fragment), self._trainer.host)
            copies[fragment] = StagedCopy(theta, base, self._adopted.get(fragment), self._residuals.get(fragment))
        return copies

    def snapshot(self) -> StateSnapshot:
        """All state as of now, for a checkpoint."""
        with self._lock:
            read, asked, left_out = dict(self._read), dict(self._asked), dict(self._left_out)
        bases, adopted, residuals = list(self._bases), dict(self._adopted), dict(self._residuals)
        return StateSnapshot(self._slot.take(), bases, read, asked, adopted, residuals, left_out)

    def restore(self, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        """Restore what a StateSnapshot packed. Raises ValueError if it does not fit this task."""
        count, asked, at = len(self._trainer.state_leaves()), header["asked"], header["reads"]
        leaves = [np.array(array) for array in arrays[:count]]
        if defect := state_arrays.defect(leaves, self._trainer.state_leaves()):
            raise ValueError(f"the saved state is of another task, or damaged: {defect}")
        self._trainer.restore(leaves)
        rest = iter(arrays[count:])
        self._bases = [(version, None if version < 0 else next(rest)) for version in header["versions"]]
        self._read = {(fragment, step): next(rest) for fragment, step in at}
        self._asked = {fragment: tuple(newest) for fragment, *newest in asked}
        self._adopted = {fragment: OnDevices(next(rest), lambda held: held) for fragment in header["adopted"]}
        self._residuals = {fragment: next(rest) for fragment in header["residuals"]}
        self._left_out = {(fragment, step): next(rest) for fragment, step in header["left_out"]}

    def capture(self) -> Captured:
        """Parameters and inner state as of now. Any thread may `pack` them later."""
        return self._slot.take()

    def pack(
        self, captured: Captured, request: StateRequest, step: int, syncer_step: int, versions: tuple[int, ...] = ()
    ) -> State:
        """The answer to a StateRequest, from `capture`; once."""
        arrays = captured.pack()
        origin = (request.donor, request.donor_incarnation, step, syncer_step)
        return State(*origin, arrays, state_arrays.digest(arrays), state_arrays.size(arrays), versions)

    def state_defect(self, state: State) -> str:
        """The defect of a peer's state: bad_digest, wrong_shape or non_finite; empty for none."""
        if defect := state_arrays.defect(state.payload, self._trainer.state_leaves()):
            return defect
        return "" if state_arrays.digest(state.payload) == state.digest else "bad_digest"

    def inherit(self, state: State) -> None:
        """Take over a peer's parameters and inner state. No fragment has a base yet."""
        self._trainer.restore(state.payload)

    def bytes_of(self, fragment: int) -> int:
        """Return the bytes of a fragment as the syncer sends it."""
        return 4 * self._trainer.fragments[fragment].size

    @property
    def state_bytes(self) -> int:
        """Return the bytes of a peer's state."""
        return sum(leaf.nbytes for leaf in self._trainer.state_leaves())

    def bases(self) -> Sequence[tuple[int, Flat | None]]:
        """The syncer's last value of each fragment, float32[n], and its version; (-1, None) before the first."""
        return self._bases

    def encode(self, contribution: Contribution) -> Contribution:
        """Encode the machine's answer, whose payload is a StagedCopy, for the wire, and add its digest.

        A learner with leaves narrower than float32 starts from the rounding of what it adopts. The rounding is no
        progress, so it is subtracted: without steps, the encoded value is the base, bit for bit.
        """
        copy: StagedCopy = contribution.payload
        theta, adopted = copy.theta.host(), copy.base if copy.adopted is None else copy.adopted.host()
        if (added := self._trainer.rounding(contribution.fragment, adopted)) is not None:
            theta = theta - added
        payload, left_out = self._payload(contribution, theta, copy)
        if self._config.needs_notice:
            self._remember(contribution, theta, left_out)
        return replace(contribution, payload=payload, digest=codecs.digest(payload))

    def _payload(self, contribution: Contribution, theta: Flat, copy: StagedCopy) -> tuple[NDArray[Any], Flat | None]:
        """The payload, and with error feedback what it leaves out of the outer gradient with its residual."""
        seed, codec = self._seed_of(contribution), contribution.codec or self._config.codec
        if not self._config.decay:
            return codecs.encode(codec, theta, copy.base, seed), None
        form = named(codec)
        with np.errstate(over="ignore", invalid="ignore"):  # the receiver refuses what is not finite
            wanted = copy.base - theta
            if copy.residual is not None:
                wanted += copy.residual
            payload = form.encode(wanted, seed)
            return payload, wanted - form.decode(payload, len(wanted))

    def _seed_of(self, contribution: Contribution) -> int:
        """64 bits, of this answer alone: encoding it again makes the same payload."""
        one = contribution
        words = f"{self._seed} {one.learner} {one.incarnation} {one.fragment} {one.step}"
        return xxhash.xxh3_64_intdigest(words.encode())

    def _remember(self, contribution: Contribution, theta: Flat, left_out: Flat | None) -> None:
        """Remember what was sent for the newest read of a fragment, and what was not. Older reads no longer merge."""
        asked = (contribution.epoch, contribution.syncer_step, contribution.attempt)
        with self._lock:
            newest = self._asked.setdefault(contribution.fragment, asked)
            if asked > newest:
                self._asked[contribution.fragment] = asked
                self._forget(contribution.fragment)
            if asked >= newest and self._config.adopt == "rebase":
                self._read[contribution.fragment, contribution.step] = theta
            if asked >= newest and left_out is not None:
                self._left_out[contribution.fragment, contribution.step] = left_out

    def _forget(self, fragment: int) -> None:
        for kept in (self._read, self._left_out):
            for key in [key for key in kept if key[0] == fragment]:
                del kept[key]

    def receive(self, fragment: int, theta: Flat) -> Received:
        """Put the syncer's value of a fragment, read-only float32[n], on the devices. Any thread may call it."""
        return Received(theta, self._trainer.prepare(fragment, theta, exact=self._config.adopt != "overwrite"))

    def apply(self, effect: Apply) -> None:
        """Adopt the syncer's value of a fragment: what `receive` returned, or read-only float32[n]."""
        index, given, (_, base) = effect.fragment, effect.payload, self._bases[effect.fragment]
        theta, placed = (given.theta, given.placed) if isinstance(given, Received) else (given, given)
        grown_from = self._adopted.pop(index, None)
        if self._config.decay and effect.read_at is not None:
            with self._lock:
                left_out = self._left_out.get((index, effect.read_at))
            if left_out is not None:  # else a checkpoint without error feedback was resumed with it
                self._residuals[index] = np.float32(self._config.decay) * left_out
        if effect.mode in ("bootstrap", "overwrite"):
            self._trainer.adopt(index, placed, "overwrite")
        else:
            assert base is not None, "only what is held can be rebased"
            anchor = base
            if effect.read_at is not None:
                with self._lock:  # an answer to a later read replaces the values of earlier ones
                    anchor = self._read[index, effect.read_at]
            before = base if grown_from is None else grown_from.value
            adopted = self._trainer.adopt(index, placed, effect.mode, anchor, before)
            if adopted is not None:
                self._adopted[index] = OnDevices(adopted, self._trainer.host)
        with self._lock:
            self._forget(index)
        self._bases[index] = effect.version, theta
