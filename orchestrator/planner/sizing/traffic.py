"""Bytes that cross the links, by step, round and second, their capacity and price; and what plain training moves.

Payloads only: messages, facts and headers are not counted, nor what TCP adds. Every learner exchanges with the
syncer, so a link is between a learners' region and the syncer's, as the recipe's [fleet] declares it, or between a
declared node and all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.nodes import Node
from orchestrator.planner.sizing.rates import DAY_S
from orchestrator.recipe.config import Recipe
from outer.config import SyncConfig
from outer.numeric.chain import VersionChain
from outer.numeric.formats import named
from outer.protocol.fragments import Fragment
from outer.protocol.schedule import Schedule

SHARE = 0.8  # of a link, on average, above which bursts and other traffic make fragments late
GB = 1e9
DOWN_BYTES = 4  # of one element of a whole version: float32


@dataclass(frozen=True)
class FragmentRow:
    """One fragment: what is in it, what it weighs on the wire, when it is due."""

    fragment: int
    tensors: int
    elements: int
    up_bytes: int
    down_bytes: int  # of a version, to a learner that holds the one before
    due: int  # at every syncer step t with t mod H = this


@dataclass(frozen=True)
class Flow:
    """What one learner sends, or receives."""

    per_round_bytes: int
    per_step_bytes: float  # the mean over a round's H syncer steps
    peak_bytes: int  # of the largest fragment: what one syncer step moves at most
    per_second_bits: float | None  # the mean; None: the step's length is not given


@dataclass(frozen=True)
class Traffic:
    learner_up: Flow
    learner_down: Flow
    joining_bytes: int  # down, for each learner that starts from the syncer: at the run's start, or with no peer
    donation_bytes: int | None  # from a peer to each one that joins or is restarted; None: they start from the syncer
    run_up_bytes: int  # of a run in which no learner misses a merge
    run_down_bytes: int  # of the same run, with each learner's first versions
    data_parallel_bytes: int  # each way, for each learner in every step of data-parallel training: a ring all-reduce
    data_parallel_ratio: float | None  # to what a learner moves here per step, both directions; None with one learner


def table(fragments: Sequence[Fragment], sync: SyncConfig) -> tuple[FragmentRow, ...]:
    """The fragments as they are dealt, in order."""
    schedule = Schedule(len(fragments), sync.round_steps)
    downs = down_bytes(sync, fragments)
    return tuple(
        FragmentRow(
            fragment=fragment.index,
            tensors=len(fragment.tensors),
            elements=fragment.size,
            up_bytes=named(sync.codec).bytes(fragment.size),
            down_bytes=downs[fragment.index],
            due=schedule.offset(fragment.index),
        )
        for fragment in fragments
    )


def down_bytes(sync: SyncConfig, fragments: Sequence[Fragment]) -> list[int]:
    """Bytes of each fragment's version, to a learner that holds the one before."""
    chain, wholes = VersionChain.of(sync.downlink, fragments), [fragment.size * DOWN_BYTES for fragment in fragments]
    return wholes if chain is None else [min(whole, chain.bytes(index)) for index, whole in enumerate(wholes)]


def traffic(
    rows: Sequence[FragmentRow],
    sync: SyncConfig,
    regions: Mapping[str, str | None],
    syncer_region: str | None,
    syncer_steps: int,
    parameter_bytes: int,
    inner_state_bytes: int,
    step_s: float | None,
) -> Traffic:
    """`regions`: each learner's, by name. `syncer_steps`: T. `step_s`: seconds of a syncer step, if known."""
    ups, downs = [row.up_bytes for row in rows], [row.down_bytes for row in rows]
    learners, model = len(regions), DOWN_BYTES * sum(row.elements for row in rows)
    up, down = (_flow(sizes, sync.round_steps, step_s) for sizes in (ups, downs))
    commits = [_times_due(row.due, sync.round_steps, syncer_steps) for row in rows]
    counted = Counter(regions.values())
    here, plain = up.per_step_bytes + down.per_step_bytes, 2 * (learners - 1) * parameter_bytes // learners
    return Traffic(
        learner_up=up,
        learner_down=down,
        joining_bytes=model,
        donation_bytes=parameter_bytes + inner_state_bytes if _peers_give(sync) else None,
        run_up_bytes=learners * sum(size * count for size, count in zip(ups, commits, strict=True)),
        run_down_bytes=sum(fetches(region, syncer_region, count) for region, count in counted.items())
        * (model + sum(size * count for size, count in zip(downs, commits, strict=True))),
        data_parallel_bytes=plain,
        data_parallel_ratio=2 * plain / here if learners > 1 and here else None,
    )


def fetches(region: str | None, syncer_region: str | None, learners: int) -> int:
    """How often the syncer sends a version to so many learners of a region, as outer/relays.py has it."""
    return learners if region is None or region == syncer_region else 1


def _peers_give(sync: SyncConfig) -> bool:
    """True if peers give their state to joiners, as learners/protocol/learner.py decides."""
    return sync.recover == "peer" and sync.overlap != "strict"


def _flow(sizes: Sequence[int], round_steps: int, step_s: float | None) -> Flow:
    total = sum(sizes)
    mean = total / round_steps
    return Flow(
        per_round_bytes=total,
        per_step_bytes=mean,
        peak_bytes=max(sizes),
        per_second_bits=None if step_s is None else 8 * mean / step_s,
    )


def _times_due(offset: int, round_steps: int, syncer_steps: int) -> int:
    """The number of t in 1..T with t mod H = offset; step 0 does not exist."""
    return syncer_steps // round_steps if offset == 0 else (syncer_steps - offset) // round_steps + 1


# ------------------------------------------------------------------ links


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
