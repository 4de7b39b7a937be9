"""What a process keeps of its memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
