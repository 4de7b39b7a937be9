"""A run's small files in the store of its journal: what is known of it where its folder cannot be reached.

    run/FILE/000000017    FILE's 17th content, created once; the newest counts, and is empty where FILE is gone

The orchestrator puts them there; commands that are given the store's URI read them.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from pathlib import Path

from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RunStore, user_cache
from outer.journal.object_store import Objects, objects

FOLDER = "run"
RECIPE, VERSIONS, STATUS = "config.toml", "versions.json", "status.json"
# In this order: by the status that says so, the run is over, and its seal and summary are there.
FILES = (VERSIONS, RECIPE, "seal.json", "summary.json", STATUS)
KEPT = 4  # contents of each file, for who has listed them and not yet read
LOOKS_MAX = 8  # for a content that is gone when it is read
ELSEWHERE = "store"  # a file: the URI of the store in which the log is, see orchestrator/eventlog/reader.py


class Publisher:
    """Puts the files of a run's folder into its store. One process of the run does so at a time."""

    def __init__(self, folder: RunStore, store: Objects) -> None:
        self._folder, self._store = folder, store
        self._alone = threading.Lock()
        self._known: dict[str, tuple[int, str]] = {}  # the newest content of each file, and its number

    def put(self) -> None:
        """Put what has changed. Raises OSError: call it again."""
        with self._alone:
            self._put()

    def _put(self) -> None:
        texts = {name: self._folder.read_text(name) or "" for name in FILES}
        if self._folder.read_text(RECIPE) is None:  # which a run always has
            raise OSError(f"{self._folder.root} is away")
        for name, text in texts.items():
            known = self._known.pop(name, None) or self._newest(name)
            self._known[name] = known if text == known[1] else self._next(name, known[0] + 1, text)

    def _next(self, name: str, number: int, text: str) -> tuple[int, str]:
        with contextlib.suppress(FileExistsError):  # of a request whose answer was lost, or of another orchestrator
            self._store.create(f"{FOLDER}/{name}/{number:09d}", [text.encode()])
            self._store.remove(f"{FOLDER}/{name}/{number - KEPT:09d}")
            return number, text
        return self._newest(name)

    def _newest(self, name: str) -> tuple[int, str]:
        for old in self._store.names(f"{FOLDER}/{name}")[:-KEPT]:  # left by a process that died
            self._store.remove(old)
        return newest(self._store, name)


def newest(store: Objects, name: str) -> tuple[int, str]:
    """The number and the content of a file; 0 and empty where there is none. Raises OSError, ValueError."""
    for _ in range(LOOKS_MAX):
        if not (names := store.names(f"{FOLDER}/{name}")):
            return 0, ""
        with contextlib.suppress(FileNotFoundError):  # newer ones came, and this one went
            return int(names[-1].rpartition("/")[2]), store.read(names[-1]).decode()
    raise OSError(f"{store!r}: what is listed in {FOLDER}/{name} cannot be read")


class StoredRun(RunStore):
    """A run by its store alone. Its folder, in the user's cache, has copies of the files; requests are refused."""

    def __init__(self, uri: str) -> None:
        """Raises InputError where no run is there, or where the store cannot be read."""
        super().__init__(user_cache() / "stores" / hashlib.sha256(uri.encode()).hexdigest()[:16])
        self.uri = uri
        try:
            self._objects = objects(uri)
            for name in FILES:
                self._copy(name)
            if self.path(RECIPE).exists():
                super().write_bytes(ELSEWHERE, uri.encode())
                return
        except (OSError, ValueError) as error:
            fix = "see that this machine can reach it, and has the credentials that it asks for"
            raise InputError([Problem("STORE", uri, f"cannot be read: {error}", fix)]) from error
        raise InputError([Problem("STORE", uri, "holds no run", "give the durability.store of a run that has begun")])

    def __str__(self) -> str:
        return self.uri

    def _copy(self, name: str) -> None:
        _, text = newest(self._objects, name)
        if text:
            super().write_bytes(name, text.encode())
        else:
            self.path(name).unlink(missing_ok=True)

    def read_text(self, name: str) -> str | None:
        """The file's newest content; where the store does not answer, what it said last."""
        if name in FILES:
            with contextlib.suppress(OSError):
                self._copy(name)
        return super().read_text(name)

    def write_bytes(self, name: str, content: bytes) -> None:
        fix = "give the run's folder, in the region where it was started"
        raise InputError([Problem("RUN", self.uri, "takes no requests: it is the store alone", fix)])


def stored(run: str) -> StoredRun | None:
    """The run of this store: a URI, or a folder that has none of the run's files but those put there."""
    if "://" in run and not run.startswith("file://"):
        return StoredRun(run)
    folder: Path = RunStore(run).root
    return StoredRun(str(folder)) if (folder / FOLDER / RECIPE).is_dir() and not (folder / RECIPE).exists() else None
