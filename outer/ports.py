"""The ports of a shell: what it needs of the world, so that Ray and virtual time can both be that.

Clock and tasks are the running asyncio loop: `loop.time()`, its timers, its tasks, and `run_in_executor` for work that
blocks. Objects (outer/journal/object_store.py) is the store. The rest is here. Ray's set is outer/ray_ports.py, virtual
time's is orchestrator/simulation. A set of ports takes no decision.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
AGAIN_S = 0.5


class NoAnswer(Exception):
    """A call had no answer; the message is one word for why."""


class Unreachable(NoAnswer):
    """The process cannot be reached now. It may live."""


class Gone(NoAnswer):
    """The process is dead."""


class Raised(NoAnswer):
    """The call raised; that error is the cause."""


class Peer(Protocol):
    """Another process. It can be sent in messages."""

    def ask(self, method: str, *arguments: Any) -> Awaitable[Any]:
        """Call a method there. Raises NoAnswer, also once the transport knows that it has lost question or answer.

        A process that is frozen is silent: who awaits this has the deadline.
        """
        ...

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method there, and do not wait for it."""
        ...


@dataclass(frozen=True)
class Here:
    """The process that a shell runs in."""

    me: Peer
    end: Callable[[], None]  # end this process at once; what follows is never done
    region: str = ""  # of its node; empty: unknown
    identity: Mapping[str, Any] = field(default_factory=dict)  # its pid and node, for the status
    wall: Callable[[], float] = time.time  # Unix seconds, that date facts
    shard: Callable[..., Peer] | None = None  # starts a process for one of several shards: (spec, make, number)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """The answer to a call that may be made again: a process that cannot be reached now may live."""
    while True:
        try:
            return await call()
        except Unreachable:
            await asyncio.sleep(AGAIN_S)


def now() -> float:
    """Monotonic seconds of the running loop."""
    return asyncio.get_running_loop().time()
