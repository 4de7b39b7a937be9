"""What the benchmark of the learner's loop computes from times and from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from benchmarks.loop import Window, descendants, rate, row, thread_seconds


def test_a_rate_counts_whole_steps_within_the_window() -> None:
    times = [0.0, 0.9, 1.0, 1.5, 2.0, 2.5, 9.0]
    assert rate(times, 1.0, 3.0) == pytest.approx(2.0)
    assert rate(reversed(times), 0.95, 2.9) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"2 steps in 0\.6 s: the window is too short"):
        rate(times, 0.85, 1.45)


def every(seconds: float, begin: float, end: float) -> list[float]:
    return [begin + seconds * count for count in range(int((end - begin) / seconds) + 1)]


def test_a_row_is_the_median_of_the_ratios_of_neighbouring_windows() -> None:
    """Three pairs: 1.00, 0.95 and 0.50 of the bare loop's rate; the machine's own speed changes between them."""
    bare = every(0.1, 0, 10) + every(0.2, 100, 110) + every(0.1, 200, 210)
    learner = [
        *every(0.1, 10, 20),
        *every(0.1, 20, 30),
        *every(0.2, 110, 120),
        *every(0.2 / 0.95, 120, 130),
        *every(0.1, 210, 220),
        *every(0.2, 220, 230),
    ]
    threads = {"on the step's core": {"python": 0.4, "idle": 1e-6}}
    windows = []
    for at in (0, 100, 200):
        windows += [
            Window("alone", at + 0.05, at + 9.95),
            Window("quiet", at + 10.05, at + 19.95, threads),
            Window("synced", at + 20.05, at + 29.95, threads),
        ]
    found = row(100.0, windows, bare, learner)
    assert found["pairs"] == 3
    assert found["ratios"] == pytest.approx([1.0, 0.95, 0.5])
    assert found["synced_over_alone"] == pytest.approx(0.95)
    assert (found["alone_ms"], found["quiet_ms"]) == pytest.approx((100.0, 100.0))
    spent = found["threads_ms_per_step"]["quiet"]["on the step's core"]
    assert found["on_core_ms"]["quiet"] == pytest.approx(spent["python"]) and found["on_core_ms"]["alone"] == 0
    assert spent == {"python": pytest.approx(1e3 * 0.4 * (1 / 99 + 1 / 49.5 + 1 / 99) / 3)}, "what is tiny is left out"


def test_threads_of_a_process_are_found_with_the_core_that_they_may_run_on() -> None:
    core = min(os.sched_getaffinity(0))
    pinned, over = threading.Event(), threading.Event()

    def work() -> None:
        os.sched_setaffinity(0, {core})
        sum(range(10**6))
        pinned.set()
        over.wait(60.0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert pinned.wait(60.0)
        found = thread_seconds(os.getpid(), core)
    finally:
        over.set()
        thread.join()
    place, _, _ = next(key for key in found if key[2] == thread.native_id and "queue" not in key[0])
    assert place == "on the step's core" and found[next(k for k in found if k[2] == thread.native_id)] > 0.0
    assert any(place == "in its run queue" and tid == thread.native_id for place, _, tid in found)


def test_descendants_are_found_with_their_command_lines() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()', 'grandchild'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        grand = ""
        while not grand:
            grand = next((each for pid, each in descendants(os.getpid()) if each.endswith("grandchild")), "")
            assert child.poll() is None
        assert "input()" in grand
    finally:
        child.communicate(b"\n")
