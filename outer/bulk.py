"""Everything of the syncer that moves or computes on fragments' bytes, behind one port.

Control, the syncer actor, hands in read requests and gets contributions whose payload is a token; the bytes stay here
until control merges them or closes the read. Nothing here takes a protocol decision.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from numpy.typing import NDArray

from outer.numeric import codec as codecs
from outer.protocol.messages import Contribution, ReadRequest
from outer.protocol.recorder import Numbered

if TYPE_CHECKING:
    from outer.numeric.chain import Delta
    from outer.numeric.parameters import GlobalParameters, Proposal

UNTOLD_S, READY_S = 2.0, 60.0  # of compiling: without a word, and until the syncer serves all the same
EXAMINED_AT_ONCE = 2**17  # elements: checking them takes less than handing them to a thread and back

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

    def __init__(self, parameters: GlobalParameters, codec: str, received: Callable[[], None]) -> None:
        """`received` is called whenever a learner's answer has come."""
        self.parameters = parameters
        self._codec, self._received = codec, received
        self._payloads: dict[Token, NDArray[Any]] = {}
        self._digests = [codecs.digest(theta) for theta in parameters.thetas]
        self._merger = ThreadPoolExecutor(1, "merge")
        self._examiner = ThreadPoolExecutor(2, "examine")
        self._warming = self._merger.submit(parameters.warm_up)
        self._began = time.monotonic()

    async def ready(self, tell: Callable[[str], None]) -> None:
        """Return once merges need not wait for a compiler, or after READY_S: then the first merge waits for it.

        `tell` hears of what takes long.

        Raises RuntimeError, with what is wrong and the fix, if they cannot be compiled.
        """
        warming = asyncio.wrap_future(self._warming)
        warming.add_done_callback(lambda _: self._examiner.submit(self.parameters.warm_up_rest))
        soon, _ = await asyncio.wait({warming}, timeout=UNTOLD_S)
        if not soon:
            tell(f"the merge of codec {self._codec} is being compiled for this machine")
            done, _ = await asyncio.wait({warming}, timeout=READY_S)
            if not done:
                tell(f"it still is after {time.monotonic() - self._began:.0f} s; commits wait for it")
                return
        try:
            await warming
        except Exception as error:
            raise RuntimeError(
                f"the merge of codec {self._codec} cannot be compiled: {type(error).__name__}: {error}; see that the "
                "installed numba and llvmlite fit each other and this machine"
            ) from error
        if not soon:
            tell(f"the merge is compiled after {time.monotonic() - self._began:.1f} s")

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
        contribution = replace(contribution, took_s=took_s)
        sizes = [fragment.size for fragment in self.parameters.fragments]
        if contribution.learner != learner or not 0 <= contribution.fragment < len(sizes):
            contribution = replace(contribution, learner=learner, payload=None, defect="wrong_sender")
        else:
            size = sizes[contribution.fragment]
            if size <= EXAMINED_AT_ONCE:
                contribution = codecs.examine(contribution, self._codec, size)
            else:
                loop = asyncio.get_running_loop()
                contribution = await loop.run_in_executor(
                    self._examiner, codecs.examine, contribution, self._codec, size
                )
        if not contribution.defect:
            token = Token((request.syncer_step, request.attempt), learner)
            self._payloads[token] = contribution.payload
            contribution = replace(contribution, payload=token)
        return Answer(contribution, facts, oldest)

    def keep(self, reads: Collection[ReadId]) -> None:
        """Forget the payloads of all other reads: they are closed, so nothing can merge them."""
        for token in [token for token in self._payloads if token.read not in reads]:
            del self._payloads[token]

    def merge(
        self, fragment: int, tokens: Sequence[Token], weights: Sequence[float], version: int
    ) -> asyncio.Future[Proposal]:
        """Compute a fragment's next value, as GlobalParameters.propose. Takes the payloads at once."""
        payloads = [self._payloads[token] for token in tokens]
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._merger, self.parameters.propose, fragment, payloads, weights, version)

    def install(self, proposal: Proposal, version: int) -> None:
        """Put a merged value in force."""
        self.parameters.install(proposal, version)
        self._digests[proposal.fragment] = proposal.digest

    def fetch(self, fragment: int, version: int, held: int) -> Fetched | None:
        """The newest version of a fragment, if it is at least the version asked for. `held`: which one is there."""
        newest = self.parameters.versions[fragment]
        if newest < version:
            return None
        return Fetched(newest, self._digests[fragment], self.parameters.since(fragment, held))
