"""One process at a time works on a run: in a folder, in object storage, and whatever the hosts' clocks say."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.problems import InputError
from orchestrator.store import run_lock
from orchestrator.store.run_lock import FREE, KEPT, WATCH_S, RunLock
from outer.journal.object_store import Folder, Objects, objects
from tests.door import door as door
from tests.s3 import s3 as s3
from tests.waiting import until


@pytest.fixture(params=["folder", "door", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return Folder(tmp_path) if request.param == "folder" else objects(request.getfixturevalue(request.param)())


class Watch:
    """A watcher's clock, which its pauses move; `meanwhile` is called in each."""

    def __init__(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.now, self.meanwhile = 0.0, meanwhile

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def take(self, lock: RunLock) -> list[str]:
        said = list[str]()
        lock.take(said.append, lambda: self.now, self.pause)
        return said


def lock(store: Objects) -> RunLock:
    return RunLock(store, "runs/one")


def elsewhere(store: Objects, number: int, **changed: Any) -> None:
    """What another host's process creates, whose clock and process numbers say nothing here."""
    holder = {"session": "theirs", "host": "far", "boot": "another", "pid": 1, "started": "5"} | changed
    store.create(f"lock/{number:09d}", [json.dumps(holder).encode()])


def test_another_hosts_holder_that_renews_is_refused_however_old_its_files_are(store: Objects) -> None:
    elsewhere(store, 1)
    renewals = iter([lambda: None] * 3 + [lambda: elsewhere(store, 2)])
    watch = Watch(lambda: next(renewals)())
    with pytest.raises(InputError, match="process 1 on host far works on this run"):
        watch.take(lock(store))
    assert watch.now < WATCH_S


@pytest.mark.parametrize("content", [b'{"session": "theirs", "host": "far", "pid": 1}', b"torn"])
def test_a_lock_that_nobody_renews_is_taken_after_the_watch_alone(store: Objects, content: bytes) -> None:
    store.create("lock/000000001", [content])
    watch, mine = Watch(), lock(store)
    assert "worked on this run" in watch.take(mine)[0] and watch.now >= WATCH_S
    assert mine.held and Watch().take(pickle.loads(pickle.dumps(mine))) == [], "its session has it"
    with pytest.raises(InputError):
        Watch(lambda: elsewhere(store, 4)).take(lock(store))


def test_a_holder_of_this_host_that_is_gone_is_followed_at_once_and_a_free_lock_too(store: Objects) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    boot = run_lock._boot()
    for number, changed in enumerate([{"pid": gone.pid}, {"pid": 1, "started": "another process of that number"}]):
        elsewhere(store, 2 * number + 1, boot=boot, **changed)
        mine, watch = lock(store), Watch()
        assert watch.take(mine) == [] and watch.now == 0.0 and mine.held
    mine.release()
    assert Watch().take(lock(store)) == []


def test_of_two_that_take_a_lock_at_once_one_has_it(store: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find it free, and the other is the first to create the next number."""
    elsewhere(store, 1, **FREE)
    mine, create = lock(store), store.create

    def late(name: str, parts: Any) -> None:
        monkeypatch.undo()
        elsewhere(store, 2)
        create(name, parts)

    monkeypatch.setattr(store, "create", late)
    with pytest.raises(InputError):
        Watch().take(mine)
    assert not mine.held


def test_a_holder_renews_and_hears_when_it_has_lost_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "RENEW_S", 0.001)
    store, lost = Folder(tmp_path), list[str]()
    mine = lock(store)
    mine.take()
    mine.keep(lost.append)
    until(lambda: len(store.names("lock")) == KEPT, "as many numbers as are kept")
    number = int(store.names("lock")[-1][-9:]) + 1000  # it was frozen for so long
    elsewhere(store, number)
    until(lambda: lost == ["process 1 on host far works on this run now"], "it hears of that")
    mine.release()
    assert store.names("lock")[-1] == f"lock/{number:09d}", "it lets go of nothing that it does not have"
