"""What a journal's objects are called, and which run's journal it is.

    journal/identity       written once, by the first epoch
    journal/000000000012   the group at position 12

Every group carries the identity too. Knows nothing else of what is in them.
"""

from __future__ import annotations

import contextlib

from outer.journal.framing import Damaged, pack, unpack
from outer.journal.object_store import Bytes, Objects

IDENTITY = "identity"


def object_key(folder: str, position: int) -> str:
    return f"{folder}/{position:012d}"


def positions(store: Objects, folder: str) -> list[int]:
    """Of all groups that are there, in order."""
    names = (name.rpartition("/")[2] for name in store.names(folder))
    return sorted(int(name) for name in names if name.isdecimal())


def identity_object(run: str) -> list[Bytes]:
    """The content of the object that says so."""
    return [*pack({"run": run}, [])[0]]


def identity(store: Objects, folder: str) -> str | None:
    """What tells this run's journal from every other; None where there is none yet, or none that can be known.

    Without it every group would be another run's, so where it is not whole the newest whole group says it.
    """
    return inspect(store, folder)[0]


def inspect(store: Objects, folder: str) -> tuple[str | None, str]:
    """(The identity as far as it is known, what is wrong with the object that says it)."""
    try:
        return _said(store, f"{folder}/{IDENTITY}"), ""
    except FileNotFoundError:
        wrong = "it is missing"
    except Damaged as error:
        wrong = str(error)
    there = positions(store, folder)
    for position in reversed(there):
        with contextlib.suppress(Damaged, FileNotFoundError):
            return _said(store, object_key(folder, position)), f"{IDENTITY}: {wrong}"
    return None, f"{IDENTITY}: {wrong}" if there or wrong != "it is missing" else ""


def _said(store: Objects, name: str) -> str:
    header, _, _ = unpack(store.read(name))
    if not isinstance(run := header.get("run"), str):
        raise Damaged("it is of another form")
    return run
