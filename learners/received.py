"""The versions that a learner has received, for the other learners of its region."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Version(NamedTuple):
    """A fragment's published value."""

    version: int
    digest: str  # as outer.numeric.codec.digest
    theta: NDArray[np.float32]  # [n], read-only
    snapshot: int  # the newest that the syncer had begun when it sent this


class Received:
    """The newest version of each fragment. Any thread may call it."""

    def __init__(self) -> None:
        self._newest: dict[int, Version] = {}
        self._changed = threading.Condition()

    def put(self, fragment: int, version: Version) -> None:
        """Keep it, if it is newer than what is here."""
        with self._changed:
            held = self._newest.get(fragment)
            if held is None or version.version > held.version:
                self._newest[fragment] = version
                self._changed.notify_all()

    def newest(self, fragment: int) -> Version | None:
        """What is here of a fragment."""
        return self._newest.get(fragment)

    def get(self, fragment: int, wanted: int, deadline_s: float) -> Version | None:
        """This version or a newer one, waiting for at most `deadline_s` seconds; None if it has not come by then."""

        def there() -> Any:
            held = self._newest.get(fragment)
            return held if held is not None and held.version >= wanted else None

        with self._changed:
            found: Version | None = self._changed.wait_for(there, deadline_s)
            return found or None
