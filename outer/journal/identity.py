"""The names of a journal's objects, and the identity that ties them to one run.

    journal/identity       written once, by the first epoch
    journal/000000000012   the group at position 12

Every group carries the identity too.
"""

from __future__ import annotations

import contextlib

from outer.journal.framing import Damaged, pack, unpack
from outer.journal.object_store import Bytes, Objects

IDENTITY = "identity"


def object_key(folder: str, position: int) -> str:
    return f"{folder}/{position:012d}"


def positions(store: Objects, folder: str) -> list[int]:
    """The positions of all groups in the store, sorted."""
    names = (name.rpartition("/")[2] for name in store.names(folder))
    return sorted(int(name) for name in names if name.isdecimal())


def identity_object(run: str) -> list[Bytes]:
    """The content of the object journal/identity."""
    return [*pack({"run": run}, [])[0]]


def identity(store: Objects, folder: str) -> str | None:
    """The identity of the run whose journal this is; None if there is no journal yet, or none that can be read.

    If the identity object is missing or damaged, the newest intact group provides it.
    """
    return inspect(store, folder)[0]


def inspect(store: Objects, folder: str) -> tuple[str | None, str]:
    """(identity or None, what is wrong with the identity object or "")."""
    try:
        return _read_run(store, f"{folder}/{IDENTITY}"), ""
    except FileNotFoundError:
        wrong = "it is missing"
    except Damaged as error:
        wrong = str(error)
    there = positions(store, folder)
    for position in reversed(there):
        with contextlib.suppress(Damaged, FileNotFoundError):
            return _read_run(store, object_key(folder, position)), f"{IDENTITY}: {wrong}"
    return None, f"{IDENTITY}: {wrong}" if there or wrong != "it is missing" else ""


def _read_run(store: Objects, name: str) -> str:
    header, _, _ = unpack(store.read(name))
    if not isinstance(run := header.get("run"), str):
        raise Damaged("it names no run")
    return run
