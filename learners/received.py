"""The versions that a learner has received: what the next difference is added to, and what its region gets from it."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Version(NamedTuple):
    """A fragment's published value."""

    version: int
    digest: str  # as outer.numeric.codec.digest
    theta: NDArray[np.float32]  # [n], read-only
    snapshot: int  # the newest that the syncer had begun when it sent this


class Received:
    """The newest version of each fragment, from one epoch of the syncer. Any thread may call it."""

    def __init__(self) -> None:
        self._newest: dict[int, Version] = {}
        self._lock = threading.Lock()

    def put(self, fragment: int, version: Version) -> None:
        """Keep it, if it is newer than what is here."""
        with self._lock:
            held = self._newest.get(fragment)
            if held is None or version.version > held.version:
                self._newest[fragment] = version

    def newest(self, fragment: int) -> Version | None:
        """What is here of a fragment."""
        return self._newest.get(fragment)

    def clear(self) -> None:
        """Another epoch serves, which may have lost versions that are here."""
        with self._lock:
            self._newest = {}
