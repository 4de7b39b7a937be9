"""Waiting with a deadline for an object reference or another awaitable, and errors in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray

CALL_S = 10.0  # for an actor to answer a call that needs no work
AGAIN_S = 1.0


async def within(seconds: float, ref: Any) -> Any:
    """The value of an object reference, or TimeoutError."""

    async def value() -> Any:
        return await ref

    return await asyncio.wait_for(value(), seconds)


async def answered(call: Callable[[], Any]) -> Any:
    """The answer of an actor's method that may be called again: an actor that Ray cannot reach now may live."""
    while True:
        try:
            return await call()
        except ray.exceptions.ActorUnavailableError:
            await asyncio.sleep(AGAIN_S)


def gist(error: Exception) -> str:
    """Ray's error about an actor, in one line: the last line of an exception, or that the process ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or "worker process has died" in str(error):
        return "its process ended"
    return lines[-1][:200]
