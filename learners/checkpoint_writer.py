"""A learner's part of checkpoints: written beside the training loop, and read again by a later process.

Knows where parts lie and what is in them; when one is due, and what follows from it, is the machine's. No transport.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from pydantic import TypeAdapter

from learners.protocol.events_effects import Save
from learners.protocol.resume_state import ResumeState
from outer.journal import checkpoint_parts
from outer.journal.object_store import Objects
from outer.protocol.messages import State

if TYPE_CHECKING:
    from learners.fragment_io import StateSnapshot

POLL_S = 0.05
_KEPT = TypeAdapter(ResumeState)


@dataclass(frozen=True)
class Saved:
    """A part of a checkpoint, and what it is for."""

    snapshot: int
    part: str
    seal: str
    incarnation: int  # that saved it
    exact: bool  # to go on as if nothing had been; else one more state to start from, where no peer has one


@dataclass(frozen=True)
class Part:
    """What was saved, as it is read again."""

    header: dict[str, Any]
    arrays: list[NDArray[Any]]
    kept: ResumeState

    @property
    def facts(self) -> int:
        """How many the incarnation had said, all of them recorded. Raises TypeError where that is not known."""
        return int(self.header["facts"])

    @property
    def state(self) -> State:
        """As a donor would have given it."""
        leaves = self.arrays[: int(self.header["leaves"])]
        origin = (str(self.header["learner"]), int(self.header["incarnation"]), self.kept.step, self.kept.syncer_step)
        versions = tuple(-1 if base.version is None else base.version for base in self.kept.bases)
        return State(*origin, leaves, str(self.header["digest"]), sum(leaf.nbytes for leaf in leaves), versions)


def read(store: Objects, saved: Saved) -> Part:
    """Raises OSError or ValueError (Damaged is one) for what is not there as it was written."""
    header, arrays, _ = checkpoint_parts.read(store, saved.snapshot, saved.part, saved.seal)
    return Part(header, arrays, _KEPT.validate_python(header["kept"]))


class Saver:
    """`settled` tells how many facts there were, if all of them are recorded."""

    def __init__(self, learner: str, incarnation: int, store: Objects, settled: Callable[[], int | None]) -> None:
        self._learner, self._incarnation, self._store, self._settled = learner, incarnation, store, settled
        self._writer = ThreadPoolExecutor(1, "save")
        self._writes: dict[int, Future[dict[str, Any]]] = {}  # by snapshot
        self._last: tuple[Save, StateSnapshot] | None = None  # to be written once nothing more is said
        self._lock = threading.Lock()

    def save(self, save: Save, holding: StateSnapshot) -> None:
        """Write it in a thread of its own; a final one only once `finish` is called."""
        with self._lock:
            if save.final:
                self._last = save, holding
            else:
                self._writes = {save.snapshot: self._writer.submit(self._write, save, holding)}

    def finish(self) -> None:
        """Nothing more is said: what another process is to go on from is whole now."""
        with self._lock:
            if self._last is not None:
                save, holding = self._last
                self._writes[save.snapshot] = self._writer.submit(self._write, save, holding)

    def described(self, snapshot: int, deadline_s: float, coming: Callable[[int], bool]) -> dict[str, Any] | None:
        """What the manifest is to say of a part, once that is written; None where there is none in time.

        `coming`: whether the machine may come to save it. Raises OSError for a store that does not take it.
        """
        give_up_at = time.monotonic() + deadline_s
        in_vain = False  # it will not come; once more is looked, for an effect follows its cause
        while (write := self._writes.get(snapshot)) is None:
            if time.monotonic() >= give_up_at or in_vain:
                return None
            in_vain = not (self._is_last(snapshot) or coming(snapshot))
            time.sleep(POLL_S)
        try:
            return write.result(timeout=max(0.0, give_up_at - time.monotonic()))
        except FutureTimeout:
            return None

    def _is_last(self, snapshot: int) -> bool:
        with self._lock:
            return self._last is not None and self._last[0].snapshot == snapshot

    def _write(self, save: Save, holding: StateSnapshot) -> dict[str, Any]:
        numbers, arrays = holding.pack()
        facts = self._settled() if save.final else None
        who = {"learner": self._learner, "incarnation": self._incarnation}
        header = {**who, "facts": facts, "kept": asdict(save.kept), **numbers}
        name = f"{self._learner}.{self._incarnation}"
        return (
            checkpoint_parts.write(self._store, save.snapshot, name, header, arrays)
            | who
            | {"exact": facts is not None}
        )
