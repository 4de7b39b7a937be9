"""What a process keeps of its memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from outer import heap

ALLOCATE = """
import resource
import numpy as np
from outer import heap
{first}
np.ones(100 * 2**20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(100 * 2**20, np.uint8)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / (400 * 2**20))
"""


def cleared(first: str) -> float:
    """The share of large blocks that the kernel clears anew when they are asked for again and again."""
    code = ALLOCATE.format(first=first)
    # NumPy asks for large pages by itself, and then nobody can count.
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"NUMPY_MADVISE_HUGEPAGE": "0", "PYTHONPATH": ":".join(sys.path)},
    )
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_large_blocks_are_kept_for_later_requests() -> None:
    assert cleared("") > 0.9
    assert cleared("heap.keep_large()") < 0.1


HAND_ON = """
import threading
from pathlib import Path
import numpy as np
from outer import heap

def own():
    return 1024 * int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

there, go, measured = threading.Event(), threading.Event(), []

def thread():
    bytearray(2**16)  # from its arena, if it has one of its own
    there.set()
    go.wait()
    held = [np.ones(2**20, np.uint8) for _ in range(50)]
    measured.append(own())

other = threading.Thread(target=thread)
other.start()
there.wait()
heap.keep_large()
pin = []
held = []
for _ in range(50):
    held.append(np.ones(2**20, np.uint8))
    pin.append(bytes(2000))
before = own()
held.clear()
go.set()
other.join()
print((measured[0] - before) / (50 * 2**20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
@pytest.mark.parametrize(("environ", "least", "most"), [({}, 0.9, 1.1), (heap.ONE_HEAP, -0.1, 0.1)])
def test_with_one_heap_a_thread_uses_what_another_one_freed(environ: dict[str, str], least: float, most: float) -> None:
    own = {"NUMPY_MADVISE_HUGEPAGE": "0", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", HAND_ON], capture_output=True, text=True, check=True, env=own | environ
    )
    assert least <= float(done.stdout) <= most
