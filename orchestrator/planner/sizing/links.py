"""Whether the links are wide enough: for one fragment by its deadline, for all at once, and for the mean.

Looks only at nodes whose bandwidth is known, and counts each one's way to all others as one link.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.sizing.draft import Draft, gib
from orchestrator.planner.sizing.nodes import Node
from orchestrator.planner.sizing.rates import floor_s
from orchestrator.planner.sizing.traffic import DOWN_BYTES
from orchestrator.recipe.problems import Problem
from outer.protocol.leases import longest_s


@dataclass(frozen=True)
class _Link:
    """A node's way to the others, and how many learners' fragments cross it."""

    node: Node
    bits: float  # per second
    learners: int


def _links(draft: Draft) -> list[_Link]:
    """Of known speed: from learners that are not on the syncer's node, and to the syncer's."""
    hub = draft.node_of("syncer")
    if hub is None:
        return []
    away = Counter(place for place in draft.placement.learners.values() if place != hub.name)
    crossing = [(node, away[node.name]) for node in draft.nodes] + [(hub, away.total())]
    return [
        _Link(node, node.bandwidth_bits, count) for node, count in crossing if count and node.bandwidth_bits is not None
    ]


def _whole(draft: Draft) -> int:
    """Bytes of the largest fragment in float32, by which its deadlines grow."""
    return DOWN_BYTES * max(row.elements for row in draft.rows)


def _transfers(draft: Draft) -> Iterator[tuple[str, float, str, int]]:
    """(field, its value in seconds, what has to cross by then, bytes of it)."""
    sync, moved = draft.recipe.sync, draft.traffic
    yield "sync.read_timeout_s", sync.read_timeout_s, "contribution", moved.learner_up.peak_bytes
    yield "sync.transfer_s", sync.transfer_s, "version", _whole(draft)  # who joins, or is late, takes no differences


def _crowd(link: _Link) -> float:
    return link.learners / link.bits


def deadlines(draft: Draft) -> Iterator[Problem]:
    """A fragment that takes longer than its deadline, alone on its link, never arrives."""
    for field, floor, what, size in _transfers(draft):
        slowest = min(_links(draft), key=lambda link: link.bits, default=None)
        if slowest is not None and (takes := 8 * size / slowest.bits) > longest_s(floor, _whole(draft)):
            yield Problem(
                field,
                floor,
                f"one {what} of the largest fragment takes {takes:.3g} s over {slowest.node.name}'s "
                f"{slowest.bits / 1e9:g} Gbit/s: every one would be late",
                f"set {field} above {floor_s(takes, _whole(draft)):.3g}{_smaller(draft, what)}",
            )


def crowding(draft: Draft) -> Iterator[Problem]:
    """As `deadlines`, for all learners that share a link and are asked at once."""
    for field, floor, what, size in _transfers(draft):
        busiest, deadline = max(_links(draft), key=_crowd, default=None), longest_s(floor, _whole(draft))
        if busiest is None or 8 * size / min(link.bits for link in _links(draft)) > deadline:
            continue  # none, or a limit already
        if (takes := 8 * size * busiest.learners / busiest.bits) > deadline:
            yield Problem(
                field,
                floor,
                f"{busiest.learners} {what}s of the largest fragment at once take {takes:.3g} s over "
                f"{busiest.node.name}'s {busiest.bits / 1e9:g} Gbit/s: some would be late",
                f"set {field} above {floor_s(takes, _whole(draft)):.3g}{_smaller(draft, what)}",
            )


def donations(draft: Draft) -> Iterator[Problem]:
    """A peer's state that takes longer than its deadline never arrives; the joiner then starts from the syncer."""
    homes = set(draft.placement.learners.values())
    speeds = [(node.bandwidth_bits, node) for node in draft.nodes if node.name in homes and node.bandwidth_bits]
    size, deadline = draft.traffic.donation_bytes, draft.recipe.sync.transfer_s
    if size is None or len(homes) < 2 or not speeds:
        return
    bits, node = min(speeds, key=lambda speed: speed[0])
    if (takes := 8 * size / bits) > longest_s(deadline, size):
        yield Problem(
            "sync.transfer_s",
            deadline,
            f"a peer's state of {gib(size)} takes {takes:.3g} s over {node.name}'s {bits / 1e9:g} Gbit/s: who joins "
            "there, or from there, starts from the syncer, with a fresh inner optimizer",
            f'set sync.transfer_s above {floor_s(takes, size):.3g}, or sync.recover = "syncer"',
        )


def _smaller(draft: Draft, what: str) -> str:
    more = f", sync.P above {len(draft.rows)}" if draft.recipe.sync.round_steps > len(draft.rows) else ""
    half = what == "contribution" and draft.recipe.sync.codec.startswith("fp32")
    return more + (', or sync.codec = "bf16"' if half else "")


def rate(draft: Draft) -> Iterator[Problem]:
    """On average, the fragments that fall due in a step must cross within a step."""
    busiest = max(_links(draft), key=_crowd, default=None)
    moved, round_steps = draft.traffic, draft.recipe.sync.round_steps
    mean = max(moved.learner_up.per_second_bits or 0.0, moved.learner_down.per_second_bits or 0.0)
    if busiest is not None and (needed := mean * busiest.learners) > busiest.bits:
        yield Problem(
            "sync.H",
            round_steps,
            f"what is due to and from {busiest.learners} learner{'s' * (busiest.learners > 1)} needs "
            f"{needed / 1e9:.3g} Gbit/s in the mean, over {busiest.node.name}'s {busiest.bits / 1e9:g} Gbit/s",
            f"set sync.H to at least {math.ceil(round_steps * needed / busiest.bits)}",
        )
