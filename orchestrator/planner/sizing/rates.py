"""The rates that plan and the fleet simulator compute with, each with its source; deadlines at a rate; and the step
time, failures and hours of one learner unit, by the recipe's [fleet]."""

from __future__ import annotations

from typing import NamedTuple, overload

from orchestrator.recipe.config import FleetPoolConfig, PoolConfig, Recipe
from outer.numeric.formats import named
from outer.protocol.leases import SLOWEST_LINK, longest_s

HOUR_S, DAY_S = 3600.0, 86_400.0
ELEMENT_BYTES = 4  # rates of codecs are by bytes of float32


class Constant(NamedTuple):
    """A number, and the benchmark that measures it; "assumed" where none does."""

    value: float
    unit: str
    source: str


MERGE = Constant(11e9, "bytes that a merge reads and writes, a second and core", "benchmarks/merge.py")
STORE = Constant(1e9, "bytes that a store takes or gives a second", "assumed")
IN_FLIGHT = Constant(4e6, "bytes on their way between two nodes at most", "benchmarks/wan at 1 Gbit/s, 80 ms")
FAILOVER = Constant(
    2.8, "seconds from a syncer's death to the next commit, beside reading its values", "commit 6429e58"
)
# By codec: bytes of float32 that become a payload, and that a payload becomes, a second and core.
ENCODE = {"bf16": 8.5e9, "int8": 4.5e9, "fp4": 7.6e9}
DECODE = {"bf16": 4.7e9, "int8": 6.0e9, "fp4": 6.2e9}
PASSES = 2  # over the payloads of a merge: their products, then their sum


def rates(recipe: Recipe) -> dict[str, Constant]:
    """Those of this recipe, by name. A link is `link A - B`, in bits a second."""
    codec, links = recipe.sync.codec, recipe.fleet.links
    found = {"merge": MERGE, "store": STORE, "failover": FAILOVER}
    for what, known in (("encode", ENCODE), ("decode", DECODE)):
        if codec in known:
            words = f"bytes of float32 to and from {codec}, a second and core"
            found[what] = Constant(known[codec], words, "commit 6429e58")
    if links:
        found["in flight"] = IN_FLIGHT
    found["slowest link"] = Constant(SLOWEST_LINK, "bytes a second, by which deadlines grow", "assumed")
    for link in links:
        name = f"link {' - '.join(link.between)}"
        found[name] = Constant(link.gbit_s * 1e9, "bits a second", "[[fleet.links]]")
    return found


def merge_s(codec: str, elements: int, learners: int) -> float:
    """Seconds of a merge of a fragment from so many learners, outer step included."""
    decoded = PASSES * learners / DECODE[codec] if codec in DECODE else 0.0
    return ELEMENT_BYTES * elements * ((2 * (learners + 1) + 3) / MERGE.value + decoded)


def encode_s(codec: str, payload_bytes: float) -> float:
    """Seconds in which a learner makes so many bytes of a payload."""
    return payload_bytes * 8 * ELEMENT_BYTES / named(codec).bits / ENCODE[codec] if codec in ENCODE else 0.0


def floor_s(takes_s: float, size: int) -> float:
    """The least `floor` of outer.protocol.leases.longest_s for which a transfer of `size` bytes is in time."""
    return takes_s - longest_s(0.0, size)


# ------------------------------------------------------------------ one learner unit


def fleet_pool(recipe: Recipe, name: str) -> FleetPoolConfig:
    """The pool's entry in [fleet], or its defaults."""
    return next((pool for pool in recipe.fleet.pools if pool.name == name), FleetPoolConfig(name=name))


@overload
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float) -> float: ...
@overload
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float | None) -> float | None: ...
def unit_step_s(recipe: Recipe, pool: PoolConfig, step_s: float | None) -> float | None:
    """Seconds of a step, the pool's slowdown included. `step_s`: of pools of which `[fleet]` gives none."""
    own = fleet_pool(recipe, pool.name).step_s or step_s
    return None if own is None else own * pool.slowdown


def unit_mtbf_hours(recipe: Recipe, pool: PoolConfig) -> float:
    """Mean time between failures of one learner: the pool's own, or that of a chip over the number of its chips."""
    told = fleet_pool(recipe, pool.name)
    return told.mtbf_hours or recipe.fleet.mtbf_hours / (told.chips or pool.known_devices)


def availability(recipe: Recipe, pool: PoolConfig) -> float:
    """The share of the time in which one learner is there: all but what its failures take."""
    mtbf, outage = unit_mtbf_hours(recipe, pool), recipe.fleet.outage_s / HOUR_S
    return mtbf / (mtbf + outage)
