"""Everything of the syncer that moves or computes on fragments' bytes, behind one port.

Control, the syncer actor, hands in read requests and gets contributions whose payload is a token; the bytes stay here
until control merges them or closes the read. Nothing here takes a protocol decision. With several shards each holds
some of the fragments in a process of its own, and control has outer/shards.py in place of this.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from numpy.typing import NDArray

from outer import first_values
from outer.first_values import Layout, Make
from outer.journal.groups import Value
from outer.numeric import codec as codecs
from outer.protocol.events_effects import Merge
from outer.protocol.messages import Contribution, ReadRequest
from outer.protocol.recorder import Numbered
from outer.spec import SyncerSpec

if TYPE_CHECKING:
    from outer.numeric.chain import Delta
    from outer.numeric.parameters import Proposal

UNTOLD_S, READY_S = 2.0, 60.0  # of compiling: without a word, and until the syncer serves all the same
EXAMINED_AT_ONCE = 2**17  # elements: checking them takes less than handing them to a thread and back
MERGE_THREADS = 4  # at most; the bits do not depend on it

ReadId = tuple[int, int]  # syncer step and attempt


class Token(NamedTuple):
    """Stands for a payload that is kept here."""

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


class Bulk:
    """The parameters of one epoch, and the payloads of its open reads. Call it in the event loop's thread."""

    def __init__(
        self,
        spec: SyncerSpec,
        make: Make,
        received: Callable[[], None] = lambda: None,
        shard: int = 0,
    ) -> None:
        """`make` makes fragments, and the initial parameters of those that are here, from the task. `shard`: of
        `spec.shards`, whose fragments are here. `received` is called whenever a learner's answer has come.
        """
        self._spec, self._make, self._received, self._shard = spec, make, received, shard
        self._payloads: dict[Token, NDArray[Any]] = {}
        self.sent: Mapping[str, int] = {}  # bytes of versions that did not pass through control, by learner
        self._digests: dict[int, str] = {}  # of the newest versions, once they are wanted
        self._merger = ThreadPoolExecutor(1, "merge")
        self._examiner = ThreadPoolExecutor(2, "examine")

    # -------------------------------------------------------------- how an epoch begins

    def holds(self, fragment: int) -> bool:
        """Whether this shard has the fragment."""
        return fragment % self._spec.shards == self._shard

    def load(self, values: Mapping[int, Value], run: str) -> dict[int, tuple[str, str]]:
        """Read newest values that are objects of their own: by fragment, theta's digest, or "" and what is damaged.

        `run`: the journal's identity. Without shards there are none: the journal has read them.
        """
        return {}

    def begin(self, versions: Sequence[int], lacking: bool) -> Layout:
        """Make the parameters, with initial values; `versions`: of which fragments there will be others.

        `lacking`: they may not, so that every initial value is wanted.
        """
        from outer.numeric.chain import Chain
        from outer.numeric.parameters import GlobalParameters  # JAX starts here
        from outer.numeric.rules import rules
        from outer.numeric.uplinks import uplinks

        spec = self._spec
        uncommitted = [fragment for fragment, version in enumerate(versions) if not version and self.holds(fragment)]
        saved = first_values.load(spec.store, spec.begun, uncommitted) if spec.begun and not lacking else None
        fragments, thetas, patterns, task = saved or self._make(self.holds)
        merge_rules = rules([t for each in fragments for t in each.tensors], spec.outer.merge, patterns)
        self.parameters = GlobalParameters(
            fragments,
            [theta if self.holds(fragment) else None for fragment, theta in enumerate(thetas)],
            spec.outer,
            spec.sync.codec,
            merge_rules,
            min(MERGE_THREADS, len(os.sched_getaffinity(0))),
            Chain.of(spec.sync.downlink, fragments, spec.shared["seed"]),
            uplinks(spec.sync, fragments).codecs[1:],
        )
        self._warming, self._began = self._merger.submit(self.parameters.warm_up), time.monotonic()
        return Layout(fragments, patterns, task)

    async def ready(self, tell: Callable[[str], None]) -> None:
        """Return once merges need not wait for a compiler, or after READY_S: then the first merge waits for it.

        `tell` hears of what takes long.

        Raises RuntimeError, with what is wrong and the fix, if they cannot be compiled.
        """
        warming = asyncio.wrap_future(self._warming)
        warming.add_done_callback(lambda _: self._examiner.submit(self.parameters.warm_up_rest))
        soon, _ = await asyncio.wait({warming}, timeout=UNTOLD_S)
        if not soon:
            tell(f"the merge of codec {self._spec.sync.codec} is being compiled for this machine")
            done, _ = await asyncio.wait({warming}, timeout=READY_S)
            if not done:
                tell(f"it still is after {time.monotonic() - self._began:.0f} s; commits wait for it")
                return
        try:
            await warming
        except Exception as error:
            message = f"the merge of codec {self._spec.sync.codec} cannot be compiled: {type(error).__name__}: {error}"
            fix = "see that the installed numba and llvmlite fit each other and this machine"
            raise RuntimeError(f"{message}; {fix}") from error
        if not soon:
            tell(f"the merge is compiled after {time.monotonic() - self._began:.1f} s")

    def restore(self, values: Mapping[int, Value], momentum_lost: Collection[int] = ()) -> None:
        """Put these values in force. `momentum_lost`: fragments whose value is theta alone.

        Raises ValueError for one that does not fit the model and the outer optimizer.
        """
        for fragment, value in values.items():
            if fragment in momentum_lost:
                self.parameters.restore_theta(fragment, value.version, value.arrays[0])
            else:
                self.parameters.restore(fragment, value.version, value.arrays)

    def kept(self, fragments: Collection[int]) -> dict[int, Value]:
        """The newest values, as the journal keeps them."""
        return {f: Value(self.parameters.versions[f], self.parameters.arrays(f)) for f in fragments}

    async def save_first_values(self) -> None:
        """Save for later epochs the initial values that have no commit. Raises OSError."""
        versions, thetas = self.parameters.versions, self.parameters.thetas
        initial = {f: theta for f, theta in enumerate(thetas) if not versions[f] and self.holds(f)}
        save = partial(first_values.save, self._spec.store, self._spec.epoch, initial)
        await asyncio.get_running_loop().run_in_executor(None, save)

    # -------------------------------------------------------------- reads, merges, versions

    async def read(self, learner: str, handle: Any, request: ReadRequest) -> Answer | str:
        """Ask a learner for a fragment and check its answer; a string says why there is none. Has no deadline."""
        asked_at = time.monotonic()
        try:
            reply: tuple[Contribution, Sequence[Numbered], int] | str = await handle.read.remote(request)
        except ray.exceptions.RayError as error:
            return type(error).__name__
        if isinstance(reply, str):
            return reply
        took_s = time.monotonic() - asked_at
        self._received()
        contribution, facts, oldest = reply
        contribution = replace(contribution, took_s=max(0.0, took_s - contribution.held_s))
        sizes = [fragment.size for fragment in self.parameters.fragments]
        if contribution.learner != learner or not 0 <= contribution.fragment < len(sizes):
            contribution = replace(contribution, learner=learner, payload=None, defect="wrong_sender")
        else:
            size, codec = sizes[contribution.fragment], request.codec or self._spec.sync.codec
            if contribution.codec != request.codec:
                contribution = replace(contribution, payload=None, defect="wrong_shape")
            elif size <= EXAMINED_AT_ONCE:
                contribution = codecs.examine(contribution, codec, size)
            else:
                loop = asyncio.get_running_loop()
                contribution = await loop.run_in_executor(self._examiner, codecs.examine, contribution, codec, size)
        if not contribution.defect:
            token = Token((request.syncer_step, request.attempt), learner)
            self._payloads[token] = contribution.payload
            contribution = replace(contribution, payload=token)
        return Answer(contribution, facts, oldest)

    def keep(self, reads: Collection[ReadId]) -> None:
        """Forget the payloads of all other reads: they are closed, so nothing can merge them."""
        self.forget([token for token in self._payloads if token.read not in reads])

    def forget(self, tokens: Collection[Token]) -> None:
        """Forget these payloads."""
        for token in tokens:
            self._payloads.pop(token, None)

    def forget_before(self, step: int) -> None:
        """Forget the payloads of reads for syncer steps before this one."""
        self.forget([token for token in self._payloads if token.read[0] < step])

    def merge(self, merge: Merge) -> asyncio.Future[Proposal]:
        """Compute a fragment's next value, as GlobalParameters.propose. Takes the payloads at once."""
        payloads = [self._payloads[token] for token in merge.payloads]
        arguments = merge.fragment, payloads, merge.weights, merge.syncer_step, merge.codecs
        return asyncio.get_running_loop().run_in_executor(self._merger, self.parameters.propose, *arguments)

    def install(self, proposal: Proposal, version: int) -> None:
        """Put a merged value in force."""
        self.parameters.install(proposal, version)
        self._digests[proposal.fragment] = proposal.digest

    def fetch(self, fragment: int, version: int, held: int) -> Fetched | None:
        """The newest version of a fragment, if it is at least the version asked for. `held`: which one is there."""
        newest = self.parameters.versions[fragment]
        if newest < version:
            return None
        if fragment not in self._digests:
            self._digests[fragment] = codecs.digest(self.parameters.thetas[fragment])
        return Fetched(newest, self._digests[fragment], self.parameters.since(fragment, held))

    async def watch(self) -> str:
        """Until a shard has died; returns why the epoch is over. Without shards, for ever."""
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def view(self) -> list[dict[str, Any]]:
        """For status pages: of each shard."""
        return []

    def current(self) -> list[Any]:
        """float32[n] per fragment, or who has them, for `shards.gathered`."""
        return list(self.parameters.thetas)

    # -------------------------------------------------------------- checkpoints, as with shards

    def mark(self, snapshot: int) -> Mapping[int, NDArray[Any]]:
        """Everything merged so far may belong to the snapshot. Returns the values of fragments without a commit."""
        versions, thetas = self.parameters.versions, self.parameters.thetas
        return {fragment: thetas[fragment] for fragment, version in enumerate(versions) if version == 0}

    async def save(self, snapshot: int, versions: Sequence[int]) -> list[dict[str, Any]]:
        """Write the snapshot's values of these versions where they are not in control's part: without shards, none."""
        return []
