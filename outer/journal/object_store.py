"""Durable objects: files in a folder, another host's folder through its door, or object storage through fsspec.

An object is created completely or not at all, by one creator only, and never changed; a second creator gets
FileExistsError. Epochs, the journal and checkpoints rely on this guarantee alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from outer.journal.door import Door

Bytes = bytes | bytearray | memoryview

REQUEST_S = 20.0  # seconds without an answer before a request is repeated
CONNECT_S = 5.0
RETRIES = 2  # by botocore, for each request
ATTEMPTS = 2  # by s3fs; callers repeat the call if they need more
CALL_S = 60.0  # deadline for a call that moves no bulk data
SLOWEST = 4 * 2**20  # bytes/s; creating an object may take this much longer
PROBE = "probe"
DRAFT = re.compile(r"\..+\.[0-9a-f]{32}")  # of an object or file that is being written
DRAFT_S = 3600.0  # a draft of this age has no writer any more


class Unconditional(Exception):
    """This store lets two creators create the same object, so two syncers could commit."""


class StoreAway(Exception):
    """The store does not answer, or takes nothing: what needs it can be done once it is back."""


@contextlib.contextmanager
def needing_the_store() -> Iterator[None]:
    """Raises StoreAway for OSError, but for FileExistsError: that object is there."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreAway(f"{type(error).__name__}: {error}") from error


class Objects(Protocol):
    """An object store. Names are paths of letters, digits, `-`, `.`, `_` and `/`; no component begins with a dot."""

    retries: bool  # whether `create` may repeat its request before it returns

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        """Create a durable object. Raises FileExistsError, and changes nothing, if it exists; OSError: call again."""
        ...

    def read(self, name: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""
        ...

    def names(self, prefix: str) -> list[str]:
        """The sorted names of the objects directly under `prefix`, including every object whose creation returned."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """The sorted names, without `prefix`, of the folders directly under it that contain objects."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        ...


def objects(uri: str | Path) -> Folder | Door | Remote:
    """Open the store at a path or URI; https:// is a door. Raises ValueError for a URI that fsspec does not know."""
    text = str(uri)
    scheme, _, rest = text.partition("://")
    if not rest:
        return Folder(Path(text).expanduser().absolute())
    if scheme == "file":
        return Folder(Path(unquote(urlsplit(text).path)))
    if scheme == "https":
        return Door(text)
    remote = Remote(text)
    remote.open()
    return remote


def absolute(uri: str) -> str:
    """The URI, or the absolute path, of a store."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


def prove(store: Objects) -> None:
    """Raises Unconditional if the store does not refuse a second creator of an object."""
    name = f"{PROBE}/{uuid.uuid4().hex}"
    store.create(name, [b"first"])
    try:
        store.create(name, [b"second"])
    except FileExistsError:
        return
    finally:
        store.remove(name)
    raise Unconditional(
        "this store does not support conditional creation (it creates an object that exists already), so two syncers "
        "could commit at once; use another store, or keep the journal in a folder of one host"
    )


class Folder:
    """Objects as files. Creation is a hard link, which succeeds only once."""

    retries = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self._was_there = root.is_dir()

    def __repr__(self) -> str:
        return str(self.root)

    def require(self) -> None:
        """Raises OSError where the folder was there and is not: it is away, and neither empty nor to be made anew."""
        if self._was_there and not self.root.is_dir():
            raise OSError(errno.ESTALE, "the folder was there and is not; is it mounted?", str(self.root))

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        draft = self.draft(name)
        try:
            with open(draft, "xb") as file:
                for part in parts:
                    file.write(part)
            self.publish(draft, name)
        finally:
            draft.unlink(missing_ok=True)

    def draft(self, name: str) -> Path:
        """Return the path of a new file, beside the object's place, for `publish`."""
        target = self.root / name
        self.require()
        _make_folder(target.parent)
        self._was_there = True
        return target.with_name(f".{target.name}.{uuid.uuid4().hex}")

    def publish(self, draft: Path, name: str) -> None:
        """Create an object of what is in a draft, which nobody may write into again. Raises as `create`."""
        target = self.root / name
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(draft, target)
        except OSError as error:
            if error.errno == errno.EEXIST:
                sync_folder(target.parent)  # an earlier attempt may have failed in this alone
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise Unconditional(f"{self.root}: this file system has no hard links; use another one") from error
        sync_folder(target.parent)

    def read(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            self.require()
            raise

    def names(self, prefix: str) -> list[str]:
        folder = self.root / prefix
        with contextlib.suppress(FileNotFoundError):
            return sorted(
                f"{prefix}/{entry.name}"
                for entry in os.scandir(folder)
                if not entry.name.startswith(".") and entry.is_file()
            )
        self.require()
        return []

    def folders(self, prefix: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self.root / prefix) if entry.is_dir() and _holds(entry))
        return []

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)


