"""Which cores a learner's threads run on, where its step is pinned to one."""

from __future__ import annotations

import contextlib
import os

_others: set[int] = set()  # the cores beside the step's


def pin(core: int) -> None:
    """Pin the calling thread to `core`, and with it the threads that it starts, including XLA's.

    The process's other threads, such as Ray's, move to the other cores, if there are any.
    """
    _others.update(os.sched_getaffinity(0) - {core})
    if _others:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), _others)
    os.sched_setaffinity(0, {core})


def leave() -> None:
    """Let the calling thread run on the other cores. Without a pinned step, or other cores, it stays where it is."""
    if _others:
        os.sched_setaffinity(0, _others)
