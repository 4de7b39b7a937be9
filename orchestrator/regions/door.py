"""The door: objects of a folder over TLS, for regions that can only open HTTPS connections.

outer/journal/door.py says what a request is, and is the other side. A request gets its whole answer within REQUEST_S, a
slow client holds only the slots of its own region, and memory is bounded by those slots and the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from aiohttp import web

from orchestrator.regions.invitations import Invitations, require
from outer.background import Background, tell
from outer.journal.door import BUSY, LEAST, NAME, PART, over_long_links
from outer.journal.object_store import DRAFT_S, Folder, Unconditional, prove, sweep

T = TypeVar("T")

OBJECT_MAX = 2**36  # bytes: 64 GiB
REQUEST_S = 300.0  # for a request to arrive and its answer to be taken, a part included
WAIT_MAX_S = 60.0  # that a read may wait for its object
LOOK_S = 0.25  # between two looks for objects that come by another way than this door
IDLE_S = 75.0  # of a connection between two requests
HANDSHAKE_S = 10.0
CONNECTIONS_MAX = 1024
SLOTS = 32  # requests of one region, at a time, whose content is larger than LEAST
UPLOADS_MAX = 256  # objects of which some parts are there
UPLOAD_S = 900.0  # without a further part
SWEEP_S = 60.0
KNOWN_S = 1.0  # that a token is not looked up again
THREADS = 32  # for the folder
STATUSES = {errno.ENOENT: 404, errno.EEXIST: 409, errno.EACCES: 403, errno.EAGAIN: BUSY}
THERE = "it is there already"

Key = tuple[str, str, str, int, int]  # region, name, digest, size and bytes of a part


class Upload:
    """An object of which some parts are there, in a draft beside its place."""

    def __init__(self, folder: Folder, name: str, digest: str, size: int, part: int) -> None:
        self._folder, self._name, self._digest, self._size, self._part = folder, name, digest, size, part
        self._draft: Path | None = None
        self._kept: set[int] = set()
        self._ended: OSError | None = None  # why it takes no part any more
        self._lock = threading.Lock()  # nothing is written into a draft that has become an object
        self.touched = time.monotonic()

    def missing(self) -> list[int]:
        """The offsets of the parts that are not there. Raises FileExistsError."""
        if (self._folder.root / self._name).exists():
            raise FileExistsError(errno.EEXIST, THERE)
        return [at for at in range(0, max(self._size, 1), self._part) if at not in self._kept]

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def keep(self, at: int, content: bytes) -> bool:
        """Keep a part; whether the object is created with it. Raises OSError: then nothing of the object stays."""
        if at % self._part or not 0 <= at < max(self._size, 1) or len(content) != min(self._part, self._size - at):
            raise OSError(errno.EINVAL, f"{len(content)} bytes at {at} are no part of this object")
        with self._lock:
            if self._ended is not None:
                raise self._ended
            try:
                if at not in self._kept:
                    self._write(at, content)
                    self._kept.add(at)
                    self.touched = time.monotonic()
                if len(self._kept) < max(1, -(-self._size // self._part)):
                    return False
                self._publish()
                self._end(FileExistsError(errno.EEXIST, THERE))
                return True
            except Exception as error:
                self._end(error if isinstance(error, OSError) else OSError(errno.EIO, str(error)))
                raise

    def drop(self) -> None:
        """Take no part any more; nothing of the object stays."""
        with self._lock:
            self._end(OSError(errno.ETIMEDOUT, f"no part came for {UPLOAD_S:.0f} s"))

    def _end(self, why: OSError) -> None:
        self._ended = self._ended or why
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def _write(self, at: int, content: bytes) -> None:
        if self._draft is None:
            if (self._folder.root / self._name).exists():
                raise FileExistsError(errno.EEXIST, THERE)
            self._draft = self._folder.draft(self._name)
        with open(self._draft, "r+b" if self._kept else "xb") as file:
            file.seek(at)
            file.write(content)

    def _publish(self) -> None:
        assert self._draft is not None
        found = xxhash.xxh3_128()
        with open(self._draft, "rb") as file:
            while block := file.read(PART):
                found.update(block)
        if found.hexdigest() != self._digest or self._draft.stat().st_size != self._size:
            raise OSError(errno.EBADMSG, "the parts are not those of the object whose digest was given")
        self._folder.publish(self._draft, self._name)


class DoorServer:
    """Serves one folder. Raises Unconditional, OSError for one in which objects cannot be created once."""

    def __init__(self, folder: Path, failed: Callable[[BaseException], object] = tell) -> None:
        self._folder, self.invitations = Folder(folder), Invitations(folder)
        prove(self._folder)
        self._uploads: dict[Key, Upload] = {}
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(SLOTS))
        self._threads = ThreadPoolExecutor(THREADS, "door")
        self._known: dict[str, tuple[str, float]] = {}  # by token: its region, and until when this counts
        self._awaited: dict[asyncio.Event, str] = {}  # the names of objects that requests wait for
        self._failed, self._background = failed, Background(failed)

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve within the block; gives the port, which may be chosen by 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        quiet = logging.getLogger("diloco.door")
        quiet.setLevel(logging.CRITICAL)  # what a malformed request holds is not to be printed
        web_server = web.Server(
            self._answer, access_log=None, keepalive_timeout=IDLE_S, auto_decompress=False, logger=quiet
        )

        def accept() -> asyncio.Protocol:
            return web_server() if len(web_server.connections) < CONNECTIONS_MAX else _Full()

        server = await loop.create_server(
            accept, host, port, ssl=self.invitations.context(), ssl_handshake_timeout=HANDSHAKE_S, backlog=256
        )
        for listener in server.sockets:
            over_long_links(listener)
        for beside in (self._sweep(), self._look()):
            self._background.spawn(beside)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for task in self._background.running:
                task.cancel()
            server.close()
            for connection in web_server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await web_server.shutdown(1.0)
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given))

    # -------------------------------------------------------------- requests

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, within its deadline to the last byte; a client that is too slow loses its connection."""
        try:
            async with asyncio.timeout(REQUEST_S):
                try:
                    return await self._handle(request)
                except (OSError, Unconditional, asyncio.IncompleteReadError, web.RequestPayloadError) as error:
                    return await _sent(request, _refusal(error))
                except Exception as error:
                    self._failed(error)
                    return await _sent(request, _refusal(OSError(errno.EIO, f"in the door: {type(error).__name__}")))
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=BUSY)  # for nobody

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        region = await self._region(request.headers.get("Authorization", ""))
        name, query = request.raw_path.partition("?")[0].removeprefix("/"), request.query
        if not NAME.fullmatch(name) and not (name == "" and "list" in query):
            raise OSError(errno.EINVAL, "a name has letters, digits, `-`, `.`, `_` and `/`; no part begins with a dot")
        length = request.content_length or 0
        begin, end = _span(request.headers.get("Range"))
        if max(length, end - begin) > PART:
            raise OSError(errno.EFBIG, f"a request has at most {PART:,} bytes")
        reads = request.method == "GET" and not query.keys() & {"list", "digest"}
        if reads and (wait_s := _number(query, "wait", 0, WAIT_MAX_S)):
            await self._until_there(name, wait_s)
        # A small request does not wait for large ones.
        large = max(length, end - begin if reads else 0) > LEAST
        async with self._slots[region] if large else contextlib.nullcontext():
            content = await request.content.readexactly(length) if length else b""
            require(region, request.method, name)
            if reads:
                tag = request.headers.get("If-Match")
                return await _sent(request, await self._in_thread(_range, self._folder, name, begin, end, tag))
            return await _sent(request, await self._do(region, request.method, name, query, content))

    async def _region(self, authorization: str) -> str:
        """The region whose token this is. Raises PermissionError; for one withdrawn, after KNOWN_S at the latest."""
        region, until = self._known.get(authorization, ("", 0.0))
        if time.monotonic() >= until:
            self._known.pop(authorization, None)
            region = await self._in_thread(self.invitations.region, authorization)
            self._known[authorization] = region, time.monotonic() + KNOWN_S
        return region

    async def _do(self, region: str, method: str, name: str, query: Mapping[str, str], content: bytes) -> web.Response:
        if method == "GET" and "list" in query:
            listed = _names if query["list"] == "names" else Folder.folders
            return web.json_response(await self._in_thread(listed, self._folder, name))
        if method == "DELETE":
            await self._in_thread(self._folder.remove, name)
            return web.Response()
        if method not in ("GET", "PUT"):
            raise OSError(errno.EINVAL, f"a door has no {method}")
        key, upload = self._upload(region, name, query)
        if method == "GET":
            return web.json_response(await self._in_thread(upload.missing))
        self._uploads[key] = upload
        try:
            created = await self._in_thread(upload.keep, int(_number(query, "at", 0, OBJECT_MAX)), content)
        finally:
            if upload.ended and self._uploads.get(key) is upload:
                del self._uploads[key]
        if created:
            self._wake({name})
        return web.Response(status=201 if created else 202)

    def _upload(self, region: str, name: str, query: Mapping[str, str]) -> tuple[Key, Upload]:
        """The upload of which a request has a part, or a new one. Raises OSError."""
        size, part = int(_number(query, "size", 0, OBJECT_MAX)), int(_number(query, "part", LEAST, PART))
        if not re.fullmatch("[0-9a-f]{32}", digest := query.get("digest", "")):
            raise OSError(errno.EINVAL, "digest: must be the XXH3-128 of the object, 32 hexadecimal digits")
        key = region, name, digest, size, part
        if upload := self._uploads.get(key):
            return key, upload
        if sum(each[0] == region for each in self._uploads) >= UPLOADS_MAX:
            raise OSError(errno.EAGAIN, f"region {region} creates {UPLOADS_MAX} objects already")
        return key, Upload(self._folder, name, digest, size, part)

    async def _until_there(self, name: str, wait_s: float) -> None:
        """Wait until an object is there, or the time is over."""
        there = asyncio.Event()
        self._awaited[there] = name
        try:
            if not await self._in_thread((self._folder.root / name).is_file):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await there.wait()
        finally:
            del self._awaited[there]

    def _wake(self, names: Collection[str]) -> None:
        """Go on with the requests that wait for one of these objects."""
        for there, name in self._awaited.items():
            if name in names:
                there.set()

    async def _look(self) -> None:
        """Look for objects that come by another way than this door."""
        while True:
            await asyncio.sleep(LOOK_S)
            if names := set(self._awaited.values()):
                self._wake(await self._in_thread(_present, self._folder.root, names))

    async def _sweep(self) -> None:
        """Drop uploads that get no part any more, and drafts that killed processes have left."""
        swept_at = -DRAFT_S
        while True:
            with contextlib.suppress(OSError):  # the folder is away, for everybody
                if time.monotonic() - swept_at > DRAFT_S:
                    swept_at = time.monotonic()
                    await self._in_thread(partial(sweep, self._folder, older_s=DRAFT_S))
                for key, upload in list(self._uploads.items()):
                    if time.monotonic() - upload.touched > UPLOAD_S:
                        self._uploads.pop(key, None)
                        await self._in_thread(upload.drop)
            await asyncio.sleep(SWEEP_S)


