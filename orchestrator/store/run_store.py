"""The run store: the folder with everything of a run that outlives its processes.

Writes are atomic. Epochs and incarnations are granted by exclusive file creation, so no two processes get the same.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store import run_lock
from outer.journal.object_store import sync_folder

RUNS = Path("runs")  # where runs are kept that name no folder of their own
GRANTS_KEPT = 256  # files of each kind and holder, the newest


class RunStore:
    """One run's folder, given as a path or a `file://` URI. Raises InputError for any other scheme."""

    uri = ""  # of the store of its journal, where that is known and not as its recipe says

    def __init__(self, uri: str | Path) -> None:
        self.root = _folder(str(uri))
        self._runs = RUNS.absolute()  # a job that ends may find its working directory gone

    @classmethod
    def named(cls, name: str) -> RunStore:
        """The default store of the run called `name`."""
        return cls(RUNS / name)

    def __repr__(self) -> str:
        return f"RunStore({str(self.root)!r})"

    def __str__(self) -> str:
        return str(self.root)

    @property
    def name(self) -> str:
        """What names this run in a command: its name, if it is kept in runs/, else its folder or URI."""
        return self.root.name if self.root.parent == self._runs else str(self)

    @property
    def exists(self) -> bool:
        return self.root.is_dir()

    @property
    def empty(self) -> bool:
        return not self.exists or all(entry.name == run_lock.FOLDER for entry in self.root.iterdir())

    def create(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def set_aside(self) -> Path:
        """Rename the folder to NAME.1, or the next number that is free. Returns the new path. Raises OSError."""
        for number in count(1):
            if not (aside := self.root.with_name(f"{self.root.name}.{number}")).exists():
                return self.root.rename(aside)
        raise AssertionError("unreachable")

    def path(self, name: str) -> Path:
        """Where the file of this name is, or would be."""
        return self.root / name

    def write_text(self, name: str, text: str) -> None:
        """Replace a file at once: a reader sees the old content or the new, never a part."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """The same, with bytes."""
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with open(draft, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> None:
        """Strict JSON, written atomically. Raises ValueError for a number that is not finite."""
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def read_text(self, name: str) -> str | None:
        """The file's content, or None where there is no such file."""
        try:
            return self.path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> Any:
        """The value that was written, or None where there is no such file."""
        text = self.read_text(name)
        return None if text is None else json.loads(text)

    def grant(self, kind: str, who: str) -> int:
        """The next number, from 1, of this `kind` (epoch or incarnation) for this holder; never granted twice.

        The process that creates the file owns the number. Files of old numbers go, so a process that was slow to create
        its file may find its number free again: it owns that only if it is not so old by then.
        """
        folder = self.root / "grants" / kind / who
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            number = self.granted(kind, who) + 1
            try:
                open(folder / f"{number:06d}", "x").close()
                sync_folder(folder)
            except FileExistsError:
                continue
            numbers = _numbers(folder)
            if number > numbers[-1] - GRANTS_KEPT:
                for old in numbers[:-GRANTS_KEPT]:
                    (folder / f"{old:06d}").unlink(missing_ok=True)
                return number

    def holders(self, kind: str) -> list[str]:
        """The names of all holders that were ever granted a number of this kind."""
        folder = self.root / "grants" / kind
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []

    def granted(self, kind: str, who: str) -> int:
        """The newest number that was granted; 0 where none was."""
        return max(_numbers(self.root / "grants" / kind / who), default=0)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(entry.name) for entry in folder.iterdir()) if folder.is_dir() else []


def user_cache() -> Path:
    """This user's cache of this program. Raises RuntimeError without a home folder."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one is to be ignored, by its own standard
    return (named if named.is_absolute() else Path.home() / ".cache") / "decoupled-diloco"


def known_runs(folder: Path = RUNS) -> list[str]:
    """The names of the runs kept in this folder."""
    return sorted(entry.parent.name for entry in folder.glob("*/status.json"))


def _folder(uri: str) -> Path:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri)
    if scheme is None:
        return Path(uri).expanduser().absolute()
    parts = urlsplit(uri)
    if scheme.group(1).lower() == "file" and parts.netloc in ("", "localhost") and parts.path:
        return Path(unquote(parts.path)).absolute()
    raise InputError(
        [
            Problem(
                "run.folder",
                uri,
                "object storage is not supported yet: a run is kept in a folder, given as a path or file:///PATH",
                "give a folder that every node of the run can reach, for example one on a shared file system",
            )
        ]
    )


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Work in a folder alone: hold a lock on this file of it, until the block or the process ends.

    Raises BlockingIOError if another process holds it.
    """
    with open(file, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"another process works in {file.parent}") from None
        yield
