"""How a process keeps its memory: small for months, or ready for the next step. For glibc; elsewhere nothing happens.

glibc keeps what threads have freed, in one arena a thread, and gives none of it back: a process whose use is constant
then grows by tens of megabytes an hour. But it gives large blocks back at once, and a training step on a CPU, or a
merge, asks for the same large blocks again: a third of its time can go to the kernel, for clearing their pages.

Threads that were there before keep the arenas that they have, and later ones may be given those: what one thread frees,
another then cannot use. So processes of actors start with ONE_HEAP in their environment.
"""

from __future__ import annotations

import ctypes
import threading
from functools import partial

from outer.background import tell, thread

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
LARGE = 2**30  # bytes; larger blocks are given back all the same
OLDER_LARGE = 2**25  # what older versions accept
NEVER = 2**31 - 1
TRIM_S = 60.0
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}


def keep_large() -> None:
    """Keep large blocks that are freed, for later requests, in one heap for all threads. Call it once, early."""
    if (libc := _glibc()) is not None:
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE) or libc.mallopt(M_MMAP_THRESHOLD, OLDER_LARGE)
        libc.mallopt(M_TRIM_THRESHOLD, NEVER)


def keep_small() -> None:
    """The same, and give free pages back every minute, in a thread: for a process that computes now and then."""
    keep_large()
    if (libc := _glibc()) is not None:
        thread("trim", partial(_trim, libc), tell)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None


def _trim(libc: ctypes.CDLL) -> None:
    pause = threading.Event()
    while not pause.wait(TRIM_S):
        libc.malloc_trim(0)
