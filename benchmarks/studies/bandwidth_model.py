"""Compute utilisation over links that carry every bit: fragments at the given P, H and tau; a whole model's gradients.

Datacenters are alike, one learner and one shard of the syncer in each, so that one of them stands for all: in each
phase it sends as much as it receives. Links are fluid, have a bandwidth each way and a latency, and serve the older
fragment first. A fragment takes two phases: the parts that other shards merge leave, then the shard's own part of the
new version leaves for all others; in both (D - 1) / D of it. Nothing else is on the links, nobody fails, merging takes
no time. Not the production machines: a second, simpler account to hold them against.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from outer.protocol.schedule import Schedule

ROUNDS = 3  # that are measured, after one that is not
PRECISION = 1e-4  # of a bandwidth that is searched for, as a share of it
DOUBLINGS = 60
EPSILON_S = 1e-12  # shorter times are rounding errors


@dataclass(frozen=True)
class Fleet:
    """Learners that exchange fragments under strict overlap: read after step s, adopted exactly after s + tau."""

    step_s: float
    datacenters: int  # D
    link_bits: float  # per second, out of a datacenter and into it
    sizes: tuple[float, ...]  # parameters of each fragment, in the order in which they are due
    round_steps: int = 24  # H
    overlap_steps: int = 2  # tau
    bits_up: int = 16  # of a parameter, in a contribution
    bits_down: int = 16  # and in a version
    latency_s: float = 0.0  # one way


@dataclass(frozen=True)
class DataParallel:
    """Learners that reduce all gradients in every step, as the backward pass makes them."""

    step_s: float
    datacenters: int
    link_bits: float
    parameters: float
    bits: int = 16
    latency_s: float = 0.0
    forward: float = 1 / 3  # share of a step in which there are no gradients yet
    buckets: int = 100  # equal parts, each sent once its share of the backward pass is over


@dataclass(frozen=True)
class Outcome:
    """What a learner did, and what its datacenter sent, over whole rounds in a steady state."""

    steps: int
    elapsed_s: float
    step_s: float
    sent_bits: float  # out of one datacenter; as many came in

    @property
    def utilisation(self) -> float:
        """Share of the time in which a learner stepped."""
        return self.steps * self.step_s / self.elapsed_s

    @property
    def step_bits(self) -> float:
        """Out of one datacenter, per step."""
        return self.sent_bits / self.steps


def even(parameters: float, fragments: int) -> tuple[float, ...]:
    """Fragments of one size."""
    return (parameters / fragments,) * fragments


# ------------------------------------------------------------------ fragments


@dataclass
class _Transfer:
    """One fragment on its way: the phase, what is left of it on the link, and then the latency."""

    left_bits: list[float]  # by phase that is still to come or under way
    arriving_s: float | None = None  # of a phase that has left: until it is there


@dataclass
class _Link:
    """What leaves one datacenter, the oldest fragment first."""

    bits: float  # per second
    latency_s: float
    now_s: float = 0.0
    sent_bits: float = 0.0
    under_way: dict[int, _Transfer] = field(default_factory=dict)  # by the step after which it was read

    def arrived(self, read: int) -> bool:
        return read not in self.under_way

    def advance(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass to the next event, again and again, until a moment has come or `stop` holds."""
        while self.now_s < until_s - EPSILON_S and not stop():
            served = next((one for one in self.under_way.values() if one.arriving_s is None), None)
            waits = [one.arriving_s for one in self.under_way.values() if one.arriving_s is not None]
            passed = min([until_s - self.now_s, *waits, *([served.left_bits[0] / self.bits] if served else [])])
            assert passed < math.inf, "nothing is under way, and something is waited for"
            self._pass(passed, served)

    def _pass(self, passed_s: float, served: _Transfer | None) -> None:
        self.now_s += passed_s
        for read, one in list(self.under_way.items()):
            if one is served:
                moved = min(one.left_bits[0], passed_s * self.bits)
                self.sent_bits += moved
                one.left_bits[0] -= moved
                if one.left_bits[0] <= EPSILON_S * self.bits:
                    one.left_bits.pop(0)
                    one.arriving_s = self.latency_s
            elif one.arriving_s is not None:
                one.arriving_s -= passed_s
            if one.arriving_s is not None and one.arriving_s <= EPSILON_S:
                one.arriving_s = None
                if not one.left_bits:
                    del self.under_way[read]


def simulate(fleet: Fleet) -> Outcome:
    """Some rounds of it, event by event. A learner reads after a step, then waits for what it has to adopt there."""
    schedule, tau = Schedule(len(fleet.sizes), fleet.round_steps), fleet.overlap_steps
    link = _Link(fleet.link_bits, fleet.latency_s)
    leaving = (fleet.datacenters - 1) / fleet.datacenters
    settled, last = fleet.round_steps, (1 + ROUNDS) * fleet.round_steps
    begun_s = begun_bits = 0.0
    for step in range(1, last + 1):
        link.advance(link.now_s + fleet.step_s)
        if (due := schedule.due(step)) is not None:
            parts = leaving * fleet.sizes[due]
            link.under_way[step] = _Transfer([parts * fleet.bits_up, parts * fleet.bits_down])
        link.advance(math.inf, lambda read=step - tau: link.arrived(read))  # type: ignore[misc]
        if step == settled:
            begun_s, begun_bits = link.now_s, link.sent_bits
    return Outcome(last - settled, link.now_s - begun_s, fleet.step_s, link.sent_bits - begun_bits)


# ------------------------------------------------------------------ gradients


def simulate_data_parallel(fleet: DataParallel) -> Outcome:
    """One step: buckets leave in order, each when it is made and the link is free; the next step waits for all."""
    bucket_bits = _least_bits(fleet) / fleet.buckets
    free_s = 0.0
    for bucket in range(1, fleet.buckets + 1):
        made_s = fleet.step_s * (fleet.forward + (1.0 - fleet.forward) * bucket / fleet.buckets)
        free_s = max(free_s, made_s) + bucket_bits / fleet.link_bits
    return Outcome(1, free_s + 2 * fleet.latency_s, fleet.step_s, fleet.buckets * bucket_bits)


# ------------------------------------------------------------------ the bandwidth for a utilisation


def needed(fleet: Fleet | DataParallel, utilisation: float) -> float | None:
    """Bits per second, each way, with which a learner steps for this share of the time. `fleet`'s own are not read.

    None: no bandwidth is enough, the latency is too long. By bisection: more bandwidth is never worse.
    """
    assert 0.0 < utilisation < 1.0, utilisation
    if fleet.datacenters == 1:
        return 0.0

    def enough(bits: float) -> bool:
        there = replace(fleet, link_bits=bits)
        outcome = simulate(there) if isinstance(there, Fleet) else simulate_data_parallel(there)
        return outcome.utilisation >= utilisation

    low = high = _least_bits(fleet) * utilisation / fleet.step_s
    if not enough(2.0**DOUBLINGS * high):
        return None
    while not enough(high):
        low, high = high, 2.0 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least_bits(fleet: Fleet | DataParallel) -> float:
    """What has to leave a datacenter per step: over links that conserve it, no schedule can do with less."""
    leaving = (fleet.datacenters - 1) / fleet.datacenters
    if isinstance(fleet, DataParallel):
        return 2 * leaving * fleet.parameters * fleet.bits
    return leaving * sum(fleet.sizes) * (fleet.bits_up + fleet.bits_down) / fleet.round_steps
