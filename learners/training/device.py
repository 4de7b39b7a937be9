"""JAX's settings for the device that a process has; to be called before JAX is imported."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from learners.protocol.facts import DeviceTaken

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


PACKAGES = ("jax", "jaxlib", "numpy")
_VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "fphp", "bf16")  # how names of instruction sets begin


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


def device_taken(devices: int | None) -> DeviceTaken:
    """The fact that an incarnation says of itself. `devices`: local ones that a step is spread over, None: all."""
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
    """(name, vector instruction sets) of the host's processor, as Linux tells; its architecture where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (told.get("flags") or told.get("Features") or "").split()
    return told.get("model name", platform.machine()), " ".join(sorted(f for f in flags if f.startswith(_VECTORS)))
