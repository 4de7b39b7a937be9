"""Stores of objects: one creator of each name, nothing half, and errors that say that one may ask again."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer.journal import checkpoint_parts as parts
from outer.journal import object_store as stores
from outer.journal.framing import Damaged
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder, Objects, Remote, Unconditional, objects, prove
from tests.waiting import DEADLINE_S


@pytest.fixture(params=["folder", "door", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return Folder(tmp_path) if request.param == "folder" else objects(request.getfixturevalue(request.param)())


def test_an_object_is_created_once_read_back_whole_and_gone_when_it_is_removed(store: Objects) -> None:
    for name in ("nothing", "a/b"):
        with pytest.raises(FileNotFoundError):
            store.read(name)
    assert store.names("nothing") == store.folders("nothing") == []
    store.create("a/b/c", [b"one", bytearray(b"two"), memoryview(b"three")])
    with pytest.raises(FileExistsError):
        store.create("a/b/c", [b"second"])
    assert store.read("a/b/c") == b"onetwothree"
    assert pickle.loads(pickle.dumps(store)).read("a/b/c") == b"onetwothree", "in another process too"
    store.create("empty", [])
    assert store.read("empty") == b""
    for _ in range(2):
        store.remove("a/b/c")
    assert store.names("a/b") == []
    with pytest.raises(FileNotFoundError):
        store.read("a/b/c")


def test_of_many_creators_at_once_one_succeeds(store: Objects) -> None:
    store.create("warm", [b""])
    for number in range(5):
        barrier, won = threading.Barrier(6), list[int]()

        def create(who: int, name: str = f"race/{number}", barrier: Any = barrier, won: list[int] = won) -> None:
            barrier.wait(10.0)
            try:
                store.create(name, [b"%d" % who * 1000])
                won.append(who)
            except FileExistsError:
                pass

        threads = [threading.Thread(target=create, args=(who,)) for who in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        assert len(won) == 1
        assert store.read(f"race/{number}") == b"%d" % won[0] * 1000


def test_names_are_of_what_lies_right_under_a_path_in_order(store: Objects) -> None:
    for name in ("a/2", "a/10", "a/1", "a/deep/1", "ab/1", "a.1"):
        store.create(name, [b""])
    assert store.names("a") == ["a/1", "a/10", "a/2"]
    assert store.names("a/deep") == ["a/deep/1"]


def test_folders_are_those_that_hold_something(store: Objects) -> None:
    for name in ("c/000001/manifest", "c/000002/deep/part", "c/file", "cc/000003/x", "c/000004/x"):
        store.create(name, [b""])
    assert store.folders("c") == ["000001", "000002", "000004"]
    store.remove("c/000004/x")
    assert store.folders("c") == ["000001", "000002"]


def test_a_folder_that_has_gone_is_away_and_not_empty(tmp_path: Path) -> None:
    store = Folder(tmp_path / "mount")
    store.create("a/b/c", [b""])
    store = Folder(tmp_path / "mount")
    (tmp_path / "mount").rename(tmp_path / "unmounted")
    for ask in (store.names, store.folders, store.read):
        with pytest.raises(OSError, match="is it mounted"):
            ask("a")


def test_a_store_that_refuses_is_proven_and_nothing_stays_of_it(store: Objects) -> None:
    prove(store)
    assert store.names(stores.PROBE) == [] and store.folders(stores.PROBE) == []


class Overwriting(Folder):
    """As object storage was before it had conditions."""

    def create(self, name: str, parts: Any) -> None:
        self.remove(name)
        super().create(name, parts)


def test_a_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unconditional, match="two syncers could commit at once"):
        prove(Overwriting(tmp_path))
    assert Overwriting(tmp_path).names(stores.PROBE) == []


def test_drafts_of_dead_processes_are_nobodys(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    store.create("a/b", [b"1"])
    (tmp_path / "a" / ".c.deadbeef").write_bytes(b"half")
    (tmp_path / "a" / "d").mkdir()
    (tmp_path / "a" / "d" / ".e.deadbeef").write_bytes(b"half")
    assert store.names("a") == ["a/b"] and store.folders("a") == []


@pytest.mark.parametrize("older_s", [0.0, stores.DRAFT_S])
def test_drafts_go_when_a_journal_opens_and_elsewhere_once_nobody_can_be_writing_them(
    tmp_path: Path, older_s: float
) -> None:
    store, drafts = Folder(tmp_path), [tmp_path / folder / f".c.{'0' * 32}" for folder in ("journal", "values/0007")]
    store.create("values/0007/.hidden", [b"no draft"])
    for draft in drafts:
        draft.parent.mkdir(exist_ok=True)
        draft.write_bytes(b"half")
    if older_s:
        stores.sweep(store, older_s=older_s)
        assert all(draft.exists() for draft in drafts)
        os.utime(drafts[1], (0.0, time.time() - older_s))
        stores.sweep(store, older_s=older_s)
        assert [draft.exists() for draft in drafts] == [True, False]
    else:
        StoredJournal(store, "journal", 1, 1).open()
        assert [draft.exists() for draft in drafts] == [False, True]
    assert store.read("values/0007/.hidden") == b"no draft"


@pytest.mark.parametrize("fails", [1, 3])
def test_an_object_counts_as_created_only_once_its_name_is_durable(
    tmp_path: Path, fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry finds it there: the link was made, and the folder's fsync failed."""
    store, synced, sync = Folder(tmp_path), list[int](), os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            synced.append(handle)
            if len(synced) <= fails:
                raise OSError(errno.EIO, "it cannot be said whether that is on the disk")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(fails):
        with pytest.raises(OSError, match="on the disk"):
            store.create("a", [b"1"])
    with pytest.raises(FileExistsError):
        store.create("a", [b"1"])
    assert len(synced) == fails + 1
    monkeypatch.setattr(os, "fsync", sync)
    store.create("b/c/d", [b"1"])
    assert store.read("b/c/d") == b"1"


