"""Waits for a store that is away, without bound, and says for what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
BACKOFF_S, BACKOFF_S_MAX = 0.5, 10.0  # between two attempts; doubles


class Patience:
    """The waits of one orchestrator. What a store says that is there, such as damage or a fence, is not waited for."""

    def __init__(self) -> None:
        self._waits: dict[object, str] = {}

    @property
    def why(self) -> str:
        """What the store says to the oldest wait; empty while there is none."""
        return next(iter(self._waits.values()), "")

    async def until(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Await `work` anew until no OSError comes of it. It must be idempotent."""
        wait, backoff_s = object(), BACKOFF_S
        try:
            while True:
                try:
                    return await work(*arguments)
                except FileExistsError:
                    raise
                except OSError as error:
                    self._waits[wait] = f"{type(error).__name__}: {error}"
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        finally:
            self._waits.pop(wait, None)

    async def stored(self, work: Callable[..., T], *arguments: Any) -> T:
        """The same for a call that blocks, in a thread."""
        return await self.until(asyncio.to_thread, work, *arguments)

    async def granted(self, work: Callable[..., T], *arguments: Any) -> T:
        """The same for a call that takes no time: it is done before this yields, if the store is there."""
        try:
            return work(*arguments)
        except OSError:
            return await self.stored(work, *arguments)
