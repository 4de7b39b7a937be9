"""Objects in memory: the store of a simulated run, which outlives its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from outer.journal.object_store import Bytes


class StoreBroken(Exception):
    """An error that no client of a store foresees."""


class MemoryObjects:
    """The port outer.journal.object_store.Objects. This one never fails."""

    retries = False

    def __init__(self) -> None:
        self._folders: defaultdict[str, dict[str, bytes]] = defaultdict(dict)  # by folder and name

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        folder, _, last = name.rpartition("/")
        if last in self._folders[folder]:
            raise FileExistsError(name)
        self._folders[folder][last] = b"".join(parts)

    def read(self, name: str) -> bytes:
        folder, _, last = name.rpartition("/")
        try:
            return self._folders[folder][last]
        except KeyError:
            raise FileNotFoundError(name) from None

    def names(self, prefix: str) -> list[str]:
        return sorted(f"{prefix}/{name}" for name in self._folders.get(prefix, ()))

    def folders(self, prefix: str) -> list[str]:
        inside = (folder.removeprefix(f"{prefix}/") for folder, names in self._folders.items() if names)
        return sorted({each.split("/")[0] for each in inside if not prefix or f"{prefix}/{each}" in self._folders})

    def remove(self, name: str) -> None:
        folder, _, last = name.rpartition("/")
        self._folders[folder].pop(last, None)
