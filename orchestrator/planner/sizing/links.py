"""Traffic over links, against their capacity: on average, for one fragment in time, and what it costs.

Every learner exchanges with the syncer, so a link is between a learners' region and the syncer's, as the recipe's
[fleet] declares it, or between a declared node and all others. Knows payloads alone, as traffic.py does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.nodes import Node
from orchestrator.planner.sizing.traffic import Flow, Traffic
from orchestrator.planner.sizing.units import DAY_S
from orchestrator.recipe.config import Recipe

SHARE = 0.8  # of a link, on average, above which bursts and other traffic make fragments late
GB = 1e9


@dataclass(frozen=True)
class LinkLoad:
    """The learners at one end of a link, on their way to the syncer and back. Bits per second each way."""

    ends: str  # regions, or a node
    field: str  # of the recipe or the nodes
    learners: int
    up_bits: float | None  # of all its learners, per second on average; None: the step's length is not given
    down_bits: float | None  # the same; once for all learners of another region: one brings a version to the others
    link_bits: float | None  # declared; None: it is not
    latency_s: float
    fragment_s: float | None  # until the largest fragment of all of them is up, merged at once, and down again
    window_s: float | None  # tau steps, in which that should be over
    contribution_s: float | None  # until the largest one is up, alone on the link
    version_s: float | None  # until the largest one is down; None as above
    joining_s: float | None  # until one learner that joins has a peer's or the syncer's state, over this link alone
    day_bytes: float | None  # both ways
    day_price: float | None  # None: no price is declared

    @property
    def share(self) -> float | None:
        """The part of the link that is used, in its busier direction."""
        if self.up_bits is None or self.down_bits is None or self.link_bits is None:
            return None
        return max(self.up_bits, self.down_bits) / self.link_bits


def of_regions(recipe: Recipe, traffic: Traffic, hub: str | None, step_s: float | None) -> Iterator[LinkLoad]:
    """A load for each region of the recipe's pools but `hub`, the syncer's. `step_s`: of a syncer step, if known."""
    counted = Counter(pool.region for pool in recipe.learners.values() if pool.region not in (None, hub))
    links = {frozenset(link.between): link for link in recipe.fleet.links}
    for region, count in sorted(counted.items(), key=lambda item: str(item[0])) if hub else ():
        link = links.get(frozenset((str(region), str(hub))))
        bits, latency_s = (None, 0.0) if link is None else (link.gbit_s * 1e9, link.latency_ms / 1e3)
        price = None if link is None else link.price_per_gb
        field = f"fleet.links {region} - {hub}"
        yield _load(f"{region} - {hub}", field, count, 1, recipe, traffic, step_s, bits, latency_s, price)


def of_nodes(
    recipe: Recipe,
    traffic: Traffic,
    nodes: Sequence[Node],
    learners: Mapping[str, tuple[str, ...]],
    hub: str | None,
    step_s: float | None,
) -> Iterator[LinkLoad]:
    """A load for each node of known bandwidth: those with learners, and `hub`, the syncer's."""
    away = Counter(places[0] for places in learners.values() if places[0] != hub)
    for node in nodes:
        here, bits = away.total() if node.name == hub else away[node.name], node.bandwidth_bits
        if hub is not None and here and bits is not None:
            yield _load(node.name, f"{node.name} bandwidth", here, here, recipe, traffic, step_s, bits, 0.0, None)


def home(recipe: Recipe) -> str | None:
    """The region in which the syncer is counted where nothing else says: the recipe's word, else most learners'."""
    most = Counter(pool.region for pool in recipe.learners.values() if pool.region is not None).most_common(1)
    return recipe.fleet.syncer_region or recipe.run.control.get("region") or (most[0][0] if most else None)


def _load(
    ends: str,
    field: str,
    learners: int,
    fetched: int,
    recipe: Recipe,
    traffic: Traffic,
    step_s: float | None,
    bits: float | None,
    latency_s: float,
    price: float | None,
) -> LinkLoad:
    """`fetched`: how often a version comes down the link."""
    up, down = traffic.learner_up, traffic.learner_down
    moved = learners * up.per_step_bytes + fetched * down.per_step_bytes
    day_bytes = None if step_s is None else moved * DAY_S / step_s
    joining = max(traffic.joining_bytes, traffic.donation_bytes or 0)

    def takes_s(size: float, ways: int) -> float | None:
        return None if bits is None else 8 * size / bits + ways * latency_s

    return LinkLoad(
        ends=ends,
        field=field,
        learners=learners,
        up_bits=_times(up, learners),
        down_bits=_times(down, fetched),
        link_bits=bits,
        latency_s=latency_s,
        fragment_s=takes_s(learners * up.peak_bytes + fetched * down.peak_bytes, 2),
        window_s=None if step_s is None else recipe.sync.overlap_steps * step_s,
        contribution_s=takes_s(up.peak_bytes, 2),
        version_s=takes_s(down.peak_bytes, 2),
        joining_s=takes_s(joining, 1),
        day_bytes=day_bytes,
        day_price=None if day_bytes is None or price is None else price * day_bytes / GB,
    )


def _times(flow: Flow, learners: int) -> float | None:
    return None if flow.per_second_bits is None else learners * flow.per_second_bits
