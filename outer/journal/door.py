"""Objects behind a door: the folder of another host over TLS, for processes that can only open HTTPS connections.

    PUT    /NAME?digest=D&size=N&part=P&at=A   keep a part: 202, or 201 once the object is created of all its parts
    GET    /NAME?digest=D&size=N&part=P        the offsets of the parts that the door does not have
    GET    /NAME?wait=S   Range: bytes=A-B     a range, once the object is there
    GET    /PREFIX?list=names, ?list=folders   {name: bytes} directly under the prefix; the names of its folders
    DELETE /NAME

An error is the name of its errno and a message in JSON, and is raised here as that OSError. Large objects travel in
parts over parallel connections: a lost packet slows only one of them, and a lost connection costs only its part.
Connections are kept. The token and the certificate's fingerprint come from the environment of each process alone, so
no spec, recipe, log or message has them. orchestrator/regions/door.py is the other side.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

import xxhash

T = TypeVar("T")

INVITATION = "DILOCO_DOOR"  # environment variable: REGION:SECRET:FINGERPRINT, as `diloco invite` prints it
NAME = re.compile(r"(?!.{1001})[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,200})*")
SECRET = re.compile(r"([a-z0-9][a-z0-9-]{0,62}):([A-Za-z0-9_-]{43}):([0-9a-f]{64})")
PART = 4 * 2**20  # bytes of a request at most
LEAST = 128 * 2**10  # of a part but the last, and of a read's first range; between two looks at the clock
STREAMS = 16  # connections of one call
STALE_S = 60.0  # after which the door may have closed an idle connection
ROUNDS = 3  # of sending what the door says that it lacks
PAUSES_S = (0.0, 0.5, *18 * (1.0,))  # from one attempt to the next at least: over half a minute where none is heard
CONNECT_S = 2.0  # for a connection; TCP itself would try again after 1, 3, 7, 15, 31 s, long after a cut has healed
UNHEARD_S = 5.0  # until an idle host, or what was sent, is acknowledged and taken: otherwise the connection is lost
SILENCE_S = 20.0  # without a byte in either direction: likewise
CALL_S = 60.0
SLOWEST = 128 * 2**10  # bytes/s: a call that moves bytes may take this much longer
BUSY = 503  # status: nothing was changed, and the same request may do later


class Answer(NamedTuple):
    status: int
    content: bytes
    size: int = 0  # bytes of the whole object
    tag: str = ""  # another for another object of the same name


class Door:
    """A store at https://HOST:PORT/FOLDER. Its methods block, and may be called from any thread."""

    retries = True

    def __init__(self, uri: str) -> None:
        """Sends no request. Raises ValueError."""
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()
        self.uri, split = uri.rstrip("/"), urlsplit(uri)
        self._base = split.path.strip("/")
        if not split.hostname or "@" in split.netloc or split.query or split.fragment:
            raise ValueError(f"{uri.rpartition('@')[2]}: a door is https://HOST:PORT or https://HOST:PORT/FOLDER")
        if self._base and not NAME.fullmatch(self._base):
            raise ValueError(f"{uri}: the folder may have letters, digits, `-`, `.`, `_` and `/`")
        self._host, self._port = split.hostname, split.port or 443

    def __del__(self) -> None:
        self._drop()

    def __repr__(self) -> str:
        return self.uri

    def __reduce__(self) -> tuple[type[Door], tuple[str]]:
        return Door, (self.uri,)  # neither connections nor secrets are pickled

    # -------------------------------------------------------------- the port

    def create(self, name: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        content = memoryview(b"".join(parts))
        size, give_up_at = len(content), _deadline(len(content))
        step = self._step(size)
        about = f"?digest={xxhash.xxh3_128_hexdigest(content)}&size={size}&part={step}"

        def put(at: int) -> int:
            return self._ask("PUT", name, f"{about}&at={at}", give_up_at, body=content[at : at + step]).status

        def lacking() -> list[int]:
            return list(json.loads(self._ask("GET", name, about, give_up_at).content))

        for again in range(ROUNDS):
            ask = again or size > 4 * STREAMS * PART  # which may be there in part, since an earlier call
            done = self._each(put, (lacking() or [0]) if ask else range(0, max(size, 1), step))
            if 201 in done:
                return
            for error in done:
                if isinstance(error, BaseException):
                    raise error
        raise OSError(errno.EIO, "the door keeps the parts, and does not make the object", f"{self.uri}/{name}")

    def read(self, name: str, wait_s: float = 0.0, size: int = 0) -> bytes:
        """The whole object; waits for its creation for up to `wait_s`. Raises FileNotFoundError, OSError. If it has
        `size` bytes, as it should, and those are not many, its parts are read at once.
        """
        size = size if 0 < size <= STREAMS * PART else 0
        step, give_up_at = self._step(size), _deadline(size, wait_s)
        parts: list[Any] = self._each(lambda at: self._range(name, at, step, give_up_at, wait_s), range(0, size, step))
        for part in parts:
            if isinstance(part, OSError):
                raise part
        if parts and {(part.size, part.tag) for part in parts} == {(size, parts[0].tag)}:
            return b"".join(part.content for part in parts)
        parts, whole = [], dict[int, bytes]()
        self._load(name, whole.__setitem__, wait_s)
        return b"".join(content for _, content in sorted(whole.items()))

    def fetch(self, name: str, target: Path, seconds: float) -> None:
        """Copy an object to a file. `seconds`: its deadline."""
        with open(target, "wb") as file:
            self._load(name, lambda at, content: os.pwrite(file.fileno(), content, at), seconds=seconds)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """The bytes of the objects directly under `prefix`, by their names without it."""
        return dict(self._list(prefix, "names"))

    def names(self, prefix: str) -> list[str]:
        return sorted(f"{prefix}/{name}" for name in self.sizes(prefix))

    def folders(self, prefix: str) -> list[str]:
        return list(self._list(prefix, "folders"))

    def remove(self, name: str) -> None:
        self._ask("DELETE", name, "", _deadline())

    # -------------------------------------------------------------- parts

    def _step(self, size: int) -> int:  # bytes of a part
        return min(PART, max(LEAST, -(-size // STREAMS)))

    def _list(self, prefix: str, kind: str) -> Any:
        return json.loads(self._ask("GET", prefix, f"?list={kind}", _deadline()).content)

    def _load(
        self, name: str, keep: Callable[[int, bytes], object], wait_s: float = 0.0, seconds: float | None = None
    ) -> None:
        """Give `keep` the parts of an object with their offsets, the first one first."""
        first = self._range(name, 0, LEAST, _deadline(LEAST, wait_s), wait_s)
        keep(0, first.content)
        left = first.size - LEAST
        step = self._step(left)
        give_up_at = _deadline(left) if seconds is None else time.monotonic() + seconds

        def get(at: int) -> None:
            keep(at, self._range(name, at, step, give_up_at, tag=first.tag).content)

        for error in self._each(get, range(LEAST, first.size, step)):
            if error is not None:
                raise error

    def _range(
        self, name: str, begin: int, length: int, give_up_at: float, wait_s: float = 0.0, tag: str = ""
    ) -> Answer:
        headers = {"Range": f"bytes={begin}-{begin + length - 1}"} | ({"If-Match": tag} if tag else {})
        answer = self._ask("GET", name, f"?wait={wait_s:.3f}", give_up_at, headers, wait_s=wait_s)
        if len(answer.content) != max(0, min(length, answer.size - begin)):
            raise OSError(errno.EBADMSG, "the door sent another number of bytes than was asked for", str(self))
        return answer

    @staticmethod
    def _each(work: Callable[[int], T], places: Iterable[int]) -> list[T | OSError]:
        """Return what each gives or raises, in order. After an error no further one begins."""
        failed = threading.Event()

        def guarded(at: int) -> T | OSError:
            if failed.is_set():
                return OSError(errno.ECANCELED, "another part failed")
            try:
                return work(at)
            except OSError as error:
                failed.set()
                return error

        places = list(places)
        if len(places) < 2:
            return [guarded(at) for at in places]
        with ThreadPoolExecutor(min(STREAMS, len(places)), "door") as pool:
            done = list(pool.map(guarded, places))
        # The first that failed is why others did not begin.
        return sorted(done, key=lambda each: isinstance(each, OSError) and each.errno == errno.ECANCELED)

    # -------------------------------------------------------------- requests

    def _ask(
        self,
        method: str,
        name: str,
        query: str,
        give_up_at: float,
        headers: dict[str, str] | None = None,
        body: memoryview | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        """Send a request, again where its connection is lost or the door is busy. Raises OSError, as it names it."""
        path = "/".join(filter(None, (self._base, name)))
        for pause in (*PAUSES_S, None):
            tried_at = time.monotonic()
            try:
                with self._connection() as connection:
                    answer = connection.ask(method, f"/{path}{query}", headers or {}, body, give_up_at, wait_s)
            except PermissionError:
                raise  # it is another door, or this process has no invitation
            except (OSError, http.client.HTTPException) as error:
                self._drop()  # what lay idle is likely to be lost too
                if pause is None or time.monotonic() >= give_up_at:
                    message = f"the door does not answer ({type(error).__name__}: {error})"
                    raise OSError(errno.EHOSTUNREACH, message, self.uri) from error
            else:
                if answer.status < 400:
                    return answer
                if answer.status != BUSY or pause is None:
                    _raise(answer, f"{self.uri}/{name}")
            time.sleep(max(0.0, tried_at + pause - time.monotonic()))
        raise AssertionError("each attempt returns or raises")

    def _drop(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[_Connection]:
        """A kept connection, the last one used, or a new one. It is kept again if nothing was raised."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found and time.monotonic() - found.used_at > STALE_S:
            found.close()  # it connects anew
            self._drop()  # the others have lain there longer
        connection = found or _Connection(self._host, self._port, self.uri)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            connection.used_at = time.monotonic()
            if connection.sock is not None and len(self._idle) < 4 * STREAMS:
                self._idle.append(connection)
                return
        connection.close()


class _Connection(http.client.HTTPSConnection):
    """A connection to the one holder of the key whose certificate the invitation names."""

    def __init__(self, host: str, port: int, uri: str) -> None:
        found = SECRET.fullmatch(os.environ.get(INVITATION, "").strip())
        if found is None:
            why = "is not set" if not os.environ.get(INVITATION) else "is not as it was printed"
            message = f"{INVITATION} {why} in this process's environment; `diloco invite REGION FOLDER` prints it"
            raise PermissionError(errno.EACCES, message, uri)
        self._uri, self._fingerprint, self.used_at = uri, found[3], time.monotonic()
        self._authorization = f"Bearer {found[1]}:{found[2]}"
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE  # the fingerprint says more
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        super().__init__(host, port, context=self._tls)

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), CONNECT_S)
        plain.settimeout(SILENCE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        over_long_links(plain)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        found = hashlib.sha256(self.sock.getpeercert(True) or b"").hexdigest()
        if found != self._fingerprint:
            self.close()
            message = f"it has another certificate ({found}) than this process's invitation names ({self._fingerprint})"
            raise PermissionError(errno.EACCES, message, self._uri)

    def ask(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: memoryview | None,
        give_up_at: float,
        wait_s: float,
    ) -> Answer:
        """Send a request and read its answer. Raises OSError, HTTPException: the connection is of no use then."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(SILENCE_S + wait_s)
        size = 0 if body is None else len(body)
        headers = {"Authorization": self._authorization, "Content-Length": str(size), **headers}
        self.request(method, target, headers=headers, body=None if body is None else _pieces(body, give_up_at))
        with self.getresponse() as response:
            content = bytearray()
            while piece := response.read(LEAST):
                content += piece
                _check(give_up_at)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            total = (response.getheader("Content-Range") or "/0").rpartition("/")[2]
            return Answer(response.status, bytes(content), int(total), response.getheader("ETag") or "")


def over_long_links(connection: socket.socket) -> None:
    """A host that vanishes without a word is found so within `UNHEARD_S`, and TCP does not wait ever longer for it.
    By BBR, where the kernel has it, it sends on at its rate after a pause or a loss. Of a listener: all it accepts.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * UNHEARD_S))


def _pieces(body: memoryview, give_up_at: float) -> Iterator[memoryview]:
    for at in range(0, len(body), LEAST):
        _check(give_up_at)
        yield body[at : at + LEAST]


def _check(give_up_at: float) -> None:
    if time.monotonic() > give_up_at:
        raise TimeoutError("not within the deadline of the call")


def _deadline(size: int = 0, wait_s: float = 0.0) -> float:
    return time.monotonic() + CALL_S + wait_s + size / SLOWEST


def _raise(answer: Answer, place: str) -> NoReturn:
    try:
        said = json.loads(answer.content)
        number, message = getattr(errno, said["error"]), str(said["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        number, message = errno.EPROTO, f"what answers is no door: status {answer.status}"
    raise OSError(number, message, place)
