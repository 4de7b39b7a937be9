"""Bytes that cross the links, by step, round and second, their capacity and price; and what plain training moves.

Payloads only: messages, facts and headers are not counted, nor what TCP adds. Every learner exchanges with the
syncer, so a link is between a learners' region and the syncer's, as the recipe's [fleet] declares it, or between a
declared node and all others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.rates import DAY_S, IN_FLIGHT, STORE, encode_s, merge_s
from orchestrator.recipe.config import LinkConfig, Recipe
from outer.config import SyncConfig
from outer.numeric.chain import VersionChain
from outer.numeric.formats import named
from outer.protocol.fragments import Fragment
from outer.protocol.schedule import Schedule

SHARE = 0.8  # of a link, on average, above which bursts and other traffic make fragments late
GB = 1e9
DOWN_BYTES = 4  # of one element of a whole version: float32
# One-way trips over a link (docs/protocol.md, "An exchange"): in all; from the read of a fragment until the version
# that it is merged into is there; while its syncer step is open.
EXCHANGE, UPDATE, OPEN = 6, 4, 2


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
    merge_s: float  # to encode, merge and journal the largest fragment
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
    largest = max(row.elements for row in rows)
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
        merge_s=encode_s(sync.codec, max(ups)) + merge_s(sync.codec, largest, learners) + journal_s(largest),
        data_parallel_bytes=plain,
        data_parallel_ratio=2 * plain / here if learners > 1 and here else None,
    )


def journal_s(elements: int) -> float:
    """Seconds of a commit of so many elements, with their outer state, to the journal."""
    return 2 * DOWN_BYTES * elements / STORE.value


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

    ends: str  # regions
    field: str  # of the recipe
    names: tuple[str, ...]  # the learners
    up_bits: float | None  # of all its learners, per second on average; None: the step's length is not given
    down_bits: float | None  # the same; once for all learners of another region: one brings a version to the others
    link_bits: float | None  # as far as TCP fills it; None: it is not declared
    declared_bits: float | None
    latency_s: float
    # Of the largest fragment of all of them at once, in syncer steps; None as above.
    exchange_steps: float | None  # from a read to the end of the first step on the version: it may be read again
    update_steps: float | None  # from its read until the version that it is merged into is adopted: what tau says
    open_steps: float | None  # its syncer step is open
    contribution_s: float | None  # until the largest one is up, alone on the link
    version_s: float | None  # until the largest one is down; None as above
    joining_s: float | None  # until one learner that joins has a peer's or the syncer's state, over this link alone
    day_bytes: float | None  # both ways
    day_price: float | None  # None: no price is declared

    @property
    def learners(self) -> int:
        return len(self.names)

    @property
    def share(self) -> float | None:
        """The part of the link that is used, in its busier direction."""
        if self.up_bits is None or self.down_bits is None or self.link_bits is None:
            return None
        return max(self.up_bits, self.down_bits) / self.link_bits

    def cycle(self, round_steps: int) -> float:
        """Syncer steps from one read of a fragment to the next that can be; infinite where that is not known."""
        if self.exchange_steps is None:
            return math.inf
        return max(self.exchange_steps, (self.share or 0.0) * round_steps)


def round_steps(recipe: Recipe, loads: Sequence[LinkLoad]) -> float | None:
    """Inner steps of a round: H, or more where fewer than K learners can be read again so soon. None: not known."""
    sync, cycles = recipe.sync, dict.fromkeys(recipe.learners, 0.0)
    for load in loads:
        cycles |= {name: max(cycles[name], load.cycle(sync.round_steps)) for name in load.names}
    needed = len(cycles) if sync.grace == "infinite" else min(recipe.quorum, len(cycles))
    steps = max(float(sync.round_steps), sorted(cycles.values())[needed - 1])
    return None if sync.overlap == "strict" or math.isinf(steps) else steps


def open_steps(sync: SyncConfig, loads: Sequence[LinkLoad]) -> int:
    """How many syncer steps are open at once: tau, or those of an exchange, less than a round."""
    known = [load.open_steps for load in loads if load.open_steps is not None and sync.overlap == "free"]
    return max(1, sync.overlap_steps, min(sync.round_steps - 1, math.ceil(max(known, default=0.0))))


def of_regions(recipe: Recipe, traffic: Traffic, hub: str | None, step_s: float | None) -> Iterator[LinkLoad]:
    """A load for each region of the recipe's pools but `hub`, the syncer's. `step_s`: of a syncer step, if known."""
    links = {frozenset(link.between): link for link in recipe.fleet.links}
    there: dict[str, list[str]] = {}
    for name, pool in recipe.learners.items() if hub else ():
        if pool.region not in (None, hub):
            there.setdefault(str(pool.region), []).append(name)
    for region, names in sorted(there.items()):
        link = links.get(frozenset((region, str(hub))))
        bits, declared = (None, None) if link is None else (usable_bits(link, len(names)), link.gbit_s * 1e9)
        latency_s, price = (0.0, None) if link is None else (link.latency_ms / 1e3, link.price_per_gb)
        yield _load(f"{region} - {hub}", tuple(names), traffic, step_s, bits, declared, latency_s, price)


def home(recipe: Recipe) -> str | None:
    """The region in which the syncer is counted where nothing else says: the recipe's word, else most learners'."""
    most = Counter(pool.region for pool in recipe.learners.values() if pool.region is not None).most_common(1)
    return recipe.fleet.syncer_region or recipe.run.control.get("region") or (most[0][0] if most else None)


def usable_bits(link: LinkConfig, learners: int) -> float:
    """Bits a second that transfers to or from so many learners, each on a node of its own, make of a link."""
    round_trip_s = 2 * link.latency_ms / 1e3
    return min(link.gbit_s * 1e9, learners * 8 * IN_FLIGHT.value / round_trip_s if round_trip_s else math.inf)


def ring_s(recipe: Recipe, sent: float) -> float | None:
    """Seconds of an all-reduce by an ideal ring, in which each learner sends so many bytes and waits for links alone.

    The ring passes the regions in the order of the pools, links have the rates that [fleet] declares, and each value
    passes all hops but one twice. None: there is one region, or a link of the ring is not declared.
    """
    links = {frozenset(link.between): link for link in recipe.fleet.links}
    regions = list(dict.fromkeys(pool.region or recipe.home for pool in recipe.learners.values()))
    ring = [links.get(frozenset(pair)) for pair in zip(regions, regions[1:] + regions[:1], strict=True)]
    known = [link for link in ring if link is not None]
    if len(known) < len(ring):
        return None
    hops_s = [link.latency_ms / 1e3 for link in known] + [0.0] * (len(recipe.learners) - len(ring))  # 0: in a region
    return 8 * sent / min(link.gbit_s * 1e9 for link in known) + 2 * (sum(hops_s) - min(hops_s))


def _load(
    ends: str,
    names: tuple[str, ...],
    traffic: Traffic,
    step_s: float | None,
    bits: float | None,
    declared: float | None,
    latency_s: float,
    price: float | None,
) -> LinkLoad:
    up, down, learners = traffic.learner_up, traffic.learner_down, len(names)
    moved = learners * up.per_step_bytes + down.per_step_bytes
    day_bytes = None if step_s is None else moved * DAY_S / step_s

    def takes_s(size: float, trips: int) -> float | None:
        return None if bits is None else 8 * size / bits + trips * latency_s

    def steps(size: float, trips: int, waits: int) -> float | None:
        """With so many waits for a learner's step to end, and a merge."""
        seconds = takes_s(size, trips)
        return None if seconds is None or step_s is None else waits + (seconds + traffic.merge_s) / step_s

    ups, downs = learners * up.peak_bytes, down.peak_bytes  # a version comes down once
    return LinkLoad(
        ends=ends,
        field=f"fleet.links {ends}",
        names=names,
        up_bits=None if up.per_second_bits is None else learners * up.per_second_bits,
        down_bits=down.per_second_bits,
        link_bits=bits,
        declared_bits=declared,
        latency_s=latency_s,
        exchange_steps=steps(ups + downs, EXCHANGE, 2),
        update_steps=steps(ups + downs, UPDATE, 1),
        open_steps=steps(ups, OPEN, 1),
        contribution_s=takes_s(up.peak_bytes, 2),
        version_s=takes_s(down.peak_bytes, 2),
        joining_s=takes_s(max(traffic.joining_bytes, traffic.donation_bytes or 0), 1),
        day_bytes=day_bytes,
        day_price=None if day_bytes is None or price is None else price * day_bytes / GB,
    )
