"""Control's side of the fragments' bytes: one code over the shards that hold them, in this process or in Ray actors.

The syncer actor hands in read requests and gets contributions whose payload is a token. With one shard that is here;
with several, bytes go between learners and shards and between shards and the store, and control sends tickets and gets
counters, digests and tokens. The shards belong to one epoch: when one dies or falls silent the epoch is over, and the
others end with it. What was merged and not recorded is no commit; the next epoch reads the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from outer.first_values import Make, ModelLayout
from outer.journal.groups import Value
from outer.protocol.events_effects import Merge
from outer.protocol.messages import ReadRequest
from outer.shard import Answer, Fetched, FragmentShard, Proposed, ReadId, ShardActor, Token
from outer.spec import SyncerSpec

SHARD_CPUS = 0.5
BEGIN_S = 100.0  # for the shards to start, and to make or read their values; the orchestrator waits a little longer
PULSE_S = 0.5  # between two questions whether a shard is there


@dataclass(frozen=True)
class AtShard:
    """The answer to a learner that asked control for a version: this shard has it."""

    handle: Any  # of its actor
    snapshot: int  # the newest that the syncer has begun


class Bulk:
    """The shards of one epoch. `begin` and what precedes it block; the rest is called in the event loop's thread."""

    def __init__(self, spec: SyncerSpec, make: Make, received: Callable[[], None] = lambda: None) -> None:
        """`make`: as for FragmentShard. `received` is called whenever a learner's answer has come."""
        self._spec, self._received = spec, received
        options = {"num_cpus": SHARD_CPUS, "max_restarts": 0, "max_concurrency": 1000, **spec.shard_options}
        self._here = FragmentShard(spec, make) if spec.shards == 1 else None
        self._actors = [
            ray.remote(ShardActor).options(name=f"shard.{spec.epoch}.{shard}", **options).remote(spec, make, shard)
            for shard in range(spec.shards if self._here is None else 0)
        ]
        self._versions: dict[int, int] = {}  # in force, by fragment
        self._unmerged: set[Token] = set()  # tokens whose payloads the shards keep
        self._pulses: list[dict[str, Any]] = [{} for _ in self._actors]
        self._give_up_at = time.monotonic() + BEGIN_S
        self._installing: set[asyncio.Future[Any]] = set()
        self._failed: asyncio.Future[str] | None = None  # why, if a value was not put in force

    def _of(self, fragment: int) -> Any:
        return self._actors[fragment % len(self._actors)]

    def _each(self, method: str, arguments: Callable[[int], Sequence[Any]]) -> list[Any]:
        """The answers of all shards. Raises RuntimeError, and what a shard raises."""
        if self._here is not None:
            return [getattr(self._here, method)(*arguments(0))]
        asked = [getattr(actor, method).remote(*arguments(shard)) for shard, actor in enumerate(self._actors)]
        try:
            answers: list[Any] = ray.get(asked, timeout=max(0.0, self._give_up_at - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            need = f"{len(asked)} shards need {SHARD_CPUS} CPU each"
            raise RuntimeError(f"no answer to {method} within {BEGIN_S:g} s of the start: {need}") from None
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(f"a shard ended in {method}: {type(error).__name__}") from error
        return answers

    def _share(self, values: Mapping[int, Value], shard: int) -> dict[int, Value]:
        return {f: value for f, value in values.items() if f % self._spec.shards == shard}

    # -------------------------------------------------------------- how an epoch begins

    def load(self, values: Mapping[int, Value], run: str) -> dict[int, tuple[str, str]]:
        """Have every actor load its values, as FragmentShard.load. A shard here has none: the journal read them."""
        if self._here is not None:
            return {}
        stored = {fragment: value for fragment, value in values.items() if value.stored is not None}
        found = self._each("load", lambda shard: [self._share(stored, shard), run])
        return {fragment: told for each in found for fragment, told in each.items()}

    def begin(self, versions: Sequence[int], lacking: bool) -> ModelLayout:
        """Begin in every shard, as FragmentShard.begin."""
        layouts: list[ModelLayout] = self._each("begin", lambda _: [list(versions), lacking])
        self._versions = dict.fromkeys(range(len(layouts[0].fragments)), 0)
        return layouts[0]

    async def ready(self, tell: Callable[[str], None]) -> None:
        """Wait until every shard is ready, as FragmentShard.ready; actors tell it themselves."""
        if self._here is not None:
            await self._here.ready(tell)
        await asyncio.gather(*(actor.ready.remote() for actor in self._actors))

    def restore(self, values: Mapping[int, Value], momentum_lost: Collection[int] = ()) -> None:
        """Restore each value in its shard, as FragmentShard.restore."""
        self._each("restore", lambda shard: [self._share(values, shard), list(momentum_lost)])
        self._versions |= {fragment: value.version for fragment, value in values.items()}

    def kept(self, fragments: Collection[int]) -> dict[int, Value]:
        """Return the newest values of all shards, as FragmentShard.kept."""
        found = self._each("kept", lambda shard: [[f for f in fragments if f % self._spec.shards == shard]])
        return {fragment: value for each in found for fragment, value in each.items()}

    async def save_first_values(self) -> None:
        """Have every shard save its initial values, as FragmentShard.save_first_values."""
        if self._here is not None:
            return await self._here.save_first_values()
        try:
            await asyncio.gather(*(actor.save_first_values.remote() for actor in self._actors))
        except ray.exceptions.RayError as error:
            raise OSError(f"a shard did not save its first values: {type(error).__name__}") from error

    async def watch(self) -> str:
        """Wait until an actor dies or is silent; returns why the epoch is over. Without actors this never returns."""
        self._failed = asyncio.get_running_loop().create_future()
        watching: list[asyncio.Future[str]] = [self._failed]
        watching += [asyncio.ensure_future(self._watch(shard)) for shard in range(len(self._actors))]
        done, pending = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        return done.pop().result()

    async def _watch(self, shard: int) -> str:
        while True:
            try:
                self._pulses[shard] = await asyncio.wait_for(self._pulse(shard), self._spec.shard_lease_s)
            except TimeoutError:
                return f"shard {shard} was silent for {self._spec.shard_lease_s:g} s"
            except ray.exceptions.RayError as error:
                return f"shard {shard}: {type(error).__name__}"
            await asyncio.sleep(PULSE_S)

    async def _pulse(self, shard: int) -> dict[str, Any]:
        while True:
            try:
                pulse: dict[str, Any] = await self._actors[shard].pulse.remote()
                return pulse
            except ray.exceptions.ActorUnavailableError:  # it may live: silence decides
                await asyncio.sleep(PULSE_S)

    def view(self) -> list[dict[str, Any]]:
        """For status pages: each actor's process, node, and what the store refuses."""
        return [{key: value for key, value in pulse.items() if key != "sent"} for pulse in self._pulses]

    @property
    def sent(self) -> Counter[str]:
        """Bytes of versions that learners have fetched from actors, by learner."""
        return sum((Counter(pulse.get("sent", {})) for pulse in self._pulses), Counter())

    # -------------------------------------------------------------- reads, merges, versions

    async def read(self, learner: str, handle: Any, request: ReadRequest) -> Answer | str:
        """Read from a learner through the fragment's shard, as FragmentShard.read. The caller has the deadline."""
        answer: Answer | str
        if self._here is not None:
            answer = await self._here.read(learner, handle, request)
        else:
            try:
                answer = await self._of(request.fragment).read.remote(learner, handle, request)
            except ray.exceptions.RayError:
                return "shard"
        if not isinstance(answer, str):
            self._received()
            if isinstance(answer.contribution.payload, Token):
                self._unmerged.add(answer.contribution.payload)
        return answer

    def keep(self, reads: Collection[ReadId]) -> None:
        """Forget the payloads of all other reads: they are closed, so nothing can merge them.

        Called after every event, so shards hear of it only where they keep such a payload.
        """
        if closed := [token for token in self._unmerged if token.read not in reads]:
            self._unmerged.difference_update(closed)
            if self._here is not None:
                self._here.forget(closed)
            for actor in self._actors:
                actor.forget.remote(closed)

    def merge(self, merge: Merge) -> Awaitable[Proposed]:
        """Merge in the fragment's shard, as FragmentShard.merge. The payloads are the merge's from now on."""
        self._unmerged.difference_update(merge.payloads)
        base = self._versions[merge.fragment]
        if self._here is not None:
            return self._here.merge(merge, base)  # type: ignore[no-any-return]
        asked = self._of(merge.fragment).merge.remote(merge, base)
        return self._answer(asked, merge.fragment, "it did not merge", ray.exceptions.RayTaskError)

    def install(self, fragment: int, version: int) -> None:
        """Put a merged value in force. An actor that is asked for the version before it has heard of it waits."""
        self._versions[fragment] = version
        if self._here is not None:
            self._here.install(fragment, version)
            return
        asked = self._of(fragment).install.remote(fragment, version)
        installing = asyncio.ensure_future(self._answer(asked, fragment, f"version {version} is not in force"))
        self._installing.add(installing)
        installing.add_done_callback(self._installing.discard)

    async def _answer(self, asked: Awaitable[Any], fragment: int, otherwise: str, *told: type[Exception]) -> Any:
        """An actor's answer. Without one the epoch is over, and this waits; `told`: errors that are an answer."""
        try:
            return await asked
        except ray.exceptions.RayError as error:
            if isinstance(error, told) and not isinstance(error, TimeoutError):
                raise
            if self._failed is not None and not self._failed.done():
                place = f"shard {fragment % len(self._actors)}: fragment {fragment}"
                self._failed.set_result(f"{place}: {otherwise}: {type(error).__name__}")
            return await asyncio.get_running_loop().create_future()

    def fetch(self, fragment: int, version: int, held: int) -> Fetched | tuple[int, Any] | None:
        """The newest version, if it is at least the one asked for; of an actor's: (its number, the actor's handle).

        `held`: which one is at the learner that asks.
        """
        newest = self._versions[fragment]
        if newest < version:
            return None
        return (newest, self._of(fragment)) if self._here is None else self._here.newest(fragment, held)

    def current(self) -> list[Any]:
        """float32[n] per fragment, or actors with the versions that they have at least, for `gathered`."""
        if self._here is not None:
            return list(self._here.parameters.thetas)
        return [(actor, dict(self._versions)) for actor in self._actors]

    def arm(self, point: str, times: int) -> None:
        """For chaos: the process of the first shard dies at this point of its nth merge from now."""
        if self._here is not None:
            self._here.arm(point, times)
        else:
            self._actors[0].arm.remote(point, times)

    # -------------------------------------------------------------- checkpoints

    def mark(self, snapshot: int) -> Mapping[int, NDArray[Any]]:
        """Everything merged so far may belong to the snapshot: actors keep it.

        Returns the values of fragments without a commit that go into control's part.
        """
        for actor in self._actors:
            actor.mark.remote(snapshot)
        return {} if self._here is None else self._here.initial()

    async def save(self, snapshot: int, versions: Sequence[int]) -> list[dict[str, Any]]:
        """Every actor writes a part, with the snapshot's values of these versions. Raises OSError."""
        return list(await asyncio.gather(*(actor.save.remote(snapshot, versions) for actor in self._actors)))


def gathered(current: Sequence[Any], deadline_s: float) -> list[NDArray[np.float32]]:
    """float32[n] per fragment, from what Bulk.current gives. Blocks. Raises RayError."""
    if not current or isinstance(current[0], np.ndarray):
        return list(current)
    asked = [actor.current.remote(versions) for actor, versions in current]
    found = [item for each in ray.get(asked, timeout=deadline_s) for item in each]
    return [theta for _, theta in sorted(found, key=lambda item: item[0])]
