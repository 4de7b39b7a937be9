"""Durable objects: files in a folder, another host's folder through its door, or object storage through obstore.

An object is created completely or not at all, by one creator only, and never changed; a second creator gets
FileExistsError. Epochs, the journal and checkpoints rely on this guarantee alone.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from outer.journal.door import Door

Bytes = bytes | bytearray | memoryview

REQUEST_S = 20.0  # seconds without a byte of an answer before a request is repeated
CONNECT_S = 5.0
RETRIES = 2  # of a request; callers repeat the call if they need more
CALL_S = 60.0  # deadline for a request that moves no bulk data
READ_S = 3600.0  # for one that reads an object
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
    """Open the store at a path or URI; https:// is a door. Raises ValueError for a URI of no known kind."""
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
        self.require()
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
    """Objects in a bucket of S3, Google or Azure, through obstore. Settings and secrets are the environment's."""

    retries = True

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._clients: dict[tuple[int, bool], Any] = {}

    def __repr__(self) -> str:
        return self.uri

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return Remote, (self.uri,)  # connections are not pickled

    def open(self, seconds: float | None = None, reads: bool = False) -> Any:
        """A client whose requests last as long, or twice; one that `reads` notices sooner that nothing comes.

        Sends no request. Raises ValueError for a URI of another kind, and for missing settings.
        """
        from obstore import exceptions, store

        within = math.ceil(math.log2(CALL_S if seconds is None else seconds))
        if (within, reads) not in self._clients:
            limits = {"timeout": 2.0**within, "connect_timeout": CONNECT_S}
            limits |= {"read_timeout": REQUEST_S} if reads else {}  # which an upload, too, would have to keep
            client: Any = {name: timedelta(seconds=limit) for name, limit in limits.items()} | {"allow_http": True}
            try:
                made = store.from_url(self.uri, client_options=client, retry_config={"max_retries": RETRIES})
            except exceptions.BaseError as error:
                raise ValueError(f"{self.uri}: {_first_line(error)}") from error
            self._clients[within, reads] = made
        return self._clients[within, reads]

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Every failure becomes an OSError."""
        from obstore import exceptions

        try:
            yield
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(f"{self.uri}: {_first_line(error)}") from error
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(f"{self.uri}: {_first_line(error)}") from error
        except exceptions.BaseError as error:
            raise OSError(f"{self.uri}: {_first_line(error)}") from error

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        content = b"".join(parts)
        with self._asking():
            client = self.open(CALL_S + len(content) / SLOWEST)
            client.put(name, content, mode="create", use_multipart=False)

    def read(self, name: str) -> bytes:
        with self._asking():
            content: bytes = self.open(READ_S, reads=True).get(name).bytes().to_bytes()
            return content

    def fetch(self, name: str, target: Path, seconds: float) -> None:
        """Copy an object to a file. `seconds`: its deadline."""
        with self._asking(), target.open("wb") as file:
            for part in self.open(seconds, reads=True).get(name).stream():
                file.write(part)

    def sizes(self) -> dict[str, int]:
        """The bytes of the objects directly in the bucket or folder, by name."""
        return {each["path"]: each["size"] for each in self._listed("")["objects"]}

    def names(self, prefix: str) -> list[str]:
        return sorted(each["path"] for each in self._listed(prefix)["objects"])

    def folders(self, prefix: str) -> list[str]:
        return sorted(each.rpartition("/")[2] for each in self._listed(prefix)["common_prefixes"])

    def _listed(self, prefix: str) -> Any:
        with self._asking():
            return self.open().list_with_delimiter(prefix)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._asking():
            self.open().delete(name)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
