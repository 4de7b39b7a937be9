"""Messages on their way from the syncer to learners."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import ray

from outer.protocol.events_effects import ToLearner
from outer.protocol.messages import Stop

UNDELIVERED_MAX = 64  # messages that wait for one incarnation; more are dropped, the machine sends again


class Outbox:
    """One call at a time to each incarnation, with all messages that wait by then. Call it in the event loop's thread.

    `spawn` runs a coroutine. A message that cannot be delivered within `deadline_s` seconds is lost.
    """

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], None], deadline_s: float) -> None:
        self._spawn, self._deadline_s = spawn, deadline_s
        self._waiting: dict[tuple[str, int], list[ToLearner]] = {}  # of those to whom a call is under way

    def put(self, learner: str, incarnation: int, handle: Any, message: ToLearner) -> None:
        """Send a message soon."""
        key = (learner, incarnation)
        if key not in self._waiting:
            self._waiting[key] = []
            self._spawn(self._deliver(key, handle))
        waiting = self._waiting[key]
        if len(waiting) < UNDELIVERED_MAX:
            waiting.append(message)
        elif isinstance(message, Stop):
            waiting[-1] = message

    async def _deliver(self, key: tuple[str, int], handle: Any) -> None:
        try:
            while ready := self._waiting[key]:
                self._waiting[key] = []
                with contextlib.suppress(ray.exceptions.RayError, TimeoutError):  # dead or frozen: its lease tells
                    await asyncio.wait_for(asyncio.ensure_future(handle.inbox.remote(*ready)), self._deadline_s)
        finally:
            del self._waiting[key]  # incarnations come and go
