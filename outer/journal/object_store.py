"""Where bytes outlive processes: a folder, or object storage through fsspec. Nothing is ever changed in place.

An object is created whole or not at all, and by one creator only; whoever comes second is told so. That one promise
is all that epochs, journals and checkpoints are built on. Knows nothing of what is in the objects.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

Bytes = bytes | bytearray | memoryview

REQUEST_S = 20.0  # object storage says nothing for so long, and the request is made again
CONNECT_S = 5.0
RETRIES = 2  # of a request, by botocore
ATTEMPTS = 2  # at that, by s3fs; whoever needs more asks again
CALL_S = 60.0  # for all of it, where no bulk is moved
SLOWEST = 4 * 2**20  # bytes/s; creating an object may take as much longer as it has bytes
PROBE = "probe"


class Unconditional(Exception):
    """This store lets two creators have the same object, and so two syncers commit."""


class Objects(Protocol):
    """Names are paths of letters, digits, `-`, `.`, `_` and `/`; a part that begins with a dot is nobody's."""

    retries: bool  # a request may be made more than once before `create` returns

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        """Make it durable. Raises FileExistsError, and changes nothing, where there is one; OSError: ask again."""
        ...

    def read(self, name: str) -> bytes:
        """All of it. Raises FileNotFoundError."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Of the objects right under `prefix`, a path, in order; as they are after every creation that returned."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """The names, without it, of what lies right under `prefix` and holds objects itself, in order."""
        ...

    def remove(self, name: str) -> None:
        """No matter whether it is there."""
        ...


def objects(uri: str | Path) -> Objects:
    """The store at a path or URI. Raises ValueError for one that fsspec does not know."""
    text = str(uri)
    scheme, _, rest = text.partition("://")
    if not rest:
        return Folder(Path(text).expanduser().absolute())
    if scheme == "file":
        return Folder(Path(unquote(urlsplit(text).path)))
    remote = Remote(text)
    remote.open()
    return remote


def absolute(uri: str) -> str:
    """The same store, from whatever folder it is looked for."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


def prove(store: Objects) -> None:
    """Raise Unconditional for a store on which a second creator is not refused."""
    name = f"{PROBE}/{uuid.uuid4().hex}"
    store.create(name, [b"first"])
    try:
        store.create(name, [b"second"])
    except FileExistsError:
        return
    finally:
        store.remove(name)
    raise Unconditional(
        "this store does not refuse to create an object that is there already (conditional creation), so two syncers "
        "could commit at once; use another, or keep the journal in a folder of one host"
    )


class Folder:
    """Objects as files. Creation is a hard link, which the file system grants once."""

    retries = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def __repr__(self) -> str:
        return str(self.root)

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with open(draft, "xb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, target)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                raise Unconditional(f"{self.root}: this file system has no hard links; keep it on another") from error
        finally:
            draft.unlink(missing_ok=True)
        _settle(target.parent)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def names(self, prefix: str) -> list[str]:
        folder = self.root / prefix
        with contextlib.suppress(FileNotFoundError):
            return sorted(
                f"{prefix}/{entry.name}"
                for entry in os.scandir(folder)
                if not entry.name.startswith(".") and entry.is_file()
            )
        return []

    def folders(self, prefix: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self.root / prefix) if entry.is_dir() and _holds(entry))
        return []

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)


def _holds(folder: os.DirEntry[str]) -> bool:
    """Whether there is any object in it; of what was removed, folders stay."""
    return any(not name.startswith(".") for _, _, files in os.walk(folder) for name in files)


def _settle(folder: Path) -> None:
    """That a name is in its folder outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Remote:
    """Objects of a bucket, by fsspec. Settings and secrets come from the environment, as its packages read them."""

    retries = True

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._opened: tuple[Any, str] | None = None

    def __repr__(self) -> str:
        return self.uri

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return Remote, (self.uri,)  # connections do not travel

    def open(self) -> tuple[Any, str]:
        """(File system, path in it); asks nothing of the store. Raises ValueError where there is none for it."""
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
        """Raises OSError for whatever goes wrong: packages have errors of their own for a store that is away."""
        from fsspec.asyn import sync

        fs, _ = self.open()
        try:
            if seconds is not None and fs.async_impl:  # a request that is never read has no deadline of its own
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

    def names(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        try:
            found = self._ask("ls", path, detail=True)  # `find` with a depth takes an error for an empty folder
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
    """Whether a condition did not hold. s3fs knows it only by words that not every store says."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")
