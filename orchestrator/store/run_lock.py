"""The lock of a run: one process at a time works on it, also where hosts share its folder, and in object storage.

The lock is a chain of numbered objects, each created once. Its holder creates the next number every RENEW_S. A process
that wants it watches the newest number, and creates the one after it when that says that it is free, when its process
is known to be gone, or when nothing followed it for WATCH_S of the watcher's own clock. No two hosts' clocks are
compared. A holder that was frozen so long finds another's number, and has lost the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from orchestrator.recipe.problems import InputError, Problem
from outer.background import thread
from outer.journal.object_store import Objects

FOLDER = "lock"
RENEW_S = 2.0
WATCH_S = 20.0
LOOK_S = 0.5  # between two looks at another's lock
LOOKS_MAX = 8  # for a number that is not gone when it is read
KEPT = 64  # numbers, the newest: the store's listing may be that old
FREE: dict[str, Any] = {"session": ""}
UNKNOWN = "unknown"  # when a process started that this user may not see


class RunLock:
    """The processes of one `session` hold the lock one after the other: a shell, then its orchestrators.

    `where` names the run in messages. Pickled, it is the same session.
    """

    def __init__(self, objects: Objects, where: str, session: str = "") -> None:
        self._objects, self._where = objects, where
        self._session = session or uuid.uuid4().hex
        self._me = {"session": self._session, "host": socket.gethostname(), "boot": _boot(), "pid": os.getpid()}
        self._me["started"] = _started(os.getpid())
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[type[RunLock], tuple[Objects, str, str]]:
        return RunLock, (self._objects, self._where, self._session)

    def take(
        self,
        tell: Callable[[str], None] = lambda words: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the lock. Raises InputError where another session works on the run; `tell` is told of a wait."""
        number, holder = self._newest()
        seen, give_up_at = number, clock() + WATCH_S
        if not self._may_follow(holder):
            tell(f"{self._where}: {_who(holder)} worked on this run; watching for {WATCH_S:g} s whether it still does")
        while not self._may_follow(holder) and clock() < give_up_at:
            pause(LOOK_S)
            number, holder = self._newest()
            if number != seen:
                self._require(holder)
        while not self._create(number + 1, self._me):
            number, holder = self._newest()
            self._require(holder)

    def _require(self, holder: dict[str, Any]) -> None:
        if not self._may_follow(holder):
            fix = f"follow it: diloco status --follow {self._where}; stop it: diloco stop; or --set run.folder=OTHER"
            raise InputError([Problem("run.folder", self._where, f"{_who(holder)} works on this run", fix)])

    def keep(self, lost: Callable[[str], None] = lambda why: None) -> None:
        """Renew the lock in a thread until it is let go or lost; `lost` is told why, in that thread."""

        def renew() -> None:
            while not self._stopped.wait(RENEW_S):
                with contextlib.suppress(OSError):  # the store is away, for everybody
                    number, holder = self._newest()
                    if holder != self._me:
                        lost(f"{_who(holder)} works on this run now")
                        return
                    self._create(number + 1, self._me)

        self._thread = thread("run-lock", renew, lambda error: lost(f"the lock cannot be renewed: {error!r}"))

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def held(self) -> bool:
        """Whether this process has the lock, as far as can be seen."""
        try:
            return self._newest()[1] == self._me
        except OSError:
            return False

    def release(self) -> None:
        """Let the lock go, if this process has it."""
        self.stop()
        if self.held:
            with contextlib.suppress(OSError):  # another has to watch it then
                self._create(self._newest()[0] + 1, FREE)

    def _newest(self) -> tuple[int, dict[str, Any]]:
        """The newest number and what it says; 0 and free where there is none. Raises OSError."""
        for _ in range(LOOKS_MAX):
            if not (numbers := self._numbers()):
                return 0, FREE
            try:
                return numbers[-1], {**FREE, **json.loads(self._objects.read(_name(numbers[-1])))}
            except FileNotFoundError:
                continue  # newer ones came, and this one went
            except (ValueError, TypeError):
                return numbers[-1], {"session": None}  # nobody's that can be named
        raise OSError(f"{self._objects!r}: what is listed in {FOLDER} cannot be read")

    def _numbers(self) -> list[int]:
        names = (name.rpartition("/")[2] for name in self._objects.names(FOLDER))
        return sorted(int(name) for name in names if name.isdigit())

    def _create(self, number: int, content: dict[str, Any]) -> bool:
        """Whether this is now the newest number. Old ones go, so one that comes late may find its place free again."""
        try:
            self._objects.create(_name(number), [json.dumps(content).encode()])
        except FileExistsError:
            if json.loads(self._objects.read(_name(number))) != content:  # else its first request was answered late
                return False
        numbers = self._numbers()
        for old in numbers[:-KEPT]:
            self._objects.remove(_name(old))
        return numbers[-1] == number

    def _may_follow(self, holder: dict[str, Any]) -> bool:
        if holder["session"] in ("", self._session):
            return True
        here = bool(holder.get("boot")) and holder.get("boot") == self._me["boot"]
        return here and _started(holder["pid"]) not in (holder["started"], UNKNOWN)


def _name(number: int) -> str:
    return f"{FOLDER}/{number:09d}"


def _who(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on host {holder['host']}" if "pid" in holder else "another process"


def _boot() -> str:
    """What processes share that see each other by their numbers: this boot of the host, and its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process of this host started, in ticks since the boot; empty once it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except OSError:
        return UNKNOWN if psutil.pid_exists(pid) else ""
