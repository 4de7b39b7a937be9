"""JAX's settings for a process's device, and the fact that records device, host and settings.

Call `fit` before JAX is imported, and `device_taken` after.
"""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

from learners.protocol.facts import DeviceTaken

# Environment variables that XLA and JAX read at start and that can change numbers.
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


PACKAGES = ("jax", "jaxlib", "numpy")
_VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "fphp", "bf16")  # prefixes of instruction set names


_others: set[int] = set()  # the cores beside the one that steps


def fit(core: int | None, accelerated: bool, devices: int = 1) -> None:
    """Set the environment for JAX. On CPUs: one thread, pinned to `core` if given. Accelerators keep JAX's defaults.

    The calling thread steps on that core. The threads that are there already, such as Ray's, move to the other cores.
    `devices` above 1 on CPUs: XLA simulates that many devices, each with its own thread on any core.
    """
    if core is not None and devices == 1:
        _others.update(os.sched_getaffinity(0) - {core})
        if _others:
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError):  # it has ended
                    os.sched_setaffinity(int(thread), _others)
        os.sched_setaffinity(0, {core})  # this thread and those that it starts, including XLA's
    if not accelerated:
        flags = os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        if devices > 1:
            # In front, because XLA stops reading at a word without a leading hyphen.
            os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} {flags}"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def leave_core() -> None:
    """Let the calling thread run beside the step, on the other cores. Without any it stays."""
    if _others:
        os.sched_setaffinity(0, _others)


def device_taken(devices: int | None) -> DeviceTaken:
    """Describe this process for the log. `devices`: how many local devices a step is spread over; None: all."""
    import jax

    found = jax.local_devices()
    processor, instructions = _processor()
    return DeviceTaken(
        platform=found[0].platform,
        device=found[0].device_kind,
        devices=len(found) if devices is None else devices,
        cores=len(os.sched_getaffinity(0)),
        processor=processor,
        instructions=instructions,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    )


def _processor() -> tuple[str, str]:
    """(name, vector instruction sets) of the processor from /proc/cpuinfo; its architecture if that is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name", platform.machine()), " ".join(sorted(f for f in flags if f.startswith(_VECTORS)))
