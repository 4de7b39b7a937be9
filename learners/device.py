"""JAX's settings for the device that a process has; to be called before its first computation."""

from __future__ import annotations

import os
from typing import Any


def fit(core: int | None, accelerated: bool, compilation_cache: str | None) -> None:
    """On CPUs: one thread, on this core of the host if one is given. Compiled programs are shared in a folder."""
    if core is not None:
        os.sched_setaffinity(0, {core})  # this thread, and those it starts: XLA's among them
    if not accelerated:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    if compilation_cache:
        update: Any = jax.config.update
        update("jax_compilation_cache_dir", compilation_cache)
        update("jax_persistent_cache_min_compile_time_secs", 0.0)
        update("jax_persistent_cache_min_entry_size_bytes", -1)
