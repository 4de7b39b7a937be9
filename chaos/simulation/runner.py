"""Many seeds, one after another or side by side, and what they come to."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from chaos.simulation.cluster import Outcome, simulate
from orchestrator.analysis.database import connect
from orchestrator.simulation.context import Trace

CHUNK = 20  # seeds that a process takes at a time
COLLECT = 5  # seeds between two collections of garbage


@dataclass
class Tally:
    """The sums over all seeds run so far, in their order."""

    seeds: int = 0
    events: int = 0  # handed to machines
    commits: int = 0
    virtual_s: float = 0.0
    violations: list[tuple[int, str, str]] = field(default_factory=list)  # seed, check, reason
    fault_seeds: Counter[str] = field(default_factory=Counter)  # by kind: in how many seeds it had an effect
    fault_times: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """Over every history, in the order of the seeds."""
        return self._digest.hexdigest()

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.commits += outcome.commits
        self.virtual_s += outcome.virtual_s
        self.violations += [(outcome.seed, *violation) for violation in outcome.violations]
        self.fault_seeds.update(outcome.fault_counts.keys())
        self.fault_times.update(outcome.fault_counts)
        self.facts.update(outcome.facts)
        self._digest.update(outcome.digest.encode())


def run(
    seeds: Sequence[int], profile: str, jobs: int = 1, progress: Callable[[Tally, float], None] = lambda tally, s: None,
    trace: Trace | None = None,
) -> tuple[Tally, float]:  # fmt: skip
    """All seeds; returns what they came to and the seconds it took. `progress` is called as it goes on."""
    tally, began = Tally(), time.perf_counter()
    for outcome in _one_by_one(seeds, profile, trace) if jobs == 1 else _side_by_side(seeds, profile, jobs):
        tally.add(outcome)
        progress(tally, time.perf_counter() - began)
    return tally, time.perf_counter() - began


def _one_by_one(seeds: Sequence[int], profile: str, trace: Trace | None = None) -> Iterator[Outcome]:
    """Garbage of a seed is in cycles; looking for it all the time costs more than the seed."""
    enabled, database = gc.isenabled(), connect()
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            yield simulate(seed, profile, trace=trace, used=database)
            if number % COLLECT == COLLECT - 1:
                gc.collect()
    finally:
        if enabled:
            gc.enable()


def _side_by_side(seeds: Sequence[int], profile: str, jobs: int) -> Iterator[Outcome]:
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for outcomes in pool.map(_chunk, chunks, [profile] * len(chunks)):
            yield from outcomes


def _chunk(seeds: Sequence[int], profile: str) -> list[Outcome]:
    return list(_one_by_one(seeds, profile))
