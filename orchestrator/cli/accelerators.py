"""Which accelerators this machine shows, and whether JAX has what it takes to use them. For `doctor`.

Looks at device files and installed packages; starts no driver and imports no JAX.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

GOOGLE = "0x1ae0"  # its PCI vendor id


@dataclass(frozen=True)
class Accelerators:
    """Of one kind."""

    kind: str
    count: int
    extra: str  # of this project, that installs JAX's part
    usable: bool  # that part is installed


def accelerators(root: Path = Path("/"), installed: Iterable[str] | None = None) -> list[Accelerators]:
    """What is there. `root`: of the file system; `installed`: packages, by default this environment's."""
    names = _packages() if installed is None else {name.lower() for name in installed}
    gpus = len(list((root / "dev").glob("nvidia[0-9]*")))
    tpus = len(list((root / "dev").glob("accel[0-9]*"))) or _vfio_tpus(root)
    return [
        Accelerators(kind, count, extra, any(name.startswith(parts) and name.endswith(end) for name in names))
        for kind, count, extra, parts, end in (
            ("NVIDIA GPU", gpus, "cuda", "jax-cuda", "-plugin"),
            ("TPU chip", tpus, "tpu", "libtpu", ""),
        )
        if count
    ]


def _vfio_tpus(root: Path) -> int:
    """TPU chips of newer VMs are handed to user space as VFIO groups, like other devices too."""
    groups = [path.name for path in (root / "dev" / "vfio").glob("[0-9]*")]
    vendors = [(root / "sys/kernel/iommu_groups" / group / "devices").glob("*/vendor") for group in groups]
    return sum(any(path.read_text().strip() == GOOGLE for path in found) for found in vendors)


def _packages() -> set[str]:
    return {name.lower() for entry in importlib.metadata.distributions() if (name := entry.metadata["Name"])}
