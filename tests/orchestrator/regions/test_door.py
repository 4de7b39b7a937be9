"""The door: what it refuses, what a lost connection costs, and what a slow or hostile client cannot do."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import xxhash

from orchestrator.regions import door as doors
from orchestrator.regions.door import DoorServer, Upload
from orchestrator.regions.invitations import CONTROL, Invitations
from outer.journal import door as client
from outer.journal.door import INVITATION, LEAST, Door
from outer.journal.object_store import Folder, Unconditional, objects
from tests.door import opened
from tests.waiting import DEADLINE_S, until

ROOT = Path(__file__).parents[3]
LARGE = bytes(range(256)) * 2**14  # 4 MiB


@pytest.fixture
def behind(tmp_path: Path) -> Path:
    return tmp_path / "behind" / "run"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Two streams, and parts of the least size: their number in LARGE."""
    monkeypatch.setattr(client, "PART", LEAST)
    monkeypatch.setattr(client, "STREAMS", 2)
    return len(LARGE) // LEAST


def files(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, drafts included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def about(content: bytes, **changed: Any) -> str:
    digest = xxhash.xxh3_128_hexdigest(content)
    given = {"digest": digest, "size": len(content), "part": LEAST, "at": 0} | changed
    return "?" + "&".join(f"{key}={value}" for key, value in given.items())


def ask(store: Door, method: str, name: str, query: str = "", body: bytes | None = None) -> client.Answer:
    """A request as no client of ours would make it."""
    content = None if body is None else memoryview(body)
    return store._ask(method, name, query, client._deadline(), body=content)


def refused(number: int) -> Any:
    """Expects an OSError of this errno."""
    return pytest.raises(OSError, check=lambda error: error.errno == number)


# ------------------------------------------------------------------ objects


def test_large_objects_come_in_parts(door: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, content = Door(door()), LARGE + b"and a part that is not full"
    store.create("a/large", [content[:100], memoryview(content)[100:]])
    for size in (0, len(content), len(content) - 1, 2 * len(content), 10**400, -1):
        assert store.read("a/large", 0.0, size) == content
    assert store.sizes("a") == {"large": len(content)}
    store.fetch("a/large", tmp_path / "copy", 60.0)
    assert (tmp_path / "copy").read_bytes() == content
    together, one = threading.Barrier(client.STREAMS), Door._range
    monkeypatch.setattr(Door, "_range", lambda *given, **more: (together.wait(DEADLINE_S), one(*given, **more))[1])
    assert store.read("a/large", 0.0, len(content)) == content


@pytest.mark.parametrize("alike", [True, False])
def test_of_two_creators_whose_parts_come_at_once_one_succeeds(
    door: Callable[[], str], behind: Path, alike: bool, small_parts: int
) -> None:
    """Two that create the same bytes share what they have sent, and still only one has created it."""
    contents = [LARGE, LARGE if alike else LARGE[::-1]]
    for number in range(3):
        barrier, name = threading.Barrier(2), f"race/{number}"

        def create(content: bytes, name: str = name, barrier: threading.Barrier = barrier) -> bool:
            store = Door(door())
            barrier.wait(DEADLINE_S)
            try:
                store.create(name, [content])
                return True
            except FileExistsError:
                return False

        with ThreadPoolExecutor(2) as pool:
            won = list(pool.map(create, contents))
        assert sum(won) == 1
        assert (behind / name).read_bytes() == contents[won.index(True)]
    assert len(files(behind)) == 3, "and no draft stays"


def test_a_second_creator_is_told_before_it_has_sent_everything(
    door: Callable[[], str], small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Door(door()).create("a", [b"first"])
    kept = count_parts(monkeypatch)
    with pytest.raises(FileExistsError):
        Door(door()).create("a", [LARGE])
    assert len(kept) == 0
    assert Door(door()).read("a") == b"first"


def count_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the parts that the door is given from now on."""
    kept, keep = list[int](), Upload.keep
    monkeypatch.setattr(Upload, "keep", lambda self, at, content: (kept.append(at), keep(self, at, content))[1])
    return kept


@pytest.mark.parametrize("through", [True, False])
def test_a_waiting_read_is_woken_by_its_own_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: bool
) -> None:
    """The door knows of what is created through it, and looks for what is not. Here no wait runs out."""
    looked, is_file, wanted = Counter[str](), Path.is_file, ("one", "two", "three")
    monkeypatch.setattr(Path, "is_file", lambda self: (looked.update([self.name]), is_file(self))[1])
    monkeypatch.setattr(doors, "LOOK_S", 2 * DEADLINE_S if through else 0.01)
    monkeypatch.setattr(doors, "WAIT_MAX_S", 2 * DEADLINE_S)
    monkeypatch.setattr(doors, "REQUEST_S", 3 * DEADLINE_S)
    with opened(tmp_path) as (uri, server), ThreadPoolExecutor(len(wanted)) as pool:
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        store = Door(f"{uri}/run")
        reads = [pool.submit(store.read, name, 2 * DEADLINE_S) for name in wanted]
        until(lambda: len(server._awaited) == len(wanted), "all wait")
        for name in (*map(str, range(8)), *wanted):
            (store if through else Folder(tmp_path / "run")).create(name, [b"there"])
        assert [read.result(DEADLINE_S) for read in reads] == [b"there"] * len(wanted)
    if through:
        assert {looked[name] for name in wanted} == {2}, "before it waits, and to be read"


def test_a_read_that_waits_in_vain(door: Callable[[], str]) -> None:
    with pytest.raises(FileNotFoundError):
        Door(door()).read("never", 0.3)
    with refused(errno.EFBIG):
        Door(door()).read("never", 10 * doors.WAIT_MAX_S)


@pytest.mark.parametrize(("stale_s", "connections"), [(DEADLINE_S, 1), (-1.0, 3)])
def test_an_idle_connection_is_used_until_the_door_may_have_closed_it(
    door: Callable[[], str], monkeypatch: pytest.MonkeyPatch, stale_s: float, connections: int
) -> None:
    made, connect = [], client._Connection.connect
    monkeypatch.setattr(client._Connection, "connect", lambda self: (made.append(self), connect(self))[1])
    monkeypatch.setattr(client, "STALE_S", stale_s)
    store = Door(door())
    for _ in range(3):
        store.names("")
    assert len(made) == connections


# ------------------------------------------------------------------ lost connections


class Cutting:
    """A relay to a door. It cuts each connection after so many bytes have come from the client."""

    def __init__(self, uri: str, bytes_max: int) -> None:
        split = urlsplit(uri)
        assert split.hostname is not None and split.port is not None
        self._target, self.bytes_max, self.cuts = (split.hostname, split.port), bytes_max, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.uri = f"https://127.0.0.1:{self._listener.getsockname()[1]}{split.path}"

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            other = socket.create_connection(self._target)
            self._sockets += [one, other]
            for pair, limit in (((one, other), self.bytes_max), ((other, one), 2**62)):
                self._threads.append(threading.Thread(target=self._carry, args=(*pair, limit)))
                self._threads[-1].start()

    def _carry(self, one: socket.socket, other: socket.socket, limit: int) -> None:
        with contextlib.suppress(OSError):
            while limit > 0 and (content := one.recv(min(limit, 2**14))):
                other.sendall(content)
                limit -= len(content)
            self.cuts += limit <= 0
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut every connection, and let none in."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for each in self._sockets:
            each.close()


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], Cutting]]:
    made = list[Cutting]()
    monkeypatch.setattr(client, "PAUSES_S", (0.0, 0.0, 0.0))

    def make(uri: str, bytes_max: int) -> Cutting:
        made.append(Cutting(uri, bytes_max))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_cut_connection_costs_its_part_alone(
    door: Callable[[], str], cutting: Callable[[str, int], Cutting], small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection lasts for four parts and a half."""
    relay, kept = cutting(door(), 4 * LEAST + LEAST // 2), count_parts(monkeypatch)
    Door(relay.uri).create("a", [LARGE])
    assert Door(door()).read("a") == LARGE
    assert relay.cuts > 0
    assert len(kept) <= small_parts + relay.cuts, "of a part the door may have kept it, and not said so"


def test_what_was_sent_before_a_call_failed_is_not_sent_again_by_the_next(
    door: Callable[[], str],
    behind: Path,
    cutting: Callable[[str, int], Cutting],
    small_parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay, kept = cutting(door(), 2**62), count_parts(monkeypatch)
    keep = Upload.keep

    def cut_after(self: Upload, at: int, content: bytes) -> bool:
        if len(kept) >= small_parts // 2:
            relay.cut()
            raise ConnectionError("the link is cut here")
        return keep(self, at, content)

    with monkeypatch.context() as patch:
        patch.setattr(Upload, "keep", cut_after)
        with pytest.raises(OSError):
            Door(relay.uri).create("a", [LARGE])
    assert not (behind / "a").exists()
    before = len(kept)
    Door(door()).create("a", [LARGE])
    assert Door(door()).read("a") == LARGE
    assert len(kept) - before == small_parts - before > 0


def test_parts_that_a_door_forgot_when_it_was_started_anew_are_sent_again(
    tmp_path: Path, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        kept, keep = list[int](), Upload.keep

        def forget(self: Upload, at: int, content: bytes) -> bool:
            kept.append(at)
            if len(kept) == small_parts // 2:
                server._uploads = {}
            return keep(self, at, content)

        monkeypatch.setattr(Upload, "keep", forget)
        Door(uri).create("a", [LARGE])
        assert Door(uri).read("a") == LARGE
        assert small_parts < len(kept) < 2 * small_parts


def test_a_client_goes_on_with_a_door_that_was_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        store = Door(uri)
        store.create("a", [LARGE])
    with pytest.raises(OSError, match="the door does not answer"):
        store.read("a")
    with opened(tmp_path, urlsplit(uri).port or 0):
        assert store.read("a") == LARGE


# ------------------------------------------------------------------ who may come in


def test_only_the_newest_token_of_an_invited_region_opens_the_door_with_this_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as (uri, server):
        old, good = server.invitations.invite(CONTROL), server.invitations.invite(CONTROL)
        region, secret, fingerprint = good.split(":")
        before = files(tmp_path)
        wrong = {
            "": "DILOCO_DOOR is not set",
            f"{region}:{secret}": "DILOCO_DOOR is not as it was printed",
            old: "not the newest token of region control",
            f"mars:{secret}:{fingerprint}": "no region mars is invited",
            f"{region}:{secret}:{'0' * 64}": "another certificate",
        }
        for invitation, words in wrong.items():
            monkeypatch.setenv(INVITATION, invitation)
            for method, arguments in (
                ("create", ("a", [b"1"])),
                ("read", ("a",)),
                ("names", ("a",)),
                ("remove", ("a",)),
            ):
                with pytest.raises(PermissionError, match=words) as caught:
                    getattr(Door(uri), method)(*arguments)
                assert secret not in str(caught.value)
        assert files(tmp_path) == before
        monkeypatch.setenv(INVITATION, good)
        Door(uri).create("a", [b"1"])
        assert Door(uri).read("a") == b"1"


def test_a_request_reaches_no_server_with_another_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands where the door stood gets no token."""
    with opened(tmp_path / "theirs") as (uri, server):
        heard = list[str]()
        monkeypatch.setattr(server.invitations, "region", heard.append)
        monkeypatch.setenv(INVITATION, Invitations(tmp_path / "ours").invite(CONTROL))
        with pytest.raises(PermissionError, match="another certificate"):
            Door(uri).read("a")
        assert heard == []


def test_a_region_reads_everything_creates_its_learners_parts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        Door(uri).create("run/journal/000000000001", [b"group"])
        monkeypatch.setenv(INVITATION, server.invitations.invite("eu"))
        store = Door(f"{uri}/run")
        assert store.read("journal/000000000001") == b"group" and store.names("journal") and store.folders("")
        store.create("checkpoints/000007/learner-eu-0.1", [LARGE])
        before = files(tmp_path)
        for name in (
            "journal/000000000002",
            "log/a",
            "checkpoints/000007/manifest",
            "checkpoints/000007/syncer",
            "a.1",
        ):
            for content in (b"forged", LARGE):
                with pytest.raises(PermissionError, match="region eu may not create this: it may read everything,"):
                    store.create(name, [content])
        for name in ("journal/000000000001", "checkpoints/000007/learner-eu-0.1"):
            with pytest.raises(PermissionError, match="region eu may not remove this"):
                store.remove(name)
        assert files(tmp_path) == before


def test_no_secret_is_in_a_pickled_store_its_name_or_its_attributes(door: Callable[[], str]) -> None:
    store, secret = objects(door()), os.environ[INVITATION].split(":")[1].encode()
    store.create("a", [b"1"])
    for told in (pickle.dumps(store), repr(store).encode(), repr({**vars(store), "_idle": ()}).encode()):
        assert secret not in told
    with pytest.raises(ValueError) as caught:
        objects(door().replace("https://", "https://eu:hidden@"))
    assert "hidden" not in str(caught.value)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "name",
    [
        "../a",
        "a/../../b",
        ".door/certificate",
        "a/.b",
        "a//b",
        "/etc/passwd",
        "%2e%2e/a",
        "a%00",
        "a\\b",
        "",
        "a" * 2000,
    ],
)
def test_a_name_that_escapes_is_refused_and_nothing_is_written(
    tmp_path: Path, name: str, door: Callable[[], str]
) -> None:
    store = Door(door().removesuffix("/run"))
    before = files(tmp_path)
    for method, query, body in (("PUT", about(b"1"), b"1"), ("GET", "", None), ("DELETE", "", None)):
        with refused(errno.EINVAL):
            ask(store, method, name, query, body)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({"digest": "0" * 32}, errno.EBADMSG),
        ({"digest": "../../../../../../../../../../etc"}, errno.EINVAL),
        ({"size": 2}, errno.EINVAL),
        ({"size": 2**40}, errno.EFBIG),
        ({"size": -1}, errno.EINVAL),
        ({"size": "nan"}, errno.EINVAL),
        ({"at": 1}, errno.EINVAL),
        ({"at": LEAST}, errno.EINVAL),
        ({"part": 1}, errno.EINVAL),
    ],
)
def test_half_an_object_or_one_that_is_too_large_is_refused_and_nothing_stays(
    tmp_path: Path, changed: dict[str, Any], number: int, door: Callable[[], str]
) -> None:
    before = files(tmp_path)
    with refused(number):
        ask(Door(door()), "PUT", "a", about(b"content", **changed), b"content")
    assert files(tmp_path) == before
    Door(door()).create("a", [b"content"])


def test_a_part_that_comes_with_other_bytes_makes_no_object(door: Callable[[], str], behind: Path) -> None:
    """Each part has its length, and the whole has another digest: its creator can begin anew."""
    store, content = Door(door()), bytes(2 * LEAST)
    assert ask(store, "PUT", "a", about(content), content[:LEAST]).status == 202
    with refused(errno.EBADMSG):
        ask(store, "PUT", "a", about(content, at=LEAST), b"1" * LEAST)
    assert files(behind) == {}
    store.create("a", [content])
    assert store.read("a") == content


def test_a_request_larger_than_a_part_is_refused(door: Callable[[], str]) -> None:
    with refused(errno.EFBIG):
        Door(door())._range("a", 0, client.PART + 1, math.inf)


def test_a_full_disk_is_named_and_leaves_nothing(
    door: Callable[[], str], behind: Path, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = Door(door()), Upload._write

    def full(self: Upload, at: int, content: bytes) -> None:
        if at >= len(LARGE) // 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, at, content)

    with monkeypatch.context() as patch:
        patch.setattr(Upload, "_write", full)
        with refused(errno.ENOSPC):
            store.create("a", [LARGE])
    assert "a" not in files(behind), "a part that came late may wait for the others"
    store.create("a", [LARGE])
    assert files(behind) == {"a": LARGE}


@pytest.mark.parametrize("size", [0, len(LARGE)])
def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(
    door: Callable[[], str], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    store, read, other = Door(door()), Door._range, threading.Event()
    store.create("a", [LARGE])

    def replaced(self: Door, name: str, begin: int, *rest: Any, **more: Any) -> client.Answer:
        assert begin == 0 or other.wait(DEADLINE_S)
        answer = read(self, name, begin, *rest, **more)
        if begin == 0:
            self.remove("a")
            self.create("a", [LARGE[::-1]])
            other.set()
        return answer

    monkeypatch.setattr(Door, "_range", replaced)
    with refused(errno.ESTALE):
        store.read("a", 0.0, size)


def test_an_address_that_is_no_doors_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for uri in ("https:///run", "https://host/../run", "https://host/run?x=1", "https://host/run#x"):
        with pytest.raises(ValueError, match=r"a door is https://HOST:PORT|the folder may have"):
            objects(uri)


def test_a_folder_that_cannot_create_once_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    Invitations(tmp_path)
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(Unconditional, match="no hard links"):
        DoorServer(tmp_path)


# ------------------------------------------------------------------ slow clients, and many


def raw(uri: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    split = urlsplit(uri)
    return context.wrap_socket(socket.create_connection((split.hostname or "", split.port or 0), DEADLINE_S))


def half_a_part(uri: str, invitation: str) -> ssl.SSLSocket:
    """A client that stops in the middle of a part."""
    connection = raw(uri)
    token = invitation.rpartition(":")[0]
    head = f"PUT /run/a{about(LARGE)} HTTP/1.1\r\nHost: door\r\nAuthorization: Bearer {token}\r\n"
    connection.sendall(f"{head}Content-Length: {LEAST}\r\n\r\n".encode() + bytes(LEAST // 2))
    return connection


def test_a_client_that_stops_is_cut_off_and_holds_its_own_regions_slots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "SLOTS", 2)
    monkeypatch.setattr(doors, "LEAST", 1000)
    with opened(tmp_path) as (uri, server):
        slow, invitation = server.invitations.invite("slow"), server.invitations.invite(CONTROL)
        monkeypatch.setenv(INVITATION, invitation)
        held = [half_a_part(uri, slow) for _ in range(4)]
        try:
            until(lambda: server._slots["slow"].locked(), "two of them hold both slots")
            Door(uri).create("run/a", [LARGE])
            assert Door(uri).read("run/a") == LARGE
            monkeypatch.setenv(INVITATION, slow)
            assert Door(uri).names("run") == ["run/a"], "a small request of the same region does not wait for them"
            held[0].close()
        finally:
            for each in held:
                each.close()
        until(lambda: not server._slots["slow"].locked(), "the slots are free again")


def test_a_request_that_does_not_end_loses_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "REQUEST_S", 0.2)
    with opened(tmp_path) as (uri, server):
        invitation = server.invitations.invite(CONTROL)
        before = files(tmp_path)
        with half_a_part(uri, invitation) as connection, contextlib.suppress(ConnectionError, ssl.SSLError):
            assert connection.recv(1) == b""
        assert files(tmp_path) == before


def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(client, "PAUSES_S", (0.0,))
    with opened(tmp_path) as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        held = [raw(uri), raw(uri)]
        with pytest.raises(OSError, match="the door does not answer"):
            Door(uri).folders("")
        for each in held:
            each.close()

        def again() -> bool:
            with contextlib.suppress(OSError):
                return Door(uri).folders("") == []
            return False

        until(again, "a connection is free again")


def test_what_nobody_goes_on_with_is_swept_and_one_region_cannot_begin_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES_S", ())
    monkeypatch.setattr(doors, "UPLOADS_MAX", 2)
    monkeypatch.setattr(doors, "SWEEP_S", 0.01)
    with opened(tmp_path) as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        for name in ("a", "b"):
            ask(Door(uri), "PUT", name, about(LARGE), LARGE[:LEAST])
        with refused(errno.EAGAIN):
            ask(Door(uri), "PUT", "c", about(LARGE), LARGE[:LEAST])
        assert len([name for name in files(tmp_path) if name.startswith((".a.", ".b."))]) == 2
        monkeypatch.setattr(doors, "UPLOAD_S", 0.0)
        until(lambda: not [name for name in files(tmp_path) if name.startswith((".a.", ".b."))], "they are swept")
        monkeypatch.setattr(doors, "UPLOAD_S", 900.0)
        Door(uri).create("c", [LARGE])


def test_a_host_that_answers_nothing_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is cut off: TCP itself would ask it again after ever longer waits, and find late that it is back."""
    monkeypatch.setattr(client, "PAUSES_S", (0.0,))
    with opened(tmp_path) as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        with Door(uri)._connection() as connection:
            connection.connect()
            patience_ms = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert patience_ms == 1000 * client.UNHEARD_S < 1000 * client.SILENCE_S
            assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        waited = list[float]()

        def unheard(address: tuple[str, int], timeout: float) -> socket.socket:
            waited.append(timeout)
            raise TimeoutError("timed out")

        monkeypatch.setattr(socket, "create_connection", unheard)
        with pytest.raises(OSError, match="the door does not answer"):
            Door(uri).folders("")
        assert waited == [client.CONNECT_S] * 2


# ------------------------------------------------------------------ the commands


def test_the_commands_print_what_a_region_needs_and_sigterm_ends_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diloco = [sys.executable, "-m", "orchestrator"]
    serve = [*diloco, "door", str(tmp_path), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        uri, *_, fingerprint = server.stdout.readline().split()
        assert f"diloco invite REGION {tmp_path}" in server.stdout.readline()
        done = subprocess.run([*diloco, "invite", CONTROL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
        comment, line = done.stdout.splitlines()
        assert f'durability.store = "{uri}/RUN"' in comment
        name, _, invitation = line.removeprefix("export ").partition("=")
        assert name == INVITATION and invitation.endswith(fingerprint)
        monkeypatch.setenv(name, invitation)
        Door(uri).create("a", [b"1"])
        server.terminate()
        assert server.wait(DEADLINE_S) == 0
        assert server.stderr is not None and server.stderr.read() == ""
    secret = invitation.split(":")[1]
    assert not any(secret.encode() in content for content in files(tmp_path).values()), "only its digest is kept"
    assert (tmp_path / ".door/regions/control").read_text() == hashlib.sha256(secret.encode()).hexdigest()
    assert (tmp_path / ".door").stat().st_mode & 0o077 == 0, "the key is for this user alone"
    done = subprocess.run([*diloco, "invite", "Not a name", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "give a name such as eu" in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serve = [
            sys.executable,
            "-m",
            "orchestrator",
            "door",
            str(tmp_path),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        done = subprocess.run(serve, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2 and f"127.0.0.1:{port}" in done.stderr and "cannot be used" in done.stderr
