"""A process of a learner unit other than its rank 0, without its transport: it does as rank 0 tells it.

Calls, not collectives, carry what the ranks are to do (learners/training/island.py says what). Any rank's end is the
gang's: the orchestrator ends them all and starts the next incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from learners.fault_effects import FaultEffects
from learners.link import in_thread, owned
from learners.training.rank_call import RankCall
from outer.ports import Here

VALUE_S = 120.0  # for a rank to have a value on its devices, or to give its shards
VALUES_AT_ONCE = 2  # threads that bring values to the devices, and that give shards


class RankShell:
    """`start` meets rank 0 at an address and returns a learners.training.island.Follower; `thread` is its steps'."""

    def __init__(self, here: Here, start: Callable[[str], Any], faults: FaultEffects, thread: Executor | None) -> None:
        self._here, self._start, self._faults, self._thread = here, start, faults, thread
        self._values = ThreadPoolExecutor(VALUES_AT_ONCE, "value")
        self._follower: Any = None  # once it can follow
        self._ready, self._came = asyncio.Event(), asyncio.Event()
        self._calls: dict[int, RankCall] = {}  # that came, by number
        self._next = 0  # the number of the call that is carried out next
        self._ended: asyncio.Future[None] | None = None  # once it follows: how that ended

    async def identify(self) -> dict[str, Any]:
        """Where this process runs."""
        return {**self._here.identity}

    async def follow(self, address: str) -> None:
        """Meet rank 0 at this address, and follow it to the end. An exception is a fault of this incarnation.

        Called again, by another orchestrator, it waits for the same end.
        """
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            try:
                self._follower = await in_thread(self._thread, self._start, address)
                self._ready.set()
                while not await in_thread(self._thread, self._follower.perform, await self._due()):
                    pass
                self._ended.set_result(None)
            except Exception as error:
                self._ended.set_exception(error)
        await asyncio.shield(self._ended)

    async def _due(self) -> list[RankCall]:
        """The calls that are due, in rank 0's order and without gaps."""
        while self._next not in self._calls:
            self._came.clear()
            await self._came.wait()
        due = []
        while (call := self._calls.pop(self._next, None)) is not None:
            due.append(call)
            self._next += 1
        return due

    async def put(self, call: RankCall) -> None:
        """A call of rank 0 has come. Its arrays are copied: the loop frees them, and not the object store's memory."""
        if call.number >= self._next:  # else it came twice
            self._calls[call.number] = call._replace(arguments=owned(call.arguments))
            self._came.set()

    async def place(self, *value: Any) -> None:
        """See Follower.place. Raises TimeoutError, as `pieces`."""
        await self._when_ready("place", *value)

    async def pieces(self, *asked: Any) -> Any:
        """See Follower.pieces."""
        return await self._when_ready("pieces", *asked)

    async def _when_ready(self, method: str, *given: Any) -> Any:
        """Rank 0 leads once it has compiled; this rank may do so a little later."""
        await asyncio.wait_for(self._ready.wait(), VALUE_S)
        return await in_thread(self._values, getattr(self._follower, method), *given)

    async def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """Suffer a fault in this rank's steps: see LearnerShell.disturb."""
        return self._faults.begin_by(self._here.wall(), kind, duration_s, delay_s, seed, expires_at)
