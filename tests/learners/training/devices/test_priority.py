"""A standby is made at a low priority, and is a process like any other after that."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from learners.training.devices import cores
from learners.training.devices.cores import LOWERED


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60.0)


def test_a_thread_is_lowered_with_those_it_starts_and_all_of_them_are_restored() -> None:
    usual, lowered, restored, found = niceness(), threading.Event(), threading.Event(), list[int]()
    if usual > 19 - LOWERED:
        pytest.skip(f"a process of niceness {usual} is hardly made nicer")

    def child() -> None:
        found.append(niceness())
        lowered.set()
        restored.wait(60.0)
        found.append(niceness())

    def work() -> None:
        if cores.lower():
            thread = threading.Thread(target=child)
            thread.start()
            lowered.wait(60.0)
            found.append(niceness())
            cores.restore()
            restored.set()
            thread.join(60.0)
            found.append(niceness())

    in_a_thread(work)
    if not restored.is_set():
        pytest.skip("this process may not raise a priority again")
    assert found == [usual + LOWERED, usual + LOWERED, usual, usual]
    assert niceness() == usual


def test_a_process_that_may_not_raise_a_priority_again_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, set_priority, lowered = niceness(), os.setpriority, list[bool]()

    def refuse(which: int, who: int, priority: int) -> None:
        if priority == usual:
            raise PermissionError(13, "Permission denied")
        set_priority(which, who, priority)

    monkeypatch.setattr(os, "setpriority", refuse)
    in_a_thread(lambda: lowered.append(cores.lower()))
    assert lowered == [False]
    assert niceness() == usual
