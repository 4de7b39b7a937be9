"""What decides the bits of a learner's steps beside parameters, samples and code: the device, the host, the settings.

To be asked once JAX has its settings. Knows nothing of what is computed.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax

from learners.protocol.facts import DeviceTaken
from learners.training.device import SETTINGS

PACKAGES = ("jax", "jaxlib", "numpy")
_VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "fphp", "bf16")  # how names of instruction sets begin


def device_taken(devices: int | None) -> DeviceTaken:
    """The fact that an incarnation says of itself. `devices`: local ones that a step is spread over, None: all."""
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
