"""Waiting with a deadline, for what an object reference or another awaitable brings; and what went wrong."""

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
    """What Ray says of an actor's end, in one line: an exception's own words stand last, a killed process has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or "worker process has died" in str(error):
        return "its process ended"
    return lines[-1][:200]
