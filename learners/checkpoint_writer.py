"""Writes a learner's parts of checkpoints in the background, and reads one in a later process.

The learner machine decides when to save.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from pydantic import TypeAdapter

from learners.protocol.events_effects import Save
from learners.protocol.fact_buffer import FactBuffer
from learners.protocol.resume_state import ResumeState
from learners.training.devices import cores
from outer.background import Background
from outer.journal import checkpoint_parts
from outer.journal.object_store import Objects, StoreAway
from outer.ports import now
from outer.protocol.messages import State

if TYPE_CHECKING:
    from learners.fragment_io import StateSnapshot

POLL_S = 0.05
AGAIN_S = 2.0  # between two attempts to write a final part
_RESUME_STATE = TypeAdapter(ResumeState)


@dataclass(frozen=True)
class SavedPart:
    """A learner's part of a checkpoint, as the manifest names it."""

    snapshot: int
    part: str
    seal: str
    incarnation: int  # the incarnation that saved it
    exact: bool  # True: the same incarnation can continue from it; False: only a new one can start from it


@dataclass(frozen=True)
class LoadedPart:
    """A part that was read."""

    header: dict[str, Any]
    arrays: list[NDArray[Any]]
    resume_state: ResumeState

    @property
    def facts(self) -> int:
        """How many facts the incarnation had logged, all recorded. Raises TypeError if the part is not exact."""
        return int(self.header["facts"])

    @property
    def donor_state(self) -> State:
        """The part as a donor's answer, for a new incarnation."""
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
    """Read a part. Raises OSError, or ValueError (Damaged is one) if it is missing or damaged."""
    header, arrays, _ = checkpoint_parts.read(store, saved.snapshot, saved.part, saved.seal)
    return LoadedPart(header, arrays, _RESUME_STATE.validate_python(header["kept"]))


class CheckpointWriter:
    """Writes the parts of one incarnation. A part counts once the log has the facts that led to it."""

    def __init__(self, learner: str, incarnation: int, store: Objects, facts: FactBuffer) -> None:
        self._learner, self._incarnation, self._store, self._facts = learner, incarnation, store, facts
        self._thread = ThreadPoolExecutor(1, "save", initializer=cores.leave)
        self._background = Background(lambda error: None)  # `described` raises it
        self._turn = asyncio.Lock()  # a snapshot stays on the devices until those before it are written
        # By snapshot: the manifest's entry, and the number of the fact after those that led to the part.
        self._writes: dict[int, asyncio.Task[tuple[dict[str, Any], int]]] = {}
        self._final: tuple[Save, StateSnapshot] | None = None  # written by `finish`
        self._away = ""  # what the store says for which the final part waits

    def save(self, save: Save, snapshot: StateSnapshot) -> None:
        """Write a part in the background; a final one only when `finish` is called."""
        if save.final:
            self._final = save, snapshot
        else:
            self._writes = {save.snapshot: self._background.spawn(self._write(save, snapshot))}

    @property
    def finishing(self) -> bool:
        """Whether there is a final part, from which another process continues exactly if all facts are logged."""
        return self._final is not None

    def finish(self) -> None:
        """All facts are logged: write the final part, from which another process continues."""
        if self._final is not None:
            self._writes[self._final[0].snapshot] = self._background.spawn(self._write(*self._final))

    async def described(self, snapshot: int, deadline_s: float, coming: Callable[[int], bool]) -> dict[str, Any] | None:
        """Wait for a part to be written; return its entry for the manifest, or None if there is none in time.

        `coming(snapshot)`: whether the machine may yet save it. Raises OSError if the store refuses it, StoreAway for a
        final part that waits for the store.
        """
        give_up_at = now() + deadline_s
        in_vain = False  # the machine will not save it; look once more, since its effect may just have been performed
        while (write := self._writes.get(snapshot)) is None:
            if now() >= give_up_at and self._is_final(snapshot):
                raise StoreAway("the last facts wait for the store")
            if now() >= give_up_at or in_vain:
                return None
            in_vain = not (self._is_final(snapshot) or coming(snapshot))
            await asyncio.sleep(POLL_S)
        await asyncio.wait({write}, timeout=max(0.0, give_up_at - now()))
        if not write.done():
            if self._away:
                raise StoreAway(self._away)
            return None
        entry, following = write.result()
        while self._facts.oldest < following:
            if now() >= give_up_at:
                return None
            await asyncio.sleep(POLL_S)
        return entry

    def _is_final(self, snapshot: int) -> bool:
        return self._final is not None and self._final[0].snapshot == snapshot

    async def _write(self, save: Save, snapshot: StateSnapshot) -> tuple[dict[str, Any], int]:
        following, call = self._facts.following, asyncio.get_running_loop().run_in_executor
        who = {"learner": self._learner, "incarnation": self._incarnation}
        name = f"{self._learner}.{self._incarnation}"
        async with self._turn:
            numbers, arrays = await call(self._thread, snapshot.pack)
            facts = self._facts.recorded if save.final else None
            header = {**who, "facts": facts, "kept": asdict(save.state), **numbers}
            part = self._store, save.snapshot, name, header, arrays
            while True:
                try:
                    described = await call(self._thread, checkpoint_parts.write, *part)
                    self._away = ""
                    return described | who | {"exact": facts is not None}, following
                except OSError as error:
                    if not save.final or isinstance(error, FileExistsError):
                        raise
                    self._away = f"{type(error).__name__}: {error}"  # nothing follows: it waits for the store
                await asyncio.sleep(AGAIN_S)
