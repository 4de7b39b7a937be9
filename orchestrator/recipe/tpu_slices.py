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
    more_hosts: tuple[str, ...]  # those of several hosts; in three dimensions also all whose sides are multiples of 4

    def has(self, topology: str) -> bool:
        """Whether there are such slices. Of large ones in three dimensions it accepts a few that nobody offers."""
        if topology in self.one_host + self.more_hosts:
            return True
        sides = [int(side) for side in topology.split("x")] if is_topology(topology) else []
        return "2x2x2" in self.more_hosts and len(sides) == 3 and not any(side % 4 for side in sides)

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
    "TPU-V2": Generation("v2", 2, (), ("4x4", "4x8", "8x8", "8x16", "16x16")),
    "TPU-V3": Generation("v3", 2, (), ("4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")),
    "TPU-V4": Generation("v4", 2, ("2x2x1",), ("2x2x2", "2x2x4", "2x4x4")),
    "TPU-V5P": Generation("v5p", 2, ("2x2x1",), ("2x2x2", "2x2x4", "2x4x4")),
    "TPU-V5LITEPOD": Generation("v5litepod", 1, ("1x1", "2x2", "2x4"), ("2x8", "4x4", "4x8", "8x8", "8x16", "16x16")),
    "TPU-V6E": Generation("v6e", 1, ("1x1", "2x2", "2x4"), ("2x8", "4x4", "4x8", "8x8", "8x16", "16x16")),
    "TPU-V7X": Generation("v7x", 2, ("2x2x1",), ("2x2x2", "2x2x4", "2x4x4", "8x16x16")),
}


def is_topology(text: str) -> bool:
    """Whether this is written as 2x4 or 2x2x1."""
    return _TOPOLOGY.fullmatch(text) is not None


def chips(topology: str) -> int:
    """Chips of a whole slice."""
    return math.prod(int(side) for side in topology.split("x"))


def slice_hosts(accelerator: object, topology: object) -> int:
    """Hosts of a slice by Ray's accelerator type; 0 where it lies on one host, or is none."""
    generation = GENERATIONS.get(accelerator) if isinstance(accelerator, str) else None
    if generation is None or not isinstance(topology, str) or not generation.has(topology):
        return 0
    hosts = generation.hosts(topology)
    return hosts if hosts > 1 else 0
