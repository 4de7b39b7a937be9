"""Reports leave the training loop in a thread of their own."""

from __future__ import annotations

import contextlib
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from learners.protocol.events_effects import Resume
from learners.shell import LearnerShell, ReportSender
from learners.training.devices import cores
from outer.protocol.messages import STEPPING, Report, Stop
from tests.waiting import DEADLINE_S


def report(sequence: int) -> Report:
    return Report("a", 1, 1, sequence, STEPPING, 3.0, sequence, 1.0, 10, 0)


def test_of_several_that_wait_only_the_newest_is_sent() -> None:
    sent: list[int] = []
    begun, released = threading.Event(), threading.Event()

    def send(message: Report) -> None:
        sent.append(message.sequence)
        begun.set()
        assert released.wait(DEADLINE_S)

    sender = ReportSender(send, lambda: None)
    sender.put(report(1))
    assert begun.wait(DEADLINE_S)
    for sequence in (2, 3, 4):
        sender.put(report(sequence))
    assert not sender.finish(0.0), "one is on its way, and one waits"
    released.set()
    assert sender.finish(DEADLINE_S)
    assert sent == [1, 4]


def test_what_goes_wrong_there_is_raised_in_the_loop() -> None:
    def send(message: Report) -> None:
        raise RuntimeError("gone")

    sender = ReportSender(send, lambda: None)
    sender.put(report(1))
    assert sender.finish(DEADLINE_S)
    with pytest.raises(RuntimeError, match="gone"):
        sender.put(report(2))


def test_what_the_machine_raises_in_another_thread_is_raised_in_the_loop() -> None:
    """Whoever brought the message hears it too, and may drop it; the machine is of no use any more."""

    def handle(now: float, event: Any) -> list[Any]:
        if isinstance(event, Resume):
            return []
        raise MemoryError("no room")

    shell = object.__new__(LearnerShell)
    shell.__dict__ |= {
        "_machine": SimpleNamespace(handle=handle),
        "_prepared": SimpleNamespace(trainer=None, tokens_per_step=8),
        "_spec": SimpleNamespace(batch_size=2, slowdown=1.0, sync=SimpleNamespace(smoothing=0.1)),
        "_lock": threading.Lock(),
        "_changed": threading.Event(),
        "_failure": None,
        "_faults": None,
        "_facts": SimpleNamespace(add=None),
    }
    with pytest.raises(MemoryError, match="no room"):
        shell.deliver(Stop(1, "over"))
    with pytest.raises(MemoryError, match="no room"):
        shell._loop()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_the_step_has_its_core_and_other_threads_have_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_others", set())
    everything = os.sched_getaffinity(0)
    core, seen = min(everything), {}
    release = threading.Event()

    def stay() -> None:
        assert release.wait(DEADLINE_S)
        seen["before"] = os.sched_getaffinity(0)

    def pinned() -> None:
        cores.pin(core)
        seen["step"] = os.sched_getaffinity(0)
        inheriting = threading.Thread(target=lambda: seen.update(after=os.sched_getaffinity(0)))
        leaving = threading.Thread(target=lambda: (cores.leave(), seen.update(left=os.sched_getaffinity(0))))
        for thread in (inheriting, leaving):
            thread.start()
            thread.join()

    threads: list[Any] = [threading.Thread(target=stay), threading.Thread(target=pinned)]
    try:
        threads[0].start()
        threads[1].start()
        threads[1].join()
        release.set()
        threads[0].join()
    finally:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # another test's thread, ended since it was listed
                os.sched_setaffinity(int(thread), everything)
    others = everything - {core}
    assert seen == {"before": others, "step": {core}, "after": {core}, "left": others}
