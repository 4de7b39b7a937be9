"""JAX's settings for the device that a process has; to be called before JAX is imported."""

from __future__ import annotations

import os


def fit(core: int | None, accelerated: bool) -> None:
    """On CPUs: one thread, on this core of the host if one is given. Accelerators keep JAX's own settings."""
    if core is not None:
        os.sched_setaffinity(0, {core})  # this thread, and those it starts: XLA's among them
    if not accelerated:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
