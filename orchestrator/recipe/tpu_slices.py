"""TPU slices: generations, topologies, chips, and how many hosts a slice of them has.

The figures are those of `ray.util.tpu` 2.60, with which the tests compare them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

CHIPS_PER_HOST = 4  # of every slice that has more than one host
CHIP_COUNTS = (1, 2, 4, 8)  # that Ray lets one process ask for
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")


@dataclass(frozen=True)
class Generation:
    """One kind of TPU."""

    name: str  # in Ray's names of slices: v6e-8
    cores_per_chip: int  # slices are named after their cores
    one_host: tuple[str, ...]  # topologies that lie on a single host; those of v2 and v3 have no name in Ray

    def hosts(self, topology: str) -> int:
        """Hosts of a slice."""
        return 1 if topology in self.one_host else max(1, math.ceil(chips(topology) / CHIPS_PER_HOST))

    def host_chips(self, topology: str) -> int:
        """Chips of each of its hosts."""
        return chips(topology) // self.hosts(topology)

    def pod_type(self, topology: str) -> str:
        """The slice's name by size, the value of the node label ray.io/tpu-pod-type."""
        return f"{self.name}-{chips(topology) * self.cores_per_chip}"


# By Ray's accelerator type, the value of the node label ray.io/accelerator-type.
GENERATIONS = {
    "TPU-V2": Generation("v2", 2, ()),
    "TPU-V3": Generation("v3", 2, ()),
    "TPU-V4": Generation("v4", 2, ("2x2x1",)),
    "TPU-V5P": Generation("v5p", 2, ("2x2x1",)),
    "TPU-V5LITEPOD": Generation("v5litepod", 1, ("1x1", "2x2", "2x4")),
    "TPU-V6E": Generation("v6e", 1, ("1x1", "2x2", "2x4")),
    "TPU-V7X": Generation("v7x", 2, ("2x2x1",)),
}


def is_topology(text: str) -> bool:
    """Whether this is written as 2x4 or 2x2x1."""
    return _TOPOLOGY.fullmatch(text) is not None


def chips(topology: str) -> int:
    """Chips of a whole slice."""
    return math.prod(int(side) for side in topology.split("x"))
