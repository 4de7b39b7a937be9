"""Which cores a learner's threads run on, where its step is pinned to one, and at which priority."""

from __future__ import annotations

import contextlib
import os

from outer import background

LOWERED = 8  # of a standby that is made: two learners of usual niceness on its core leave it 8 % of that

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
    """Make the calling thread, and those that it starts, nicer by LOWERED, until `restore`.

    False, and nothing changes, where this process may not undo it: that needs CAP_SYS_NICE, or a limit on niceness.
    """
    usual, undone = os.getpriority(os.PRIO_PROCESS, 0), list[bool]()

    def attempt() -> None:
        with contextlib.suppress(OSError):
            _set(0, usual + LOWERED)
            _set(0, usual)
            undone.append(True)

    background.thread("niceness", attempt, background.tell).join()  # a change that cannot be undone ends with it
    if undone:
        _set(0, usual + LOWERED)
    return bool(undone)


def restore() -> None:
    """Give every thread of this process the priority of its main thread, which `lower` was not called in."""
    usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended, or was not lowered
            _set(thread, usual)


def _set(thread: int, niceness: int) -> None:
    if os.getpriority(os.PRIO_PROCESS, thread) != niceness:
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
