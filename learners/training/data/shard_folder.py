"""The files of a prepared folder of token shards: where they lie, or copied from object storage as they are needed.

Copies are kept on this host below DILOCO_DATA_CACHE, by default ~/.cache/diloco/data, in a folder named by the
manifest's digest. All processes of the host share them, and a copy is checked whole before anybody sees it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from learners.training.data import manifest as manifests
from learners.training.data.manifest import BLOCK_BYTES, changed
from outer.journal.object_store import CALL_S, SLOWEST, Folder, objects

CACHE = "DILOCO_DATA_CACHE"
LOOK_S = 0.1


class ShardFolder:
    """A prepared folder at a path or URI. Raises ValueError as `manifest.read`."""

    def __init__(self, path: str | None) -> None:
        self.manifest, self.digest = made, digest = manifests.read(path)
        place = objects(str(path))
        self._remote = None if isinstance(place, Folder) else place
        self._root = place.root if isinstance(place, Folder) else _cache() / digest
        self._files = {}  # by name: (bytes, SHA-256)
        for shard in (*made.train, *made.held_out):
            size = shard.tokens * made.itemsize
            self._files[shard.name] = size, shard.sha256
            self._files[shard.sums] = 8 * -(-size // BLOCK_BYTES), shard.sums_sha256
        self._tokenizer = made.tokenizer

    def file(self, name: str) -> Path:
        """Return the path of a file of the manifest on this host; copies it if need be. Raises OSError."""
        target = self._root / name
        if self._remote is None or target.exists():
            return target
        size, sha256 = self._files.get(name, (0, self._tokenizer.sha256 if self._tokenizer else ""))
        self._root.mkdir(parents=True, exist_ok=True)
        seconds = CALL_S + size / SLOWEST
        with open(self._root / f".{name}.lock", "w") as lock:
            _lock(lock, seconds, name)
            if not target.exists():
                draft = self._root / f".{name}.part"
                self._remote.fetch(name, draft, seconds)
                if changed(draft, sha256):
                    draft.unlink(missing_ok=True)
                    raise OSError(f"{name} in {self._remote} has changed since it was prepared")
                draft.replace(target)
        return target

    def problems(self) -> list[str]:
        """List files missing or of the wrong size at their origin, one line each; reads only the tokenizer."""
        if self._remote is not None:
            sizes = self._remote.sizes()
        else:
            sizes = {entry.name: entry.stat().st_size for entry in os.scandir(self._root) if entry.is_file()}
        found = []
        for name, (size, _) in self._files.items():
            if name not in sizes:
                found.append(f"{name} is missing")
            elif sizes[name] != size:
                found.append(f"{name} has {sizes[name]:,} bytes instead of {size:,}")
        if self._tokenizer is not None:
            try:
                found += changed(self.file(self._tokenizer.file), self._tokenizer.sha256)
            except OSError as error:
                found.append(f"{self._tokenizer.file} cannot be read: {error}")
        return found


def _cache() -> Path:
    return Path(os.environ.get(CACHE) or "~/.cache/diloco/data").expanduser().absolute()


def _lock(file: IO[str], seconds: float, name: str) -> None:
    """Wait until no other process of this host copies the file. Raises TimeoutError, an OSError."""
    give_up_at = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise TimeoutError(f"another process has been copying {name} for {seconds:.0f} s") from None
            time.sleep(LOOK_S)
