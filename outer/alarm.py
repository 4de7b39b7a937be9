"""A timer that follows the machine's wish: one call at a time, moved only when the wish changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SOON_S = 0.001


class Alarm:
    """Calls `ring` in the event loop at the time that was set last, in seconds of the monotonic clock."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def set(self, at: float | None) -> None:
        """None: not at all."""
        if at is not None and at == self._at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, at
        if at is not None:
            delay_s = max(SOON_S, at - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._ring()
