"""One learner on several processes: an island. Its ranks hold one model, sharded over the devices of all of them.

Rank 0 leads: it alone runs the machine, and tells the other ranks what it does with its arrays, in its order and before
it does it, since programs that communicate wait for each other. Values go to them before an adoption names them. What
no rank has whole is put together on the host from each rank's shards.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from learners.protocol.pipeline import IN_FLIGHT_MAX
from learners.training import state_arrays
from learners.training.devices.placement import Placed
from learners.training.rank_call import END, RankCall
from learners.training.state_arrays import Arrays, LeafPieces
from learners.training.trainer import InFlight, Trainer
from learners.training.tree import Flat


class Others(Protocol):
    """How rank 0 reaches the other ranks. Raises the transport's own exceptions."""

    def tell(self, call: RankCall) -> None:
        """Send and forget; calls may arrive in any order."""
        ...

    def place(self, key: int, fragment: int, flat: Flat, exact: bool) -> None:
        """Give every rank a fragment's value, and wait until each has it on its devices."""
        ...

    def pieces(self, capture: int) -> list[list[LeafPieces | None]]:
        """The shards of a captured state: of each other rank, of each leaf; None for a leaf that rank 0 has whole."""
        ...


@dataclass(frozen=True)
class Shared(Placed):
    """A fragment's value that every rank has on its devices, under this key."""

    key: int


class Capture(list[Any]):
    """The leaves that rank 0 captured; the other ranks have theirs under this number."""

    def __init__(self, leaves: Sequence[Any], number: int) -> None:
        super().__init__(leaves)
        self.number = number


class LeadingTrainer(Trainer):
    """Rank 0's trainer. From `lead` on, the other ranks follow; before, each does the same by itself."""

    _others: Others | None = None

    def lead(self, others: Others) -> None:
        self._calls, self._keys = 0, 0
        self._released: deque[int] = deque()  # captures; a finalizer may add one in any thread, at any time
        self._telling = threading.Lock()
        self._others = others

    def end(self) -> None:
        """The other ranks follow no more."""
        self._tell(END)

    def _tell(self, method: str, *arguments: Any) -> int:
        """Returns the call's number."""
        if self._others is None:
            return 0
        with self._telling:
            while self._released:
                self._send("release", self._released.popleft())
            return self._send(method, *arguments)

    def _send(self, method: str, *arguments: Any) -> int:
        assert self._others is not None
        number, self._calls = self._calls, self._calls + 1
        self._others.tell(RankCall(number, method, arguments))
        return number

    # -------------------------------------------------------------- as the trainer of one process

    def reset_optimizer(self) -> None:
        self._tell("reset_optimizer")
        super().reset_optimizer()

    def expect(self, starts: Sequence[int], count: int) -> None:
        self._tell("expect", starts, count)
        super().expect(starts, count)

    def dispatch(self, start: int, count: int, progress: float) -> InFlight:
        self._tell("dispatch", start, count, progress)
        return super().dispatch(start, count, progress)

    def copy(self, index: int) -> jax.Array:
        self._tell("copy", index)
        return super().copy(index)

    def prepare(self, index: int, flat: Flat, exact: bool = False) -> Placed:
        if self._others is None:
            return super().prepare(index, flat, exact)
        with self._telling:
            key, self._keys = self._keys, self._keys + 1
        self._others.place(key, index, flat, exact)
        return Shared(super().prepare(index, flat, exact).leaves, key)

    def swap(self, index: int, placed: Placed) -> None:
        if isinstance(placed, Shared):
            self._tell("swap", index, placed.key)
        super().swap(index, placed)

    def adopt(
        self,
        index: int,
        theta: Flat | Placed,
        mode: str,
        anchor: Flat | None = None,
        adopted: Flat | jax.Array | None = None,
    ) -> jax.Array | None:
        if self._others is not None and mode != "overwrite":
            theta = theta if isinstance(theta, Shared) else self.prepare(index, theta, exact=True)  # type: ignore[arg-type]
            assert isinstance(theta, Shared)
            # What a value grew from is used where leaves are narrow; what is on the devices here is so there, too.
            told = adopted if self.narrow(index) and not isinstance(adopted, jax.Array) else None
            self._tell("adopt", index, theta.key, mode, anchor, told)
            theta = Placed(theta.leaves)
        return super().adopt(index, theta, mode, anchor, adopted)

    def capture(self) -> list[Any]:
        return self._captured(super().capture, on_host=False)

    def captured_on_host(self) -> list[Any]:
        return self._captured(super().captured_on_host, on_host=True)

    def _captured(self, take: Callable[[], list[Any]], on_host: bool) -> list[Any]:
        if self._others is None:
            return take()
        number = self._tell("capture", on_host)
        capture = Capture(take(), number)
        weakref.finalize(capture, self._released.append, number)
        return capture

    def packed(self, leaves: Sequence[Any]) -> Arrays:
        if self._others is None:
            return super().packed(leaves)
        here = list(map(state_arrays.here, leaves))
        elsewhere: list[list[LeafPieces | None]] = []
        if any(isinstance(leaf, LeafPieces) for leaf in here):
            assert isinstance(leaves, Capture), "only what was captured is the same on every rank"
            elsewhere = self._others.pieces(leaves.number)
        return [
            leaf.joined(rank[index] for rank in elsewhere) if isinstance(leaf, LeafPieces) else leaf
            for index, leaf in enumerate(here)
        ]

    def restore(self, arrays: Arrays) -> None:
        self._tell("restore", list(arrays))
        super().restore(arrays)


