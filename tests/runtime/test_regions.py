"""A region that is a Ray cluster of its own joins through a door, loses a learner, is lost, and joins again.

The syncer dies meanwhile, whose journal passes the door, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from orchestrator.eventlog.facts import CheckpointWritten, LearnerLost
from orchestrator.store.published import FILES, newest
from outer.journal.door import INVITATION
from outer.journal.object_store import objects
from outer.protocol.facts import Committed, SyncerStarted
from tests.runtime.results import ROOT, assert_bit_equal, assert_kept
from tests.runtime.script import FOREVER, Script, kill, nothing, said, stepping

pytestmark = [pytest.mark.runtime, pytest.mark.full]
FAR = "learner-far-0"


class Region:
    """`diloco join` as a user calls it, with a local Ray of its own."""

    def __init__(self, folder, store, invitation):
        self._store, self._log, self._invitation = store, folder / "join.log", invitation
        self.join()

    def join(self, status=None):
        words = [sys.executable, "-m", "orchestrator", "join", self._store, "--region", "far", "--wait", "600"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), INVITATION: self._invitation}
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(words, env=environment, cwd=ROOT, stdout=log, stderr=log)

    def die(self, status=None):
        """Every process of the region is lost at once."""
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def merged(folder, incarnation, epoch=1):
    """The far learner's incarnation is in a commit of this epoch or a later one."""

    def is_in(event):
        parts = event.fact.participants if isinstance(event.fact, Committed) and event.fact.epoch >= epoch else ()
        return any((each.learner, each.incarnation) == (FAR, incarnation) for each in parts)

    return said(folder, is_in)


def kill_far(status):
    [row] = [row for row in status["learners"] if row["name"] == FAR]
    os.kill(row["pid"], signal.SIGKILL)


@pytest.fixture(scope="module")
def joined(run, served, tmp_path_factory):
    folder, (uri, server) = tmp_path_factory.mktemp("joined"), served
    pools = [
        {"name": name, "learners": 1, "batch_size": 2, "slowdown": 20.0} | more
        for name, more in (("t", {}), ("far", {"region": "far", "joined": True}))
    ]
    store = f"{uri}/runs/joined"
    settings = {
        "pools": pools,
        "sync": {"quorum": 1},
        "budget": FOREVER,
        "durability": {"store": store, "every_s": 2.0},
        "run": {"hang_s": 20.0, "unreachable_s": 600.0},
    }
    region = Region(folder, store, server.invitations.invite("far"))
    script = Script(
        folder / "run",
        (merged(folder / "run", 1), lambda status: kill(status["syncer"]["pid"])),
        (merged(folder / "run", 1, epoch=2), kill_far),
        (merged(folder / "run", 2), region.die),
        (lambda status: FAR not in stepping(status), region.join),
        (merged(folder / "run", 3), nothing),
    )
    result = run("joined", script, folder / "run", **settings)
    ended = region.process.wait(timeout=120)
    return result, ended, objects(store)


def test_a_region_joins_heals_is_lost_and_joins_again_and_the_books_are_exact(joined):
    result, ended, _ = joined
    assert_kept(result, "stopped")
    assert ended == 0, "who has joined hears that the run is over"
    assert [fact.incarnation for fact in result.facts(LearnerLost) if fact.learner == FAR] == [1, 2]
    assert {(FAR, number) for number in (1, 2, 3)} <= result.participants()
    assert all(each.learner in ("learner-t-0", FAR) for fact in result.facts(Committed) for each in fact.participants)
    assert_bit_equal(result.folder)


def test_the_store_says_of_the_run_what_its_folder_says(joined):
    result, _, store = joined
    for name in FILES:
        assert newest(store, name)[1] == (result.folder / name).read_text(), name


def test_journal_log_and_checkpoints_pass_the_door_and_no_file_of_the_run_has_its_token(joined):
    result, _, store = joined
    assert [fact.epoch for fact in result.facts(SyncerStarted)] == [1, 2]
    assert result.facts(CheckpointWritten)
    assert set(store.folders("")) >= {"checkpoints", "journal", "log"}
    assert not {path.name for path in result.folder.iterdir()} & {"checkpoints", "journal", "log"}
    secret = os.environ[INVITATION].split(":")[1].encode()
    assert not [path for path in result.folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
