"""Waiting for a condition, in tests of processes and tasks.

The deadline ends a test that hangs. It is far beyond what a busy machine needs, so no test fails for being slow.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
DEADLINE_S = 600.0  # also the time limit of processes that tests start


def until(condition: Callable[[], T], claim: str, pause_s: float = 0.1) -> T:
    """The condition's first true value. `claim` says what was waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {claim}"
        time.sleep(pause_s)
    return value


async def until_async(condition: Callable[[], T], claim: str, pause_s: float = 0.002) -> T:
    """The same, in an event loop."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {claim}"
        await asyncio.sleep(pause_s)
    return value


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, in an event loop of its own."""

    @functools.wraps(test)
    def run(*given: Any, **fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **fixtures), DEADLINE_S))

    return run
