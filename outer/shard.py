"""A shard of the syncer as a Ray actor: it holds some of the fragments, reads, merges and stores them.

It belongs to one epoch of control, which creates it and takes every decision, and ends with it.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from numpy.typing import NDArray

from outer import heap
from outer.bulk import Answer, Bulk, Token
from outer.first_values import Layout, Make
from outer.journal import checkpoint_parts, values
from outer.journal.framing import Damaged
from outer.journal.groups import Value
from outer.journal.identity import identity
from outer.journal.values import Stored
from outer.journal.writer import FOLDER as JOURNAL
from outer.kill_points import MERGING, KillPoints
from outer.numeric import codec as codecs
from outer.protocol.events_effects import Merge
from outer.protocol.manifest import code_digest
from outer.protocol.messages import ReadRequest
from outer.spec import SyncerSpec

if TYPE_CHECKING:
    from outer.numeric.parameters import Proposal

OFTEN = ray.method(enable_task_events=False)  # Ray's control store would keep a row of every call
LATE_S = 120.0  # an answer that comes after its deadline is still heard, to be refused, for this long
INSTALLED_S = 10.0  # for control to say that a version is in force
MARKS_MAX = 2  # cuts that wait to be written
BACKOFF_S, BACKOFF_S_MAX = 0.05, 2.0  # between two attempts to write; doubles


@dataclass(frozen=True)
class Proposed:
    """A shard's outer step of one fragment: as outer.numeric.parameters.Proposal, but the value stays in the shard."""

    fragment: int
    norm: float
    digest: str
    finite: bool
    stored: Stored | None  # the value, as the commit's record names it; None where none is written
    arrays: tuple[()] = ()


class _Pending(NamedTuple):
    """A merged value that is not in force yet."""

    version: int
    proposal: Proposal
    stored: Stored | None


Marked = dict[tuple[int, int], list[NDArray[Any]]]  # by fragment and version


