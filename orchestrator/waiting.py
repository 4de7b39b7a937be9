"""Waiting with a deadline, for what an object reference or another awaitable will bring."""

from __future__ import annotations

import asyncio
from typing import Any

CALL_S = 10.0  # for an actor to answer a call that needs no work


async def within(seconds: float, ref: Any) -> Any:
    """The value of an object reference, or TimeoutError."""

    async def value() -> Any:
        return await ref

    return await asyncio.wait_for(value(), seconds)
