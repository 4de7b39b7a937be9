"""The accelerators that this machine has, found without a driver or JAX, and JAX's plugins for them."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

GOOGLE = "0x1ae0"  # its PCI vendor id
SMI_S = 20.0  # for nvidia-smi to answer

# By platform: the word for one, this project's extra, and how the names of the packages with JAX's plugin begin and end
KINDS = {"gpu": ("NVIDIA GPU", "cuda", "jax-cuda", "-plugin"), "tpu": ("TPU chip", "tpu", "libtpu", "")}


@dataclass(frozen=True)
class Accelerators:
    """The accelerators of one kind."""

    platform: str  # JAX's name: gpu | tpu
    kind: str
    count: int
    extra: str  # of this project, that installs JAX's part
    usable: bool  # that part is installed


def accelerators(root: Path = Path("/"), installed: Iterable[str] | None = None) -> list[Accelerators]:
    """The machine's accelerators. `root`: of the file system; `installed`: packages, by default this environment's."""
    counts = {
        "gpu": len(list((root / "dev").glob("nvidia[0-9]*"))),
        "tpu": len(list((root / "dev").glob("accel[0-9]*"))) or _vfio_tpus(root),
    }
    names = None if installed is None else set(installed)
    return [
        Accelerators(platform, kind, counts[platform], extra, has_plugin(platform, names))
        for platform, (kind, extra, _, _) in KINDS.items()
        if counts[platform]
    ]


def has_plugin(platform: str, installed: Iterable[str] | None = None) -> bool:
    """Whether JAX's part for this platform is installed."""
    _, _, begin, end = KINDS[platform]
    names = _installed() if installed is None else {name.lower() for name in installed}
    return any(name.startswith(begin) and name.endswith(end) for name in names)


def nvidia_smi(*fields: str) -> list[list[str]]:
    """These fields of every GPU, as nvidia-smi prints them without units; no rows where it does not answer."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _vfio_tpus(root: Path) -> int:
    """TPU chips of newer VMs are handed to user space as VFIO groups, like other devices too."""
    groups = [path.name for path in (root / "dev" / "vfio").glob("[0-9]*")]
    vendors = [(root / "sys/kernel/iommu_groups" / group / "devices").glob("*/vendor") for group in groups]
    return sum(any(path.read_text().strip() == GOOGLE for path in found) for found in vendors)


def _installed() -> set[str]:
    return {name.lower() for entry in importlib.metadata.distributions() if (name := entry.metadata["Name"])}
