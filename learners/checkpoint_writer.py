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
_RESUME_STATE = TypeAdapter(ResumeState)


@dataclass(frozen=True)
class SavedPart:
    """A part of a checkpoint, and what it is for."""

    snapshot: int
    part: str
    seal: str
    incarnation: int  # that saved it
    exact: bool  # to go on as if nothing had been; else one more state to start from, where no peer has one


@dataclass(frozen=True)
class LoadedPart:
    """What was saved, as it is read again."""

    header: dict[str, Any]
    arrays: list[NDArray[Any]]
    resume_state: ResumeState

    @property
    def facts(self) -> int:
        """How many the incarnation had said, all of them recorded. Raises TypeError where that is not known."""
        return int(self.header["facts"])

    @property
    def donor_state(self) -> State:
        """As a donor would have given it."""
        leaves = self.arrays[: int(self.header["leaves"])]
        origin = (
            str(self.header["learner"]),
            int(self.header["incarnation"]),
            self.resume_state.step,
            self.resume_state.syncer_step,
        )
        versions = tuple(-1 if base.version is None else base.version for base in self.resume_state.bases)
        return State(*origin, leaves, str(self.header["digest"]), sum(leaf.nbytes for leaf in leaves), versions)


def read(store: Objects, saved: SavedPart) -> LoadedPart:
    """Raises OSError or ValueError (Damaged is one) for what is not there as it was written."""
    header, arrays, _ = checkpoint_parts.read(store, saved.snapshot, saved.part, saved.seal)
    return LoadedPart(header, arrays, _RESUME_STATE.validate_python(header["kept"]))


class CheckpointWriter:
    """`recorded` tells how many facts there were, if all of them are recorded."""

    def __init__(self, learner: str, incarnation: int, store: Objects, recorded: Callable[[], int | None]) -> None:
        self._learner, self._incarnation, self._store, self._recorded = learner, incarnation, store, recorded
        self._writer = ThreadPoolExecutor(1, "save")
        self._writes: dict[int, Future[dict[str, Any]]] = {}  # by snapshot
        self._final: tuple[Save, StateSnapshot] | None = None  # to be written once nothing more is said
        self._lock = threading.Lock()

    def save(self, save: Save, snapshot: StateSnapshot) -> None:
        """Write it in a thread of its own; a final one only once `finish` is called."""
        with self._lock:
            if save.final:
                self._final = save, snapshot
            else:
                self._writes = {save.snapshot: self._writer.submit(self._write, save, snapshot)}

    def finish(self) -> None:
        """Nothing more is said: what another process is to go on from is whole now."""
        with self._lock:
            if self._final is not None:
                save, snapshot = self._final
                self._writes[save.snapshot] = self._writer.submit(self._write, save, snapshot)

    def described(self, snapshot: int, deadline_s: float, coming: Callable[[int], bool]) -> dict[str, Any] | None:
        """What the manifest is to say of a part, once that is written; None where there is none in time.

        `coming`: whether the machine may come to save it. Raises OSError for a store that does not take it.
        """
        give_up_at = time.monotonic() + deadline_s
        in_vain = False  # it will not come; once more is looked, for an effect follows its cause
        while (write := self._writes.get(snapshot)) is None:
            if time.monotonic() >= give_up_at or in_vain:
                return None
            in_vain = not (self._is_final(snapshot) or coming(snapshot))
            time.sleep(POLL_S)
        try:
            return write.result(timeout=max(0.0, give_up_at - time.monotonic()))
        except FutureTimeout:
            return None

    def _is_final(self, snapshot: int) -> bool:
        with self._lock:
            return self._final is not None and self._final[0].snapshot == snapshot

    def _write(self, save: Save, snapshot: StateSnapshot) -> dict[str, Any]:
        numbers, arrays = snapshot.pack()
        facts = self._recorded() if save.final else None
        who = {"learner": self._learner, "incarnation": self._incarnation}
        header = {**who, "facts": facts, "kept": asdict(save.state), **numbers}
        name = f"{self._learner}.{self._incarnation}"
        return (
            checkpoint_parts.write(self._store, save.snapshot, name, header, arrays)
            | who
            | {"exact": facts is not None}
        )