class ShardActor:
    """The shard of this number of an epoch."""

    def __init__(self, spec: SyncerSpec, make: Make, shard: int) -> None:
        if (code := code_digest()) != spec.code:
            raise RuntimeError(f"this node runs other sources ({code}) than the run was started with ({spec.code})")
        heap.keep_small()
        os.environ["JAX_PLATFORMS"] = "cpu"  # Bulk.begin starts JAX
        self._spec, self._shard = spec, shard
        self._bulk = Bulk(spec, make, shard=shard)
        self._values = spec.store
        self._loaded: dict[int, Value] = {}  # until they are in force
        self._stored: dict[int, list[Stored]] = {}  # by fragment, oldest first: the newest value and the one before
        self._pending: dict[int, _Pending] = {}
        self._marks: dict[int, Marked] = {}  # by snapshot
        self._newest_mark = 0
        self._installed = asyncio.Condition()
        self._sent: Counter[str] = Counter()  # bytes of versions, by learner
        self._trouble = ""
        self._points = KillPoints()

    def __repr__(self) -> str:
        return f"shard {self._shard}"  # how the dashboard and log lines call this actor

    # -------------------------------------------------------------- how an epoch begins

    async def load(self, stored: Mapping[int, Value], run: str) -> dict[int, tuple[str, str]]:
        """As Bulk.load. Raises RuntimeError where this process does not see the journal of this identity."""
        if identity(self._values, JOURNAL) != run:
            raise RuntimeError(
                f"shard {self._shard} does not see the run's store {self._values!r} from its node: give durability."
                "store a place that all nodes reach, or run.control labels of nodes that share the run's folder"
            )
        found = {}
        for fragment, value in stored.items():
            assert value.stored is not None
            try:
                arrays = values.read(self._values, value.stored)
            except Damaged as error:
                found[fragment] = "", str(error)
                continue
            self._loaded[fragment] = value._replace(arrays=arrays)
            found[fragment] = codecs.digest(arrays[0]), ""
        return found

    async def begin(self, versions: Sequence[int], lacking: bool) -> Layout:
        """As Bulk.begin."""
        return self._bulk.begin(versions, lacking)

    async def ready(self) -> None:
        """As Bulk.ready."""
        await self._bulk.ready(lambda what: print(f"shard {self._shard}: {what}", flush=True))

    async def restore(self, restored: Mapping[int, Value], momentum_lost: Collection[int]) -> None:
        """As Bulk.restore; of what `load` has read the arrays are here."""
        whole = {f: value if value.arrays else self._loaded[f] for f, value in restored.items()}
        self._bulk.restore(whole, momentum_lost)
        self._stored = {f: [value.stored] for f, value in whole.items() if value.stored is not None}
        self._loaded = {}
        gc.collect()
        gc.freeze()  # what is imported stays: a full collection need not walk it

    async def kept(self, fragments: Collection[int]) -> dict[int, Value]:
        """As Bulk.kept. Raises OSError where a value cannot be stored."""
        found = {}
        for fragment, value in self._bulk.kept(fragments).items():
            stored = self._stored.get(fragment, [None])[-1]
            if stored is None and self._spec.persistent:
                stored = values.write(self._values, self._spec.epoch, fragment, value.version, value.arrays)
                self._stored[fragment] = [stored]
            found[fragment] = Value(value.version, [], stored)
        return found

    async def save_first_values(self) -> None:
        """As Bulk.save_first_values."""
        await self._bulk.save_first_values()

    # -------------------------------------------------------------- reads and merges

    @OFTEN
    async def pulse(self) -> dict[str, Any]:
        """That it lives, and what status pages say of it."""
        node = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "node": node, "trouble": self._trouble, "sent": dict(self._sent)}

    @OFTEN
    async def read(self, learner: str, handle: Any, request: ReadRequest) -> Answer | str:
        """As Bulk.read; control has given it up by its deadline here."""
        try:
            return await asyncio.wait_for(self._bulk.read(learner, handle, request), LATE_S + 2 * request.deadline_s)
        except TimeoutError:
            return "timeout"

    @OFTEN
    async def forget(self, tokens: Collection[Token]) -> None:
        """These reads are closed, so nothing can merge their payloads."""
        self._bulk.forget(tokens)

    @OFTEN
    async def merge(self, merge: Merge, base: int) -> Proposed:
        """As Bulk.merge, from version `base`. The value is stored when it returns, unless the run keeps none."""
        await self._in_force({merge.fragment: base})
        merging, fragment, version = self._bulk.merge(merge), merge.fragment, merge.syncer_step
        self._bulk.forget(merge.payloads)
        self._points.reach(MERGING)
        proposal = await merging
        stored = await self._store(fragment, version, proposal) if proposal.finite and self._spec.persistent else None
        self._pending[fragment] = _Pending(version, proposal, stored)
        return Proposed(fragment, proposal.norm, proposal.digest, proposal.finite, stored)

    async def _store(self, fragment: int, version: int, proposal: Proposal) -> Stored:
        """Write a value; retries for ever, and nothing commits meanwhile."""
        backoff_s = BACKOFF_S
        while True:
            try:
                write = partial(values.write, self._values, self._spec.epoch, fragment, version, proposal.arrays)
                stored = await asyncio.get_running_loop().run_in_executor(None, write)
                self._trouble = ""
                return stored
            except (OSError, Damaged) as error:
                self._trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    @OFTEN
    async def install(self, fragment: int, version: int) -> None:
        """The merged value is committed: put it in force, and remove the one before the one before."""
        pending = self._pending.pop(fragment)
        assert pending.version == version, f"fragment {fragment}: {pending.version} is merged, not {version}"
        self._bulk.install(pending.proposal, version)
        self._bulk.forget_before(version - self._spec.sync.overlap_steps)  # of what control has not heard of in time
        if pending.stored is not None:
            held = [*self._stored.get(fragment, ()), pending.stored]
            self._stored[fragment] = held[-2:]
            for stored in held[:-2]:
                asyncio.get_running_loop().run_in_executor(None, values.remove, self._values, stored)
        async with self._installed:
            self._installed.notify_all()

    @OFTEN
    async def fetch(self, fragment: int, version: int, held: int, learner: str) -> tuple[int, str, Any, int]:
        """As Bulk.fetch, once the version is in force, and the newest snapshot that had begun by then."""
        await self._in_force({fragment: version})
        found = self._bulk.fetch(fragment, version, held)
        assert found is not None
        self._sent[learner] += found.bytes
        return found.version, found.digest, found.value, self._newest_mark

    async def _in_force(self, versions: Mapping[int, int]) -> None:
        """Wait for control's word that these versions, or newer ones, of what is here are committed.

        Raises TimeoutError.
        """
        here = {fragment: version for fragment, version in versions.items() if self._bulk.holds(fragment)}
        newest = self._bulk.parameters.versions
        async with self._installed:
            told = self._installed.wait_for(lambda: all(newest[f] >= version for f, version in here.items()))
            await asyncio.wait_for(told, INSTALLED_S)

    async def current(self, versions: Mapping[int, int]) -> list[tuple[int, NDArray[Any]]]:
        """(fragment, theta) of all that is here: of these versions or newer ones."""
        await self._in_force(versions)
        thetas = enumerate(self._bulk.parameters.thetas)
        return [(fragment, theta) for fragment, theta in thetas if self._bulk.holds(fragment)]

    async def arm(self, point: str, times: int) -> None:
        """For chaos: kill this process when it passes this point for the nth time."""
        self._points.arm(point, times)

    # -------------------------------------------------------------- checkpoints

    @OFTEN
    async def mark(self, snapshot: int) -> None:
        """Keep what may belong to the snapshot: what is in force, and what is merged and may be recorded by then."""
        self._newest_mark = max(self._newest_mark, snapshot)
        parameters = self._bulk.parameters
        held = [fragment.index for fragment in parameters.fragments if self._bulk.holds(fragment.index)]
        marked: Marked = {(f, parameters.versions[f]): parameters.arrays(f) for f in held}
        marked |= {(f, each.version): each.proposal.arrays for f, each in self._pending.items()}
        self._marks[snapshot] = marked
        while len(self._marks) > MARKS_MAX:
            self._marks.pop(next(iter(self._marks)))

    async def save(self, snapshot: int, versions: Sequence[int]) -> dict[str, Any]:
        """Write this shard's part of the snapshot; returns its description. Raises OSError."""
        marked = self._marks.pop(snapshot, None)
        if marked is None:
            raise OSError(f"shard {self._shard} does not keep snapshot {snapshot} any more")
        wanted = [(f, version) for f, version in enumerate(versions) if self._bulk.holds(f)]
        if lacking := [place for place in wanted if place not in marked]:
            raise OSError(f"shard {self._shard} does not hold, by fragment and version, {lacking}")
        described = [[f, version, len(marked[f, version])] for f, version in wanted if version]
        initial = [f for f, version in wanted if not version]
        arrays = [array for f, version in wanted if version for array in marked[f, version]]
        arrays += [marked[f, 0][0] for f in initial]
        header = {"epoch": self._spec.epoch, "values": described, "initial": initial}
        part = f"shard-{self._shard}"
        write = partial(checkpoint_parts.write, self._spec.store, snapshot, part, header, arrays)
        return await asyncio.get_running_loop().run_in_executor(None, write)
