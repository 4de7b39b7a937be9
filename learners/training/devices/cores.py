"""Which cores a learner's threads run on, where its step is pinned to one."""

from __future__ import annotations

import contextlib
import os

_step: set[int] = set()  # the core that the step is pinned to
_others: set[int] = set()  # those beside it


def pin(core: int) -> None:
    """Pin the calling thread to `core`, and with it the threads that it starts, including XLA's.

    The process's other threads, such as Ray's, move to the other cores, if there are any.
    """
    _step.add(core)
    _others.update(os.sched_getaffinity(0) - {core})
    if _others:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), _others)
    os.sched_setaffinity(0, {core})


def move(core: int | None) -> None:
    """Pin to `core` what `pin` has pinned to another one, and the process's other threads to those beside it."""
    if core not in _others:
        return  # nothing is pinned, or it is there
    others = (_others | _step) - {core}
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, {core} if os.sched_getaffinity(thread) == _step else others)
    for kept, now in ((_step, {core}), (_others, others)):
        kept.clear()
        kept.update(now)


def leave() -> None:
    """Let the calling thread run on the other cores. Without a pinned step, or other cores, it stays where it is."""
    if _others:
        os.sched_setaffinity(0, _others)
