"""Bytes that cross the links: fragments up and versions down, by step, round and second, and what plain training moves.

Payloads only: messages, facts and headers are not counted, nor what TCP adds. Knows nothing of placement but
each learner's region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outer.config import SyncConfig
from outer.numeric.chain import VersionChain
from outer.numeric.formats import named
from outer.protocol.fragments import Fragment
from outer.protocol.schedule import Schedule

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
class DataParallel:
    """Bytes that each learner would move in every step of synchronous data-parallel training: a ring all-reduce."""

    each_way_bytes: int
    ratio: float | None  # to what a learner moves here per step, both directions; None with one learner


@dataclass(frozen=True)
class Traffic:
    learner_up: Flow
    learner_down: Flow
    joining_bytes: int  # down, for each learner that starts from the syncer: at the run's start, or with no peer
    donation_bytes: int | None  # from a peer to each one that joins or is restarted; None: they start from the syncer
    run_up_bytes: int  # of a run in which no learner misses a merge
    run_down_bytes: int  # of the same run, with each learner's first versions
    data_parallel: DataParallel


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
    return Traffic(
        learner_up=up,
        learner_down=down,
        joining_bytes=model,
        donation_bytes=parameter_bytes + inner_state_bytes if _peers_give(sync) else None,
        run_up_bytes=learners * sum(size * count for size, count in zip(ups, commits, strict=True)),
        run_down_bytes=sum(fetches(region, syncer_region, count) for region, count in counted.items())
        * (model + sum(size * count for size, count in zip(downs, commits, strict=True))),
        data_parallel=_data_parallel(parameter_bytes, learners, up.per_step_bytes + down.per_step_bytes),
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


def _data_parallel(parameter_bytes: int, learners: int, here: float) -> DataParallel:
    """Each of M sends and receives 2 (M - 1) / M of the gradients, which have the parameters' dtype."""
    moved = 2 * (learners - 1) * parameter_bytes // learners
    return DataParallel(moved, 2 * moved / here if learners > 1 and here else None)