class _Full(asyncio.Protocol):
    """Ends a connection that is one too many."""

    def connection_made(self, transport: Any) -> None:
        transport.abort()


async def _sent(request: web.BaseRequest, response: web.Response) -> web.Response:
    """Send an answer to its end, so that this counts into the request's deadline and slot."""
    await response.prepare(request)
    await response.write_eof()
    return response


def _refusal(error: Exception) -> web.Response:
    number = getattr(error, "errno", None) or errno.EIO
    message = (error.strerror if isinstance(error, OSError) else None) or str(error)
    record = {"error": errno.errorcode.get(number, "EIO"), "message": message}  # without paths of this host
    return web.json_response(record, status=STATUSES.get(number, 400))


def _number(query: Mapping[str, str], key: str, least: float, most: float) -> float:
    try:
        value = float(query.get(key, least))
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        number = errno.EFBIG if value > most else errno.EINVAL
        raise OSError(number, f"{key} = {query[key]!r}: must be from {least:,} to {most:,}")
    return value


def _span(given: str | None) -> tuple[int, int]:
    """(begin, end) of a Range header."""
    if given is None:
        return 0, PART
    if (found := re.fullmatch(r"bytes=(\d{1,15})-(\d{1,15})", given)) is None:
        raise OSError(errno.EINVAL, "Range: must be bytes=FIRST-LAST")
    return int(found[1]), int(found[2]) + 1


# ------------------------------------------------------------------ in a thread


def _range(folder: Folder, name: str, begin: int, end: int, tag: str | None) -> web.Response:
    if not (path := folder.root / name).is_file():
        folder.require()
        raise FileNotFoundError(errno.ENOENT, "it is not there")
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        ours = f'"{found.st_ino}-{found.st_mtime_ns}"'
        if tag not in (None, ours):
            raise OSError(errno.ESTALE, "it was removed, and another object has its name")
        content = os.pread(file.fileno(), max(0, end - begin), begin)
    place = f"{begin}-{begin + len(content) - 1}" if content else "*"
    return web.Response(
        body=content, status=206, headers={"Content-Range": f"bytes {place}/{found.st_size}", "ETag": ours}
    )


def _present(root: Path, names: Iterable[str]) -> set[str]:
    return {name for name in names if os.path.isfile(root / name)}  # which raises nothing where the folder is away


def _names(folder: Folder, prefix: str) -> dict[str, int]:
    found = {}
    for name in folder.names(prefix):
        with contextlib.suppress(FileNotFoundError):
            found[name.rpartition("/")[2]] = (folder.root / name.removeprefix("/")).stat().st_size
    return found
