"""JAX's settings for the device that a process has; to be called before JAX is imported."""

from __future__ import annotations

import os

# Of the environment, what XLA and JAX read at their start and what can change numbers.
SETTINGS = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_THREEFRY_PARTITIONABLE",
    "JAX_DISABLE_JIT",
    "NVIDIA_TF32_OVERRIDE",
)


def fit(core: int | None, accelerated: bool, devices: int = 1) -> None:
    """On CPUs: one thread, on this core of the host if one is given. Accelerators keep JAX's own settings.

    A unit of several CPU `devices` has them made by XLA, each with a thread of its own on any core.
    """
    if core is not None and devices == 1:
        os.sched_setaffinity(0, {core})  # this thread, and those it starts: XLA's among them
    if not accelerated:
        flags = os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        if devices > 1:
            # In front: XLA reads nothing behind a word that does not begin with a hyphen.
            os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} {flags}"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
