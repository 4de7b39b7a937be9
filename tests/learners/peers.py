"""Processes whose answers are a test's, and a link to one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from learners.fault_effects import FaultEffects
from learners.link import Link
from learners.protocol.fact_buffer import FactBuffer
from outer.ports import Here


class FakePeer:
    """A process whose methods answer at once, or once what they return is done; an exception is raised."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self.methods = methods

    async def ask(self, method: str, *given: Any) -> Any:
        answer = self.methods[method](*given)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(self, method: str, *given: Any) -> None:
        self.methods[method](*given)


def link(syncer: FakePeer, facts: FactBuffer | None = None, faults: FaultEffects | None = None) -> Link:
    faults = faults or FaultEffects(time.monotonic)
    here, threads = Here(FakePeer(), lambda: None), ThreadPoolExecutor(1, "fetch")
    return Link("a", 1, syncer, here, faults, threads, asyncio.ensure_future, facts or FactBuffer(time.time))