def test_a_folder_that_takes_no_more_keeps_no_draft(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Folder(tmp_path).create("a", [b"1", "not bytes"])  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_a_folder_and_a_scheme_that_nobody_knows_is_refused_in_words() -> None:
    for uri in ("/a/b", "file:///a/b"):
        store = objects(uri)
        assert isinstance(store, Folder) and store.root == Path("/a/b")
    with pytest.raises(ValueError, match="nosuch"):
        objects("nosuch://bucket/run").names("a")


# ------------------------------------------------------------------ object storage that errs


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """A server that answers everything so; its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def handle_expect_100(self) -> bool:
            return True  # the answer comes at once, the content is never read

        def any(self) -> None:
            self.close_connection = True
            answer(self)

        do_GET = do_PUT = do_HEAD = do_DELETE = any

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(10.0)
        server.server_close()


@pytest.fixture
def remote(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Remote]:
    """A store behind a port; a request is made once, for speed."""

    def make(port: int) -> Remote:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        return Remote("s3://bucket/run")

    monkeypatch.setattr(stores, "RETRIES", 0)
    return make


REQUESTS: list[tuple[str, tuple[Any, ...]]] = [
    ("create", ("a", [b"1"])),
    ("read", ("a",)),
    ("names", ("a",)),
    ("folders", ("a",)),
    ("remove", ("a",)),
]


@pytest.mark.parametrize("code", [400, 403, 429, 500, 503])
def test_an_error_of_object_storage_is_an_oserror_and_never_an_empty_answer(
    remote: Callable[[int], Remote], code: int
) -> None:
    def refuse(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    with answering(refuse) as port:
        store = remote(port)
        for method, arguments in REQUESTS:
            with pytest.raises(OSError) as caught:
                getattr(store, method)(*arguments)
            assert not isinstance(caught.value, FileExistsError | FileNotFoundError), method


def test_object_storage_that_is_away_is_an_oserror(remote: Callable[[int], Remote]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = remote(port)
    for method, arguments in REQUESTS:
        with pytest.raises(OSError, match="error sending request"):
            getattr(store, method)(*arguments)


def test_object_storage_that_says_nothing_has_a_deadline(
    remote: Callable[[int], Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "CALL_S", 0.5)
    monkeypatch.setattr(stores, "REQUEST_S", 0.5)
    over = threading.Event()
    with answering(lambda _: over.wait(DEADLINE_S) and None) as port:
        store = remote(port)
        for method, arguments in REQUESTS:
            with pytest.raises(OSError):
                getattr(store, method)(*arguments)
        over.set()


REFUSAL = b"<Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>"


@pytest.mark.parametrize("content", [REFUSAL, b""], ids=["in words", "by the number"])
def test_a_refusal_that_does_not_name_the_condition_is_one(remote: Callable[[int], Remote], content: bytes) -> None:
    """Amazon's names it; other stores' do not."""

    def refuse(request: BaseHTTPRequestHandler) -> None:
        request.send_response(412)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    with answering(refuse) as port, pytest.raises(FileExistsError):
        remote(port).create("a", [b"1"])


# ------------------------------------------------------------------ parts


class Forgetful(Folder):
    """Creates, and loses its answer: a second attempt is told that it is there."""

    def create(self, name: str, parts: Any) -> None:
        super().create(name, parts)
        super().create(name, parts)


def test_a_part_that_is_there_because_we_wrote_it_is_written(tmp_path: Path) -> None:
    value = [np.arange(3)]
    described = parts.write(Forgetful(tmp_path), 1, "syncer", {"a": 1}, value)
    header, [array], seal = parts.read(Folder(tmp_path), 1, "syncer", described["seal"])
    assert (header["a"], array.tolist(), seal) == (1, [0, 1, 2], described["seal"])
    with pytest.raises(FileExistsError):
        parts.write(Folder(tmp_path), 1, "syncer", {"a": 2}, value)
    with pytest.raises(Damaged, match="missing"):
        parts.read(Folder(tmp_path), 2, "syncer")
