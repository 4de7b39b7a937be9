"""The syncer's rules a second time: slow, plain, written from docs/protocol.md and not from the code.

Tables are built whole and searched, sets hold every single step and sample, numbers are exact fractions. It knows
nothing of events and effects; `twin_syncer.py` puts the rules together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

# ------------------------------------------------------------------ syncer steps


def due(fragments: int, round_steps: int, syncer_step: int) -> int | None:
    """Write down the round, step by step, and look."""
    table: list[int | None] = [None] * round_steps
    for fragment in range(fragments):
        place = int(Fraction(fragment * round_steps, fragments))
        assert table[place] is None, "at most one per step"
        table[place] = fragment
    for _ in range(syncer_step):
        table = [*table[1:], table[0]]
    return table[0]


def upcoming(fragments: int, round_steps: int, syncer_step: int, steps: int) -> list[int]:
    found: list[int] = []
    for t in range(syncer_step + 1, syncer_step + steps + 1):
        fragment = due(fragments, round_steps, t)
        if fragment is not None and fragment not in found:
            found.append(fragment)
    return found


# ------------------------------------------------------------------ pace, quorum and grace


def median(values: Iterable[Fraction]) -> Fraction:
    """The value, or the mean of the two, with as many below as above; of nothing, 0."""
    left = sorted(values)
    if not left:
        return Fraction(0)
    while len(left) > 2:
        left = left[1:-1]
    return sum(left, Fraction(0)) / len(left)


def average(samples: Sequence[Fraction], smoothing: Fraction) -> Fraction:
    """Every sample with its weight: (1 - s)^age for the first, s (1 - s)^age for the others."""
    total = Fraction(0)
    for index, sample in enumerate(samples):
        weight = (1 - smoothing) ** (len(samples) - 1 - index)
        total += sample * weight * (1 if index == 0 else smoothing)
    return total


def grace(gamma: Fraction, overlap_steps: int, step_s: Fraction, quorum_s: Fraction, sync_s: Fraction) -> Fraction:
    """gamma * slack, within 0 and one step."""
    slack = overlap_steps * step_s - (quorum_s + sync_s)
    return sorted([Fraction(0), gamma * slack, step_s])[1]


class Decided(NamedTuple):
    """When an open step stops collecting, and with whom."""

    at: Fraction
    reported: frozenset[str]
    quorum_at: Fraction


def decided(
    opened_at: Fraction,
    reports: Sequence[tuple[Fraction, str, int]],
    leases: Mapping[str, Fraction],
    quorum: int,
    grace_s: Fraction | None,
) -> Decided | None:
    """Go through every moment at which anything happens, and ask each time who has reported until then.

    `reports`: (time, learner, its step number), in the order of time; those before `opened_at` say how far each was
    when the step opened. `leases`: until when each learner is live. `grace_s`: what a quorum is granted, None without
    end. None: it collects for ever.
    """
    moments = sorted({at for at, _, _ in reports if at > opened_at} | {at for at in leases.values() if at > opened_at})
    if grace_s is not None:
        moments = sorted({*moments, *(at + grace_s for at in moments)})
    quorum_at: Fraction | None = None
    for now in moments:
        live = {name for name, until in leases.items() if now < until}
        reached = {name: max((s for at, n, s in reports if n == name and at <= now), default=0) for name in live}
        before = {name: max((s for at, n, s in reports if n == name and at <= opened_at), default=0) for name in live}
        reported = frozenset(name for name in live if reached[name] > before[name])
        if len(reported) < quorum:
            quorum_at = None
            continue
        quorum_at = now if quorum_at is None else quorum_at
        if reported == live or (grace_s is not None and now >= quorum_at + grace_s):
            return Decided(now, reported, quorum_at)
    return None


# ------------------------------------------------------------------ contributions


def eligible(counters: Mapping[str, tuple[int | None, int]], version: int) -> list[str]:
    """Learners by name whose last report shows this version as base, and a step on it: (base version, steps)."""
    return sorted(name for name in counters if counters[name][0] == version and counters[name][1] > 0)


def weights(counters: Sequence[tuple[int, int]]) -> list[Fraction]:
    """Of each (tokens, steps): quantity times quality, as a share of all."""
    raw = [tokens * Fraction(tokens, steps) for tokens, steps in counters]
    return [each / sum(raw) for each in raw]


def covered(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """The steps that are in any of the ranges (from, to]."""
    return {step for begin, end in ranges for step in range(begin + 1, end + 1)}


# ------------------------------------------------------------------ fragments


def deal(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Take the largest tensor that is left and put it into the fragment that is smallest so far."""
    fragments: list[list[str]] = [[] for _ in range(count)]
    left = dict(sizes)
    while left:
        largest = min(name for name in left if left[name] == max(left.values()))
        totals = [sum(sizes[name] for name in fragment) for fragment in fragments]
        fragments[totals.index(min(totals))].append(largest)
        del left[largest]
    return fragments


# ------------------------------------------------------------------ spans


class Pool:
    """Samples by number: those that came back, those that were never lent, and who has which."""

    def __init__(self) -> None:
        self.back: set[int] = set()
        self.fresh = 0  # every sample from here on was never lent
        self.lent: dict[tuple[str, int], list[int]] = {}  # in the order of use

    def grant(self, learner: str, incarnation: int, samples: int, batch_size: int) -> list[int]:
        """Whole batches: of the first run of samples that came back and is long enough, else of new ones."""
        for first in sorted(self.back):
            run = [first]
            while run[-1] + 1 in self.back and len(run) < samples:
                run.append(run[-1] + 1)
            if first - 1 not in self.back and len(run) >= batch_size:
                given = run[: len(run) // batch_size * batch_size]
                break
        else:
            given = list(range(self.fresh, self.fresh + samples))
            self.fresh += samples
        self.back -= set(given)
        self.lent.setdefault((learner, incarnation), []).extend(given)
        return given

    def release(self, learner: str, incarnation: int, committed: int) -> list[int]:
        """What lies after the first so many of its samples comes back."""
        unused = self.lent.pop((learner, incarnation), [])[committed:]
        self.back |= set(unused)
        return unused