def _holds(folder: os.DirEntry[str]) -> bool:
    """Whether the folder contains an object. Removing objects leaves empty folders."""
    shown = not folder.name.startswith(".")
    return shown and any(not name.startswith(".") for _, _, files in os.walk(folder) for name in files)


def sweep(store: Objects, prefix: str = "", older_s: float = 0.0) -> None:
    """Remove the drafts under `prefix` that killed creators have left. Raises OSError.

    Give `older_s` where others create objects at present; one whose draft goes gets an OSError.
    """
    if isinstance(store, Folder):
        for path in (store.root / prefix).rglob(".*"):
            with contextlib.suppress(FileNotFoundError):
                if DRAFT.fullmatch(path.name) and time.time() - path.stat().st_mtime >= older_s:
                    path.unlink()


def _make_folder(folder: Path) -> None:
    """Make a folder whose name survives a power loss."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Remote:
    """Objects in a bucket, through fsspec. Its packages read settings and secrets from the environment."""

    retries = True

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._opened: tuple[Any, str] | None = None

    def __repr__(self) -> str:
        return self.uri

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return Remote, (self.uri,)  # connections are not pickled

    def open(self) -> tuple[Any, str]:
        """(file system, path in it). Sends no request. Raises ValueError if fsspec has no file system for the URI."""
        if self._opened is None:
            import fsspec

            scheme = self.uri.partition("://")[0]
            deadlines = {"connect_timeout": CONNECT_S, "read_timeout": REQUEST_S, "retries": {"max_attempts": RETRIES}}
            options = {"config_kwargs": deadlines} if scheme in ("s3", "s3a") else {}
            try:
                self._opened = fsspec.core.url_to_fs(self.uri, use_listings_cache=False, **options)
            except (ValueError, ImportError) as error:
                raise ValueError(f"{self.uri}: {error}") from error
            if options:
                self._opened[0].retries = ATTEMPTS
        return self._opened

    def _ask(self, method: str, *arguments: Any, seconds: float | None = CALL_S, **options: Any) -> Any:
        """Call a method of the file system. Every failure becomes an OSError: packages raise various errors."""
        from fsspec.asyn import sync

        fs, _ = self.open()
        try:
            if seconds is not None and fs.async_impl:  # a request without an answer has no deadline of its own
                return sync(fs.loop, getattr(fs, f"_{method}"), *arguments, timeout=seconds, **options)
            return getattr(fs, method)(*arguments, **options)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.uri}: {type(error).__name__}: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self.open()[1]}/{name}"

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        content = b"".join(parts)
        seconds = CALL_S + len(content) / SLOWEST
        try:
            self._ask("pipe_file", self._path(name), content, mode="create", seconds=seconds)
        except FileExistsError:
            raise
        except OSError as error:
            if _refused(error):
                raise FileExistsError(f"{self.uri}: {name} is there already") from error
            raise

    def read(self, name: str) -> bytes:
        content: bytes = self._ask("cat_file", self._path(name), seconds=None)
        return content

    def fetch(self, name: str, target: Path, seconds: float) -> None:
        """Copy an object to a file. `seconds`: its deadline."""
        self._ask("get_file", self._path(name), str(target), seconds=seconds)

    def sizes(self) -> dict[str, int]:
        """The bytes of the objects directly in the bucket or folder, by name."""
        found = self._ask("ls", self.open()[1], detail=True)
        return {each["name"].rpartition("/")[2]: int(each["size"]) for each in found if each["type"] == "file"}

    def names(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        try:
            found = self._ask("ls", path, detail=True)  # `find` with a depth hides errors as empty folders
        except FileNotFoundError:
            return []
        names = (each["name"] for each in found if each["type"] == "file")
        return sorted(f"{prefix}/{name[len(path) + 1 :]}" for name in names if name.startswith(f"{path}/"))

    def folders(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        found = self._ask("find", path)
        return sorted({each[len(path) + 1 :].split("/")[0] for each in found if each.count("/", len(path) + 1)})

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm_file", self._path(name))


def _refused(error: OSError) -> bool:
    """Whether a conditional creation was refused. s3fs recognises this only by texts that not every store sends."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")
