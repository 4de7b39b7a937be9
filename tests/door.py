"""A door in this process, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from orchestrator.regions.door import DoorServer
from orchestrator.regions.invitations import CONTROL
from outer.journal.door import INVITATION
from tests.waiting import DEADLINE_S


@contextlib.contextmanager
def opened(folder: Path, port: int = 0) -> Iterator[tuple[str, DoorServer]]:
    """(URI, server) of a door to a folder, served in a thread of its own."""
    began: Future[tuple[str, DoorServer, Callable[[], object]]] = Future()

    async def serve() -> None:
        server, loop, over = DoorServer(folder), asyncio.get_running_loop(), asyncio.Event()
        async with server.serving("127.0.0.1", port) as found:
            began.set_result((f"https://127.0.0.1:{found}", server, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    uri, server, end = began.result(DEADLINE_S)
    try:
        yield uri, server
    finally:
        end()
        thread.join(DEADLINE_S)


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Gives the URI of a door whose control token this process has."""
    with opened(tmp_path / "behind") as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        yield lambda: f"{uri}/run"
