"""Real processes: one is frozen while its successor takes over, and thawed while that commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


def begin(folder: Path, epoch: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.outer.journal.zombie", str(folder), str(epoch)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def commits_until(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[1]) for _ in range(count)]


def commits_told(process: subprocess.Popen[str]) -> list[int]:
    """The commits that a killed process has told. Its last line may be cut short, and does not count then."""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines(keepends=True)
    return [int(line.split()[1]) for line in lines if line.startswith("committed ") and line.endswith("\n")]


@pytest.mark.full
def test_a_thawed_syncer_commits_nothing_in_five_cases(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    """Frozen after a few commits, wherever it is then; its successor compacts what it would have written next to."""
    zombie = begin(tmp_path, 1)
    started.append(zombie)
    for epoch in range(2, 7):
        told = commits_until(zombie, 5 * epoch)
        os.kill(zombie.pid, signal.SIGSTOP)
        successor = begin(tmp_path, epoch)
        started.append(successor)
        commits_until(successor, 100)
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.stdout is not None
        rest = zombie.stdout.read().splitlines()  # until it ends, which it does by itself
        assert zombie.wait(DEADLINE_S) == 0
        assert rest[-1].startswith("stale") and "another epoch has opened" in rest[-1]
        said = told + [int(line.split()[1]) for line in rest[:-1]]
        assert said == list(range(said[0], said[0] + len(said))), "what it said before it was frozen may be read late"
        zombie = successor
    os.kill(zombie.pid, signal.SIGKILL)
    zombie.wait(DEADLINE_S)
    last = commits_told(zombie)[-1]
    opened = StoredJournal(Folder(tmp_path), "journal", 99, 2).open()
    assert max(opened.found.versions) in (last, last + 1), "one may have been durable before it could say so"
    assert opened.damage == []


def test_killed_at_random_moments_every_commit_that_was_said_is_there(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    said = 0
    for epoch in range(1, 9):
        process = begin(tmp_path, epoch)
        started.append(process)
        first = commits_until(process, 1)[0]
        assert first in (said + 1, said + 2)
        time.sleep(0.013 * epoch)  # another moment each time
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        said = max([first, *commits_told(process)])
