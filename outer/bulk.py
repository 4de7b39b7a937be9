"""Control's side of the fragments' bytes: one code over the shards that hold them, in this process or in others.

The syncer actor hands in read requests and gets contributions whose payload is a token. With one shard that is here;
with several, bytes go between learners and shards and between shards and the store, and control sends tickets and gets
counters, digests and tokens. The shards belong to one epoch: when one dies or falls silent the epoch is over, and the
others end with it. What was merged and not recorded is no commit; the next epoch reads the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from outer.first_values import Make, ModelLayout
from outer.journal.groups import Value
from outer.ports import NoAnswer, Peer, Raised, insist, now
from outer.protocol.events_effects import Merge
from outer.protocol.messages import ReadRequest
from outer.shard import Answer, Fetched, FragmentShard, Proposed
from outer.spec import SyncerSpec

SHARD_CPUS = 0.5
BEGIN_S = 100.0  # for the shards to start, and to make or read their values; the orchestrator waits a little longer
PULSE_S = 0.5  # between two questions whether a shard is there


@dataclass(frozen=True)
class AtShard:
    """The answer to a learner that asked control for a version: this shard has it."""

    peer: Peer
    snapshot: int  # the newest that the syncer has begun


class Bulk:
    """The shards of one epoch. Call it in the event loop's thread."""

    def __init__(
        self,
        spec: SyncerSpec,
        make: Make,
        start: Callable[..., Peer] | None = None,
        received: Callable[[], None] = lambda: None,
        shard: Callable[[SyncerSpec, Make], FragmentShard] = FragmentShard,
    ) -> None:
        """`make`: as for FragmentShard; `start`: as Here.shard, where there are several. `received` is called whenever
        a learner's answer has come; `shard` makes the one that is here.
        """
        self._spec, self._make, self._start, self._received = spec, make, start, received
        self._here = shard(spec, make) if spec.shards == 1 else None
        self._others: list[Peer] = []  # shards that are processes of their own, from `load` on
        self.versions: dict[int, int] = {}  # in force, by fragment
        self._pulses: list[dict[str, Any]] = []
        self._installing: set[asyncio.Future[Any]] = set()
        self._failed: asyncio.Future[str] | None = None  # why, if a value was not put in force

    def _of(self, fragment: int) -> Peer:
        return self._others[fragment % len(self._others)]

    async def _each(self, method: str, arguments: Callable[[int], Sequence[Any]]) -> list[Any]:
        """The answers of all shards. Raises RuntimeError, and what a shard raises."""
        if self._here is not None:
            return [getattr(self._here, method)(*arguments(0))]
        asked = [shard.ask(method, *arguments(number)) for number, shard in enumerate(self._others)]
        with _answering(method):
            try:
                return await asyncio.wait_for(asyncio.gather(*asked), max(0.0, self._give_up_at - now()))
            except TimeoutError:
                need = f"{len(asked)} shards need {SHARD_CPUS} CPU each"
                raise RuntimeError(f"no answer to {method} within {BEGIN_S:g} s of the start: {need}") from None

    def _share(self, values: Mapping[int, Value], shard: int) -> dict[int, Value]:
        return {f: value for f, value in values.items() if f % self._spec.shards == shard}

    # -------------------------------------------------------------- how an epoch begins

    async def load(self, values: Mapping[int, Value], run: str) -> dict[int, tuple[str, str]]:
        """Start the other processes, and have each load its values, as FragmentShard.load.

        A shard here has none: the journal read them.
        """
        if self._here is not None:
            return {}
        assert self._start is not None
        self._give_up_at = now() + BEGIN_S
        self._others = [self._start(self._spec, self._make, number) for number in range(self._spec.shards)]
        self._pulses = [{} for _ in self._others]
        stored = {fragment: value for fragment, value in values.items() if value.stored is not None}
        found = await self._each("load", lambda shard: [self._share(stored, shard), run])
        return {fragment: told for each in found for fragment, told in each.items()}

    async def begin(self, versions: Sequence[int], lacking: bool) -> ModelLayout:
        """Begin in every shard, as FragmentShard.begin."""
        layouts: list[ModelLayout] = await self._each("begin", lambda _: [list(versions), lacking])
        self.versions = dict.fromkeys(range(len(layouts[0].fragments)), 0)
        return layouts[0]

    async def ready(self, tell: Callable[[str], None]) -> None:
        """Wait until every shard is ready, as FragmentShard.ready; others tell it themselves."""
        if self._here is not None:
            await self._here.ready(tell)
        with _answering("ready"):
            await asyncio.gather(*(shard.ask("ready") for shard in self._others))

    async def restore(self, values: Mapping[int, Value], momentum_lost: Collection[int] = ()) -> None:
        """Restore each value in its shard, as FragmentShard.restore."""
        await self._each("restore", lambda shard: [self._share(values, shard), list(momentum_lost)])
        self.versions |= {fragment: value.version for fragment, value in values.items()}

    async def kept(self, fragments: Collection[int]) -> dict[int, Value]:
        """Return the newest values of all shards, as FragmentShard.kept."""
        found = await self._each("kept", lambda shard: [[f for f in fragments if f % self._spec.shards == shard]])
        return {fragment: value for each in found for fragment, value in each.items()}

    async def save_first_values(self) -> None:
        """Have every shard save its initial values, as FragmentShard.save_first_values."""
        if self._here is not None:
            return await self._here.save_first_values()
        try:
            await asyncio.gather(*(shard.ask("save_first_values") for shard in self._others))
        except NoAnswer as error:
            raise OSError(f"a shard did not save its first values: {error}") from error

    async def watch(self) -> str:
        """Wait until a shard dies or is silent; returns why the epoch is over. With one that is here, for ever."""
        self._failed = asyncio.get_running_loop().create_future()
        watching: list[asyncio.Future[str]] = [self._failed]
        watching += [asyncio.ensure_future(self._watch(shard)) for shard in range(len(self._others))]
        done, pending = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        return done.pop().result()

    async def _watch(self, shard: int) -> str:
        while True:
            try:
                pulse = insist(partial(self._others[shard].ask, "pulse"))  # silence decides, not one lost call
                self._pulses[shard] = await asyncio.wait_for(pulse, self._spec.shard_lease_s)
            except TimeoutError:
                return f"shard {shard} was silent for {self._spec.shard_lease_s:g} s"
            except NoAnswer as error:
                return f"shard {shard}: {error}"
            await asyncio.sleep(PULSE_S)

    def view(self) -> list[dict[str, Any]]:
        """For status pages: of each other process its pid, node, and what the store refuses."""
        return [{key: value for key, value in pulse.items() if key != "sent"} for pulse in self._pulses]

    @property
    def sent(self) -> Counter[str]:
        """Bytes of versions that learners have fetched from other processes, by learner."""
        return sum((Counter(pulse.get("sent", {})) for pulse in self._pulses), Counter())

    # -------------------------------------------------------------- reads, merges, versions

    async def read(self, learner: str, peer: Peer, request: ReadRequest) -> Answer | str:
        """Read from a learner through the fragment's shard, as FragmentShard.read. The caller has the deadline."""
        answer: Answer | str
        if self._here is not None:
            answer = await self._here.read(learner, peer, request)
        else:
            try:
                answer = await self._of(request.fragment).ask("read", learner, peer, request)
            except NoAnswer:
                return "shard"
        if not isinstance(answer, str):
            self._received()
        return answer

    def forget(self, payloads: Sequence[Any]) -> None:
        """Nothing merges the payloads of these tokens any more."""
        if self._here is not None:
            self._here.forget(payloads)
        for shard in self._others:
            shard.tell("forget", payloads)

    def merge(self, merge: Merge) -> Awaitable[Proposed]:
        """Merge in the fragment's shard, as FragmentShard.merge. The payloads are the merge's from now on."""
        base = self.versions[merge.fragment]
        if self._here is not None:
            return self._here.merge(merge, base)
        asked = self._of(merge.fragment).ask("merge", merge, base)
        return self._answer(asked, merge.fragment, "it did not merge", raises=True)

    def install(self, fragment: int, version: int) -> None:
        """Put a merged value in force. A process that is asked for the version before it has heard of it waits."""
        self.versions[fragment] = version
        if self._here is not None:
            self._here.install(fragment, version)
            return
        asked = self._of(fragment).ask("install", fragment, version)
        installing = asyncio.ensure_future(self._answer(asked, fragment, f"version {version} is not in force"))
        self._installing.add(installing)
        installing.add_done_callback(self._installing.discard)

    async def _answer(self, asked: Awaitable[Any], fragment: int, otherwise: str, raises: bool = False) -> Any:
        """Another process's answer. Without one the epoch is over, and this waits.

        `raises`: an error there is an answer, unless it says that time ran out.
        """
        try:
            return await asked
        except NoAnswer as error:
            if raises and isinstance(error, Raised) and not isinstance(error.__cause__, TimeoutError):
                raise error.__cause__ or error from None
            if self._failed is not None and not self._failed.done():
                place = f"shard {fragment % len(self._others)}: fragment {fragment}"
                self._failed.set_result(f"{place}: {otherwise}: {error}")
            return await asyncio.get_running_loop().create_future()

    def shard(self, fragment: int) -> Peer | None:
        """The other process that has a fragment; None: it is here."""
        return None if self._here is not None else self._of(fragment)

    def fetch(self, fragment: int, held: int) -> Fetched:
        """The newest version of a fragment that is here. `held`: which one is at the learner that asks."""
        assert self._here is not None
        return self._here.newest(fragment, held)

    def current(self) -> list[Any]:
        """float32[n] per fragment, or shards with the versions that they have at least, for `gathered`."""
        if self._here is not None:
            return list(self._here.parameters.thetas)
        return [(shard, dict(self.versions)) for shard in self._others]

    def arm(self, point: str, times: int) -> None:
        """For chaos: the process of the first shard dies at this point of its nth merge from now."""
        if self._here is not None:
            self._here.arm(point, times)
        else:
            self._others[0].tell("arm", point, times)

    # -------------------------------------------------------------- checkpoints

    def mark(self, snapshot: int) -> Mapping[int, NDArray[Any]]:
        """Everything merged so far may belong to the snapshot: other processes keep it.

        Returns the values of fragments without a commit that go into control's part.
        """
        for shard in self._others:
            shard.tell("mark", snapshot)
        return {} if self._here is None else self._here.initial()

    async def save(self, snapshot: int, versions: Sequence[int]) -> list[dict[str, Any]]:
        """Every other process writes a part, with the snapshot's values of these versions.

        Raises OSError: call it again; LookupError; RuntimeError where one is dead.
        """
        with _answering("save"):
            return list(await asyncio.gather(*(shard.ask("save", snapshot, versions) for shard in self._others)))


@contextlib.contextmanager
def _answering(method: str) -> Iterator[None]:
    """What a shard raises is raised here; RuntimeError where one does not answer."""
    try:
        yield
    except Raised as error:
        raise error.__cause__ or error from None
    except NoAnswer as error:
        raise RuntimeError(f"a shard ended in {method}: {error}") from error


async def gathered(current: Sequence[Any]) -> list[NDArray[Any]]:
    """float32[n] per fragment, from what Bulk.current gives. Raises NoAnswer."""
    if not current or not isinstance(current[0], tuple):
        return list(current)
    found = await asyncio.gather(*(shard.ask("current", versions) for shard, versions in current))
    return [theta for _, theta in sorted((item for each in found for item in each), key=lambda item: item[0])]
