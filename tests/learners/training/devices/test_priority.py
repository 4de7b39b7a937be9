"""A standby is made at the lowest priority, and is a process like any other after that."""

from __future__ import annotations

import os
import threading

import pytest

from learners.training.devices import cores


def schedulers(count: int = 1) -> list[int]:
    """The schedulers of new threads of this one."""
    found: list[int] = []
    for _ in range(count):
        thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
    return found


def test_a_thread_is_lowered_with_those_it_starts_and_all_of_them_are_restored() -> None:
    stays, found, done = threading.Event(), list[int](), threading.Event()

    def child() -> None:
        stays.wait(60.0)
        found.append(os.sched_getscheduler(0))

    def work() -> None:
        if not cores.lower():
            return
        threading.Thread(target=child).start()
        found.append(os.sched_getscheduler(0))
        found.extend(schedulers())
        cores.restore()
        found.append(os.sched_getscheduler(0))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60.0)
    stays.set()
    if not done.is_set():
        pytest.skip("this process may not raise a priority again")
    for each in threading.enumerate():
        if each is not threading.current_thread() and each.name.endswith("(child)"):
            each.join(60.0)
    assert found == [os.SCHED_IDLE, os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_process_that_may_not_raise_a_priority_again_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    set_scheduler = os.sched_setscheduler

    def refuse(thread: int, policy: int, parameters: os.sched_param) -> None:
        if policy != os.SCHED_IDLE:
            raise PermissionError(1, "Operation not permitted")
        set_scheduler(thread, policy, parameters)

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert cores.lower() is False
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
