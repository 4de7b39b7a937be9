"""What the managers need of the world, beside Peer, Objects and the running asyncio loop (outer/ports.py).

Ray's set is orchestrator/runtime, virtual time's is orchestrator/simulation. A set of ports takes no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from learners.checkpoint_writer import SavedPart
from orchestrator.lifecycle.controller import RankState
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Objects
from outer.journal.rebuild import RecoverySources
from outer.ports import NoAnswer, Peer
from outer.spec import SyncerSpec

CALL_S = 10.0  # for a process to answer a call that needs no work
ORCHESTRATOR = "orchestrator"  # by whose name its numbers are granted
NODE_ENDS = "its place is on a node that is about to end"


class NoSlice(Exception):
    """A TPU slice that was reserved is not there."""


class Places(Protocol):
    """Where learners may run. What is asked for one, or reserved, stays so until it is released."""

    @property
    def names(self) -> list[str]:
        """Learners for whom a place is asked for, or reserved."""

    def claim(self, names: Iterable[str]) -> None:
        """Ask for places."""

    async def wait(self, name: str) -> None:
        """Until the learner has its place. Raises NoAnswer, NoSlice where a slice is gone."""

    async def pending(self, names: Iterable[str]) -> dict[str, str] | None:
        """Which of these learners wait for a place, and why; NODE_ENDS: it has one. None: nobody says."""

    def adopt(self, name: str) -> None:
        """Take over the place of a learner that an earlier orchestrator has left."""

    def release(self, name: str) -> None:
        """Give the learner's place back, or what is asked for it."""


class Processes(Protocol):
    """Starts the processes of a run, finds those that an earlier orchestrator has left, and ends them.

    A process that was started answers once it is up.
    """

    def start_syncer(self, spec: SyncerSpec, sources: RecoverySources | None) -> Peer: ...
    def left_syncer(self, epoch: int) -> Peer | None: ...

    def start_learner(
        self, name: str, incarnation: int, saved: SavedPart | None, syncer: Peer, strange: bool
    ) -> Sequence[Peer]:
        """All ranks of an incarnation, in its place. `strange`: with another recipe, for chaos."""

    def left_rank(self, name: str, incarnation: int, rank: int) -> Peer | None: ...

    def start_standby(self, name: str, node: str | None, shown: Mapping[str, str]) -> Peer:
        """A process without incarnation in the learner's place. `shown`: the variables that show it its devices."""

    async def left_standbys(self) -> Sequence[Peer]:
        """Standbys of an earlier orchestrator, whether or not they were promoted."""

    def core(self, name: str) -> int | None:
        """The core to pin a learner to, if any."""

    def end(self, process: Peer) -> None:
        """End a process; no harm is done to one that is dead."""

    async def kill(self, ranks: Iterable[RankState]) -> str:
        """Have their nodes end processes that do not answer. Returns the name of a node's error that did not do it."""

    async def unseen(self, node: str) -> str:
        """Why a node cannot be seen; empty when it can."""

    def notices(self) -> Mapping[str, float | None]:
        """Nodes that have announced their end, with the seconds that they have left, if they said."""


@dataclass(frozen=True)
class Ports:
    """The world of one orchestrator."""

    records: RunStore  # in virtual time a subclass, in memory
    processes: Processes
    places: Places
    objects: Objects  # of the journal and the checkpoints
    recorded: Callable[[], Iterable[Any]]  # all records of the syncer that the run's log has
    emit: Callable[[Any], None]  # write a fact to the log
    replaced: Callable[[str], None]  # end this process: a later orchestrator has taken the run over
    local: bool  # the cluster was started for this run, and has one node

    def require(self, number: int) -> None:
        """End this process if a later orchestrator has a number: it knows nothing of what starts. Raises OSError."""
        if (newest := self.records.granted("incarnation", ORCHESTRATOR)) > number:
            self.replaced(f"orchestrator {number} was followed by orchestrator {newest}")

    def grant(self, number: int, kind: str, who: str) -> int:
        """See RunStore.grant. A later orchestrator would look for the process with this number. Raises as `require`."""
        self.require(number)
        return self.records.grant(kind, who)


def gist(error: Exception) -> str:
    """An error of a call, in one line: the last line of an exception, or that the process ended."""
    text = str((isinstance(error, NoAnswer) and error.__cause__) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "worker process has died" in text:
        return "its process ended"
    return lines[-1][:200] if lines else type(error).__name__
