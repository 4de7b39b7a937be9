"""The bytes of fragments and of open reads, and what computes on them. Takes no protocol decision: outer/bulk.py asks.

With `run.shards` = 1 the syncer's process has the one shard, and its values are in the journal's groups. With more,
each is a process that has some of the fragments, writes their values as objects of their own and its part of
checkpoints; it belongs to one epoch of the syncer and ends with it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from outer import first_values
from outer.first_values import Make, ModelLayout
from outer.journal import checkpoint_parts, values
from outer.journal.chain import identity
from outer.journal.framing import Damaged
from outer.journal.groups import Value
from outer.journal.journal_writer import FOLDER as JOURNAL
from outer.journal.values import Stored
from outer.kill_points import MERGING, KillPoints
from outer.numeric import codec as codecs
from outer.ports import NoAnswer, Peer, now
from outer.protocol.events_effects import Merge
from outer.protocol.messages import Contribution, ReadRequest, malformed
from outer.protocol.recorder import Numbered
from outer.spec import SyncerSpec

if TYPE_CHECKING:
    from outer.numeric.chain import Delta
    from outer.numeric.parameters import GlobalParameters, Proposal
    from outer.protocol.fragments import Fragment

UNTOLD_S, READY_S = 2.0, 60.0  # of compiling: without a word, and until the syncer serves all the same
EXAMINED_AT_ONCE = 2**17  # elements: checking them takes less than handing them to a thread and back
MERGE_THREADS = 4  # at most; the bits do not depend on it
LATE_S = 120.0  # an answer that comes after its deadline is still heard, to be refused, for this long
SHORTEST_S = 0.0005  # of a transfer: loops' clocks have milliseconds, and 0 stands for one that was not measured
INSTALLED_S = 10.0  # for control to say that a version is in force
MARKS_MAX = 2  # cuts that wait to be written
BACKOFF_S, BACKOFF_S_MAX = 0.05, 2.0  # between two attempts to write; doubles

ReadId = tuple[int, int, int]  # syncer step, attempt, the learner's incarnation
Marked = dict[tuple[int, int], list[NDArray[Any]]]  # by fragment and version


class Token(NamedTuple):
    """Stands for a payload that a shard keeps."""

    read: ReadId
    learner: str


class Answer(NamedTuple):
    """A learner's answer to a read: `contribution.payload` is a Token, or None where `defect` says why not."""

    contribution: Contribution
    facts: Sequence[Numbered]
    oldest: int  # the oldest fact's number that the learner still holds


class Fetched(NamedTuple):
    """A fragment's newest version."""

    version: int
    digest: str
    value: NDArray[Any] | list[Delta]  # float32[n], or the deltas that lead to it from the version that is held

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in self.value) if isinstance(self.value, list) else self.value.nbytes


@dataclass(frozen=True)
class Proposed:
    """A computed outer step of one fragment. The shard keeps the value until it is put in force."""

    fragment: int
    norm: float  # L2 norm of the merged outer gradient
    digest: str  # of theta
    finite: bool
    outlier: int  # as of a Proposal
    arrays: Sequence[NDArray[Any]] = ()  # the value for the commit's group, if that has it
    stored: Stored | None = None  # where the value is, if it is an object of its own
    stored_s: float = 0.0  # that it took to put it there


class _Pending(NamedTuple):
    """A merged value that is not in force yet."""

    version: int
    proposal: Proposal
    stored: Stored | None


