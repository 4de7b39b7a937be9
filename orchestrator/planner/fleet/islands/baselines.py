"""Fleets in which learners wait for each other, on the same islands with the same failures.

Synchronous DiLoCo: after every H steps all wait for the slowest. Streaming DiLoCo: a fragment is due at every step, and
one read at step s is adopted exactly after s + tau, so nobody is more than tau steps ahead of the slowest. Sending and
merging take no time here: what is lost is lost to failures and to waiting. A learner that waits loses no chips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from orchestrator.planner.fleet.islands.idle import Measured, Record, measured
from orchestrator.planner.fleet.islands.island import Island


def synchronous(islands: Sequence[Island], warm_up_s: float, until: float, round_steps: int) -> Measured:
    """From the first round that begins after `warm_up_s`, in seconds, to the first that ends after `until`."""
    records = [Record() for _ in islands]
    ready = [0.0] * len(islands)
    together, begin = 0.0, None
    while together < until:
        if begin is None and together >= warm_up_s:
            begin, records = together, [Record(begin=together) for _ in islands]
        finished = []
        for island, record, now in zip(islands, records, ready, strict=True):
            finished.append(_round(island, record, max(now, together), round_steps))
        together = max(end for end, _ in finished)
        ready = [end + stall_s for end, stall_s in finished]
        for record, (end, stall_s) in zip(records, finished, strict=True):
            record.idle(end, max(together, end + stall_s))
            record.end = together
    assert begin is not None
    return measured(records, begin, together)


def _round(island: Island, record: Record, now: float, steps: int) -> tuple[float, float]:
    """When the last of so many steps from `now` on ends, and the stall after it."""
    while True:
        leap = island.leap(now, steps)
        record.useful_s += leap.worth * island.failures.step_s
        steps -= leap.steps
        end = now + leap.seconds
        if not steps:
            return end, leap.stall_s
        record.idle(end, now := end + leap.stall_s)


def streaming(islands: Sequence[Island], warm_up_s: float, until: float, overlap_steps: int) -> Measured:
    """From the first step that all finish after `warm_up_s`, in seconds, to the first after `until`."""
    records = [Record() for _ in islands]
    ready = [0.0] * len(islands)
    ended = [0.0] * len(islands)
    all_finished = deque([0.0] * (overlap_steps + 1), maxlen=overlap_steps + 1)  # step s - tau, ..., the newest last
    begin = None
    while all_finished[-1] < until:
        if begin is None and all_finished[-1] >= warm_up_s:
            begin = all_finished[-1]
            records = [Record(begin=end) for end in ended]
        gate = all_finished[0]
        for index, (island, record) in enumerate(zip(islands, records, strict=True)):
            now = max(ready[index], gate)
            if now > ended[index]:
                record.idle(ended[index], now)
            sample = island.sample(now)
            record.useful_s += sample.share * sample.seconds
            record.end = ended[index] = now + sample.seconds
            ready[index] = record.end + sample.stall_s
        all_finished.append(max(ended))
    assert begin is not None
    return measured(records, begin, all_finished[-1])
