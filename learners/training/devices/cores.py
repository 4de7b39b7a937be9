"""Which cores a learner's threads run on, where its step is pinned to one, and at which priority."""

from __future__ import annotations

import contextlib
import os
import threading

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


def lower() -> bool:
    """Let the calling thread, and those that it starts, run only where nothing else wants to, until `restore`.

    False, and nothing changes, where this process may not undo it: that needs CAP_SYS_NICE, or a limit on niceness.
    """
    undone: list[bool] = []

    def attempt() -> None:
        with contextlib.suppress(OSError):
            usual = os.sched_getscheduler(0)
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, usual, os.sched_param(0))
            undone.append(True)

    trial = threading.Thread(target=attempt)  # one that cannot be undone ends with it
    trial.start()
    trial.join()
    if undone:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return bool(undone)


def restore() -> None:
    """Undo `lower` in every thread of this process."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