class FragmentShard:
    """The fragments whose index is `shard` modulo `spec.shards`. Called in the event loop's thread."""

    def __init__(self, spec: SyncerSpec, make: Make, shard: int = 0) -> None:
        """`make` makes fragments, and the initial parameters of those that are here, from the task."""
        self._spec, self._make, self._shard = spec, make, shard
        self._alone = spec.shards == 1
        self._payloads: dict[Token, NDArray[Any]] = {}
        self._digests: dict[int, str] = {}  # of the newest versions, once they are wanted
        self._loaded: dict[int, Value] = {}  # until they are in force
        self._stored: dict[int, list[Stored]] = {}  # by fragment, oldest first: the newest value and the one before
        self._pending: dict[int, _Pending] = {}
        self._installed = asyncio.Event()  # set, and replaced, when a version has come into force
        self._marks: dict[int, Marked] = {}  # by snapshot
        self._newest_mark = 0
        self._saved: tuple[int, dict[str, Any]] = 0, {}  # the newest snapshot that is written, and its description
        self._sent: Counter[str] = Counter()  # bytes of versions that learners have fetched here, by learner
        self._trouble = ""  # why the store does not take a value
        self._points = KillPoints()
        self._merger = ThreadPoolExecutor(1, "merge")
        self._examiner = ThreadPoolExecutor(2, "examine")

    def holds(self, fragment: int) -> bool:
        """Whether the fragment is here."""
        return fragment % self._spec.shards == self._shard

    # -------------------------------------------------------------- how an epoch begins

    def load(self, stored: Mapping[int, Value], run: str) -> dict[int, tuple[str, str]]:
        """Read newest values that are objects of their own: by fragment, theta's digest, or "" and what is damaged.

        Raises RuntimeError where this process does not see the journal of this identity.
        """
        if identity(self._spec.store, JOURNAL) != run:
            raise RuntimeError(
                f"shard {self._shard} does not see the run's store {self._spec.store!r} from its node: give durability."
                "store a place that all nodes reach, or run.control labels of nodes that share the run's folder"
            )
        found = {}
        for fragment, value in stored.items():
            assert value.stored is not None
            try:
                arrays = values.read(self._spec.store, value.stored)
            except Damaged as error:
                found[fragment] = "", str(error)
                continue
            self._loaded[fragment] = value._replace(arrays=arrays)
            found[fragment] = codecs.digest(arrays[0]), ""
        return found

    def begin(self, versions: Sequence[int], lacking: bool) -> ModelLayout:
        """Make the parameters, with initial values; `versions`: of which fragments there will be others.

        `lacking`: they may not, so that every initial value is wanted.
        """
        spec = self._spec
        uncommitted = [fragment for fragment, version in enumerate(versions) if not version and self.holds(fragment)]
        saved = first_values.load(spec.store, spec.begun, uncommitted) if spec.begun and not lacking else None
        fragments, thetas, patterns, task = saved or self._make(self.holds)
        here = [theta if self.holds(fragment) else None for fragment, theta in enumerate(thetas)]
        self.parameters = self._parameters(fragments, here, patterns)
        self._began = now()
        self._warming = asyncio.get_running_loop().run_in_executor(self._merger, self.parameters.warm_up)
        return ModelLayout(fragments, patterns, task)

    def _parameters(
        self, fragments: Sequence[Fragment], thetas: Sequence[NDArray[Any] | None], patterns: Mapping[str, str]
    ) -> GlobalParameters:
        from outer.numeric.chain import VersionChain
        from outer.numeric.formats import uplinks
        from outer.numeric.parameters import GlobalParameters  # JAX starts here
        from outer.numeric.rules import rules

        spec = self._spec
        merge_rules = rules([t for each in fragments for t in each.tensors], spec.outer.merge, patterns)
        return GlobalParameters(
            fragments,
            thetas,
            spec.outer,
            spec.sync.codec,
            merge_rules,
            min(MERGE_THREADS, len(os.sched_getaffinity(0))),
            VersionChain.of(spec.sync.downlink, fragments, spec.shared["seed"]),
            uplinks(spec.sync, fragments).codecs[1:],
        )

    async def ready(self, tell: Callable[[str], None] | None = None) -> None:
        """Return once merges need not wait for a compiler, or after READY_S: then the first merge waits for it.

        `tell` hears of what takes long; else it is in this process's own log. Raises RuntimeError, with the reason and
        the fix, if compiling fails.
        """
        tell = tell or self._tell
        warming, run = self._warming, asyncio.get_running_loop().run_in_executor
        warming.add_done_callback(lambda _: run(self._examiner, self.parameters.warm_up_rest))
        soon, _ = await asyncio.wait({warming}, timeout=UNTOLD_S)
        if not soon:
            tell(f"the merge of codec {self._spec.sync.codec} is being compiled for this machine")
            done, _ = await asyncio.wait({warming}, timeout=READY_S)
            if not done:
                tell(f"it still is after {now() - self._began:.0f} s; commits wait for it")
                return
        try:
            await warming
        except Exception as error:
            message = f"the merge of codec {self._spec.sync.codec} cannot be compiled: {type(error).__name__}: {error}"
            fix = "see that the installed numba and llvmlite fit each other and this machine"
            raise RuntimeError(f"{message}; {fix}") from error
        if not soon:
            tell(f"the merge is compiled after {now() - self._began:.1f} s")

    def _tell(self, what: str) -> None:
        print(f"shard {self._shard}: {what}", flush=True)  # in the actor's own log

    def restore(self, restored: Mapping[int, Value], momentum_lost: Collection[int] = ()) -> None:
        """Put these values in force; what `load` has read needs no arrays. `momentum_lost`: of these theta alone.

        Raises ValueError for one that does not fit the model and the outer optimizer.
        """
        for fragment, given in restored.items():
            value = given if given.arrays else self._loaded[fragment]
            if fragment in momentum_lost:
                self.parameters.restore_theta(fragment, value.version, value.arrays[0])
            else:
                self.parameters.restore(fragment, value.version, value.arrays)
            if value.stored is not None:
                self._stored[fragment] = [value.stored]
        self._loaded = {}

    def kept(self, fragments: Collection[int]) -> dict[int, Value]:
        """The newest values, as the journal names or keeps them. Raises OSError where a value cannot be stored."""
        found = {}
        for fragment in fragments:
            version, arrays = self.parameters.versions[fragment], self.parameters.arrays(fragment)
            stored = self._stored.get(fragment, [None])[-1]
            if stored is None and self._spec.persistent and not self._alone:
                stored = values.write(self._spec.store, self._spec.epoch, fragment, version, arrays)
                self._stored[fragment] = [stored]
            found[fragment] = Value(version, arrays if self._alone else [], stored)
        return found

    def initial(self) -> dict[int, NDArray[Any]]:
        """The values of fragments without a commit."""
        versions, thetas = self.parameters.versions, self.parameters.thetas
        return {f: theta for f, theta in enumerate(thetas) if not versions[f] and self.holds(f)}

    async def save_first_values(self) -> None:
        """Save for later epochs the initial values that have no commit. Raises OSError."""
        save = partial(first_values.save, self._spec.store, self._spec.epoch, self.initial())
        await asyncio.get_running_loop().run_in_executor(None, save)

    # -------------------------------------------------------------- reads

    async def read(self, learner: str, peer: Peer, request: ReadRequest) -> Answer | str:
        """Ask a learner for a fragment and check its answer; a string says why there is none."""
        asked_at, given_up_s = now(), LATE_S + 2 * request.deadline_s  # control has given it up before
        try:
            reply: Any = await asyncio.wait_for(peer.ask("read", request), given_up_s)
        except NoAnswer as error:
            return str(error)
        except TimeoutError:
            return "timeout"
        if isinstance(reply, str):
            return reply
        took_s = now() - asked_at
        if len(reply) != 3 or type(reply[0]) is not Contribution or malformed(reply[0]):
            return "malformed"
        contribution, facts, oldest = reply
        took_s = max(SHORTEST_S, took_s - contribution.held_s)
        contribution = await self._examine(learner, contribution, request)
        payload = contribution.payload
        if not contribution.defect:
            token = Token((request.syncer_step, request.attempt, request.incarnation), learner)
            self._payloads[token], payload = payload, token
        return Answer(replace(contribution, took_s=took_s, payload=payload), facts, oldest)

    async def _examine(self, learner: str, contribution: Contribution, request: ReadRequest) -> Contribution:
        """The contribution, with its defect if it has one; large ones are checked in a thread."""
        fragments = self.parameters.fragments
        if contribution.learner != learner or not 0 <= contribution.fragment < len(fragments):
            return replace(contribution, learner=learner, payload=None, defect="wrong_sender")
        if contribution.codec != request.codec:
            return replace(contribution, payload=None, defect="wrong_shape")
        size, codec = fragments[contribution.fragment].size, request.codec or self._spec.sync.codec
        if size <= EXAMINED_AT_ONCE:
            return self._checked(contribution, codec, size)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._examiner, self._checked, contribution, codec, size)

    def _checked(self, contribution: Contribution, codec: str, size: int) -> Contribution:
        return codecs.examine(contribution, codec, size)

    def forget(self, tokens: Collection[Token]) -> None:
        """Nothing merges these payloads any more."""
        for token in tokens:
            self._payloads.pop(token, None)

    # -------------------------------------------------------------- merges, versions

    async def merge(self, merge: Merge, base: int) -> Proposed:
        """Compute a fragment's next value from version `base`, as GlobalParameters.propose.

        One that is to be an object of its own is stored when this returns.
        """
        fragment, version = merge.fragment, merge.syncer_step
        await self._in_force({fragment: base})
        payloads = [self._payloads.pop(token) for token in merge.payloads]
        arguments = fragment, payloads, merge.weights, version, merge.codecs
        merging = asyncio.get_running_loop().run_in_executor(self._merger, self.parameters.propose, *arguments)
        self._points.reach(MERGING)
        proposal = await merging
        apart = proposal.finite and self._spec.persistent and not self._alone
        began = now()
        stored = await self._store(fragment, version, proposal) if apart else None
        self._pending[fragment] = _Pending(version, proposal, stored)
        arrays = proposal.arrays if self._alone else ()
        stored_s = now() - began
        return Proposed(
            fragment, proposal.norm, proposal.digest, proposal.finite, proposal.outlier, arrays, stored, stored_s
        )

    async def _store(self, fragment: int, version: int, proposal: Proposal) -> Stored:
        """Write a value; retries for ever, and nothing commits meanwhile."""
        backoff_s = BACKOFF_S
        while True:
            try:
                write = partial(values.write, self._spec.store, self._spec.epoch, fragment, version, proposal.arrays)
                stored = await asyncio.get_running_loop().run_in_executor(None, write)
                self._trouble = ""
                return stored
            except (OSError, Damaged) as error:
                self._trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    def install(self, fragment: int, version: int) -> None:
        """The merged value is committed: put it in force, and remove the stored one before the one before."""
        pending = self._pending.pop(fragment)
        assert pending.version == version, f"fragment {fragment}: {pending.version} is merged, not {version}"
        self.parameters.install(pending.proposal, version)
        self._digests[fragment] = pending.proposal.digest
        self.forget([token for token in self._payloads if token.read[0] <= version])  # control did not hear of them
        if pending.stored is not None:
            held = [*self._stored.get(fragment, ()), pending.stored]
            self._stored[fragment] = held[-2:]
            for stored in held[:-2]:
                asyncio.get_running_loop().run_in_executor(None, values.remove, self._spec.store, stored)
        self._installed.set()
        self._installed = asyncio.Event()

    def newest(self, fragment: int, held: int) -> Fetched:
        """The newest version of a fragment. `held`: which one is at the learner that asks."""
        if fragment not in self._digests:
            self._digests[fragment] = codecs.digest(self.parameters.thetas[fragment])
        version = self.parameters.versions[fragment]
        return Fetched(version, self._digests[fragment], self.parameters.since(fragment, held))

    async def fetch(self, fragment: int, version: int, held: int, learner: str) -> tuple[int, str, Any, int]:
        """Wait until this version is in force; returns `newest`, and the newest snapshot that had begun by then."""
        await self._in_force({fragment: version})
        found = self.newest(fragment, held)
        self._sent[learner] += found.bytes
        return (*found, self._newest_mark)

    async def _in_force(self, versions: Mapping[int, int]) -> None:
        """Wait for control's word that these versions, or newer ones, of what is here are committed.

        Raises TimeoutError.
        """
        here = {fragment: version for fragment, version in versions.items() if self.holds(fragment)}
        newest, give_up_at = self.parameters.versions, now() + INSTALLED_S
        while any(newest[fragment] < version for fragment, version in here.items()):
            await asyncio.wait_for(self._installed.wait(), give_up_at - now())

    async def pulse(self) -> dict[str, Any]:
        """What the store refuses, and bytes of versions sent; control asks often."""
        return {"trouble": self._trouble, "sent": dict(self._sent)}

    async def current(self, versions: Mapping[int, int]) -> list[tuple[int, NDArray[Any]]]:
        """(fragment, theta) of all that is here: of these versions or newer ones."""
        await self._in_force(versions)
        return [(fragment, theta) for fragment, theta in enumerate(self.parameters.thetas) if self.holds(fragment)]

    def arm(self, point: str, times: int) -> None:
        """For chaos: kill this process when it passes this point for the nth time."""
        self._points.arm(point, times)

    # -------------------------------------------------------------- checkpoints, of one of several

    def mark(self, snapshot: int) -> None:
        """Keep what may belong to the snapshot: what is in force, and what is merged and may be recorded by then."""
        self._newest_mark = max(self._newest_mark, snapshot)
        held = [fragment.index for fragment in self.parameters.fragments if self.holds(fragment.index)]
        marked: Marked = {(f, self.parameters.versions[f]): self.parameters.arrays(f) for f in held}
        marked |= {(f, each.version): each.proposal.arrays for f, each in self._pending.items()}
        self._marks[snapshot] = marked
        while len(self._marks) > MARKS_MAX:
            self._marks.pop(next(iter(self._marks)))

    async def save(self, snapshot: int, versions: Sequence[int]) -> dict[str, Any]:
        """Write this shard's part of the snapshot; returns its description, and again if it is asked again.

        Raises OSError; LookupError where it cannot be written any more.
        """
        if self._saved[0] == snapshot:  # another shard's store was away
            return self._saved[1]
        marked = self._marks.get(snapshot)
        if marked is None:
            raise LookupError(f"shard {self._shard} does not keep snapshot {snapshot} any more")
        wanted = [(f, version) for f, version in enumerate(versions) if self.holds(f)]
        if lacking := [place for place in wanted if place not in marked]:
            raise LookupError(f"shard {self._shard} does not hold, by fragment and version, {lacking}")
        described = [[f, version, len(marked[f, version])] for f, version in wanted if version]
        initial = [f for f, version in wanted if not version]
        arrays = [array for f, version in wanted if version for array in marked[f, version]]
        arrays += [marked[f, 0][0] for f in initial]
        header = {"epoch": self._spec.epoch, "values": described, "initial": initial}
        part = f"shard-{self._shard}"
        write = partial(checkpoint_parts.write, self._spec.store, snapshot, part, header, arrays)
        entry = await asyncio.get_running_loop().run_in_executor(None, write)
        self._marks = {mark: kept for mark, kept in self._marks.items() if mark > snapshot}
        self._saved = snapshot, entry
        return entry
