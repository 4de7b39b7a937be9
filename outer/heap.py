"""Keeps the heap of a process that lives for months at the size of what it uses.

glibc keeps what threads have freed, in one arena a thread, and gives none of it back: a process whose use is constant
then grows by tens of megabytes an hour. On another C library nothing happens.
"""

from __future__ import annotations

import ctypes
import threading

M_ARENA_MAX = -8  # glibc's malloc.h
ARENAS = 2
TRIM_S = 60.0


def keep_small() -> None:
    """Let threads share arenas, and give free pages back every minute, in a thread. Call it once, early."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim") or not hasattr(libc, "mallopt"):
        return
    libc.mallopt(M_ARENA_MAX, ARENAS)
    threading.Thread(target=_trim, args=(libc,), name="trim", daemon=True).start()


def _trim(libc: ctypes.CDLL) -> None:
    pause = threading.Event()
    while not pause.wait(TRIM_S):
        libc.malloc_trim(0)