class Follower:
    """A rank other than 0: does with its trainer what rank 0 tells it. `perform` is one thread's."""

    def __init__(self, trainer: Trainer, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        """`delay_s`: of the next step, by an injected fault."""
        self._trainer, self._delay_s = trainer, delay_s
        self._changed = threading.Condition()
        self._placed: dict[tuple[int, int], Placed] = {}  # by fragment and key
        self._captures: dict[int, list[Any]] = {}
        self._moved: dict[int, jax.Array | None] = {}  # by fragment: what its last adoption returned
        self._flights: deque[InFlight] = deque()
        self._methods: dict[str, Callable[..., None]] = {
            "reset_optimizer": trainer.reset_optimizer,
            "expect": trainer.expect,
            "restore": trainer.restore,
            "dispatch": self._dispatch,
            "copy": self._copy,
            "swap": lambda fragment, key: trainer.swap(fragment, self._take(fragment, key)),
            "adopt": self._adopt,
            "release": self._release,
        }

    def place(self, key: int, fragment: int, flat: Flat, exact: bool) -> None:
        """Put a fragment's value on this rank's devices, for `swap` or `adopt`. Returns when it is there."""
        placed = self._trainer.prepare(fragment, flat, exact)
        with self._changed:
            self._placed[fragment, key] = placed

    def pieces(self, capture: int, deadline_s: float) -> list[LeafPieces | None]:
        """This rank's shards of a captured state. Raises TimeoutError if it was not captured in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: capture in self._captures, deadline_s):
                raise TimeoutError(f"the state was not captured within {deadline_s:g} s")
            leaves = self._captures[capture]
        here = map(state_arrays.here, leaves)
        return [leaf if isinstance(leaf, LeafPieces) else None for leaf in here]

    def perform(self, calls: Sequence[RankCall]) -> bool:
        """Repeat calls of rank 0, in its order. True: the last says that it is over. Raises what a call raises."""
        for call in calls:
            if call.method == END:
                return True
            if call.method == "capture":
                self._capture(call)
            else:
                self._methods[call.method](*call.arguments)
        return False

    def _dispatch(self, start: int, count: int, progress: float) -> None:
        time.sleep(self._delay_s())
        self._flights.append(self._trainer.dispatch(start, count, progress))
        while len(self._flights) >= IN_FLIGHT_MAX:
            self._flights.popleft().result()

    def _copy(self, index: int) -> None:
        self._trainer.copy(index)

    def _take(self, fragment: int, key: int) -> Placed:
        """The value of this key; what was placed before and never adopted is dropped."""
        with self._changed:
            placed = self._placed.pop((fragment, key))
            for older in [each for each in self._placed if each[0] == fragment and each[1] < key]:
                del self._placed[older]
        return placed

    def _adopt(self, fragment: int, key: int, mode: str, anchor: Flat | None, adopted: Flat | None) -> None:
        grown_from = self._moved.get(fragment) if adopted is None else adopted
        self._moved[fragment] = self._trainer.adopt(fragment, self._take(fragment, key), mode, anchor, grown_from)

    def _capture(self, call: RankCall) -> None:
        on_host = call.arguments[0]
        leaves = self._trainer.captured_on_host() if on_host else self._trainer.capture()
        with self._changed:
            self._captures[call.number] = leaves
            self._changed.notify_all()

    def _release(self, capture: int) -> None:
        with self._changed:
            self._captures.pop(capture, None)
