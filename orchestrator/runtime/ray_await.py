"""Waiting with a deadline for an object reference or another awaitable, and errors in one line."""

from __future__ import annotations

import asyncio
from typing import Any

CALL_S = 10.0  # for an actor to answer a call that needs no work


async def within(seconds: float, ref: Any) -> Any:
    """The value of an object reference, or TimeoutError."""

    async def value() -> Any:
        return await ref

    return await asyncio.wait_for(value(), seconds)


def gist(error: Exception) -> str:
    """Ray's error about an actor, in one line: the last line of an exception, or that the process ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or "worker process has died" in str(error):
        return "its process ended"
    return lines[-1][:200]
