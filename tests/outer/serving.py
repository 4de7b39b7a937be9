"""What the tests of the syncer's process share: how an epoch is made, and other processes, which are only names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from outer.config import OuterConfig, SyncConfig
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.ports import Gone, Raised
from outer.protocol.messages import Contribution, FragmentCounters, ReadRequest
from outer.protocol.syncer import Budget
from outer.spec import SyncerSpec


class Process:
    """A Peer: carries calls out on `inside`, and raises what that raises as of another process; None: it is dead."""

    def __init__(self, inside: Any = None) -> None:
        self.inside = inside

    async def ask(self, method: str, *arguments: Any) -> Any:
        if self.inside is None:
            raise Gone("ActorDiedError")
        try:
            answer = getattr(self.inside, method)(*arguments)
            return await answer if isinstance(answer, Awaitable) else answer
        except Exception as error:
            raise Raised(type(error).__name__) from error

    def tell(self, method: str, *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(getattr(self.inside, method), *arguments)


@dataclass
class Learner:
    """What a learner answers to reads: this payload, of this format."""

    payload: NDArray[Any]
    name: str = "a"
    digest: str = ""
    codec: str = ""

    def read(self, asked: ReadRequest) -> Any:
        counters, sent = FragmentCounters(0, 0, 1, 8), self.digest or codecs.digest(self.payload)
        place = asked.syncer_step, asked.fragment, asked.attempt
        return Contribution(self.name, 1, 1, *place, 1, 8, counters, self.payload, sent, self.codec), [], 0


def spec(store: Objects, fragments: int, epoch: int = 1, **more: Any) -> SyncerSpec:
    """Of one learner, each of whose fragments is due once in a round of `fragments` steps, or of three."""
    sync, given = SyncConfig(P=fragments, H=max(3, fragments)), {"code": "code"} | more
    return SyncerSpec(
        epoch, sync, OuterConfig(), {"a": 2}, 1, 4, 20.0, Budget(10**6, None), {"seed": 0}, store=store, **given
    )
