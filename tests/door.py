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
def opened(folder: Path) -> Iterator[tuple[str, DoorServer]]:
    """(URI, server) of a door to a folder, served in a thread of its own."""
    began: Future[tuple[str, DoorServer]] = Future()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        server = DoorServer(folder)
        async with server.serving("127.0.0.1", 0) as port:
            began.set_result((f"https://127.0.0.1:{port}", server))
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield began.result(DEADLINE_S)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(DEADLINE_S)
        loop.close()


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Gives the URI of a door whose control token this process has."""
    with opened(tmp_path / "behind") as (uri, server):
        monkeypatch.setenv(INVITATION, server.invitations.invite(CONTROL))
        yield lambda: f"{uri}/run"
