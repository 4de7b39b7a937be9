"""Messages of a confused or an outdated peer: answers and reports that cannot be right, and stale messages.

Each is one that such a peer could send. invariants.py checks that the machines refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from chaos.simulation.checks.oracle import Oracle
from chaos.simulation.checks.provenance import Content
from chaos.simulation.profile import SHARED, pick
from outer.numeric import codec as codecs
from outer.protocol.events_effects import DrainRequested, Event, Expect, Fence
from outer.protocol.messages import (
    STEPPING,
    Attach,
    Contribution,
    Drain,
    FragmentCounters,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    StateRequest,
    Stop,
    Welcome,
)

NOBODY = "nobody"  # no run has a learner of this name
SHORT = 0.2  # share of the reports that are shortened, while answers are garbled
LEASE_S = 5.0


# ------------------------------------------------------------------ what cannot be right


def garbled(contribution: Contribution, fragments: int, rng: Random, oracle: Oracle) -> Contribution:
    """An answer that must be refused, with an equal payload that is another object; the oracle knows the reason."""
    wrong, reason = pick(rng, GARBLED if fragments > 1 else GARBLED[1:])
    content = Content(*oracle.values.of(contribution.payload))
    oracle.garbled[id(content)] = content, reason
    payload = oracle.values.array(content)
    return replace(wrong(contribution, fragments), payload=payload, digest=codecs.digest(payload))


def _counted(change: Callable[[FragmentCounters], dict[str, Any]]) -> Callable[[Contribution, int], Contribution]:
    def wrong(contribution: Contribution, fragments: int) -> Contribution:
        counters = contribution.counters
        return replace(contribution, counters=counters._replace(**change(counters)))

    return wrong


GARBLED: tuple[tuple[Callable[[Contribution, int], Contribution], str], ...] = (
    (lambda answer, fragments: replace(answer, fragment=(answer.fragment + 1) % fragments), "wrong_fragment"),
    (_counted(lambda counters: {"base_version": None}), "stale_base"),
    (_counted(lambda counters: {"base_version": -1}), "stale_base"),
    (_counted(lambda counters: {"steps": counters.steps + 1}), "wrong_counters"),
    (_counted(lambda counters: {"base_step": counters.base_step - 1}), "wrong_counters"),
    (_counted(lambda counters: {"tokens": 0}), "wrong_counters"),
    (lambda answer, fragments: replace(answer, processed=answer.counters.tokens - 1), "wrong_counters"),
    (lambda answer, fragments: replace(answer, processed=10**12), "wrong_counters"),
    (lambda answer, fragments: replace(answer, learner=NOBODY), "wrong_sender"),
    (lambda answer, fragments: replace(answer, codec="int8" if answer.codec == "fp4" else "fp4"), "wrong_shape"),
    (lambda answer, fragments: replace(answer, processed=10**18), "malformed"),
    (lambda answer, fragments: replace(answer, step="many"), "malformed"),  # type: ignore[arg-type]
    (_counted(lambda counters: {"tokens": 1e300}), "malformed"),
    (_counted(lambda counters: {"steps": None}), "malformed"),
)


def shortened(report: Report, rng: Random) -> Report:
    """At times a report of a peer that knows of fewer fragments, to be refused."""
    if rng.random() >= SHORT:
        return report
    return replace(report, counters=report.counters[: int(rng.random() * len(report.counters))])


# ------------------------------------------------------------------ words of long ago


def to_syncer(learner: str, incarnation: int, epoch: int) -> list[tuple[Event, frozenset[str]]]:
    """Messages to an epoch while this incarnation is the newest, and the reasons of which one must refuse each.

    Where there is none it passes it over.
    """
    before = incarnation - 1
    counters = FragmentCounters(0, 0, 1, 1)
    stale, unknown, older = frozenset({"stale_incarnation"}), frozenset({"unknown_learner"}), {"stale_epoch"}
    return [
        (Expect(learner, before, LEASE_S, 1), stale),
        (SeekDonor(learner, before, epoch), stale),
        (Contribution(learner, before, epoch, 1, 0, 1, 1, 1, counters, None, ""), stale),
        (SeekDonor(learner, incarnation, epoch - 1), stale | older),
        (Contribution(learner, incarnation, epoch - 1, 1, 0, 1, 1, 1, counters, None, ""), stale | older),
        (Attach(NOBODY, 1, SHARED), unknown),
        (SeekDonor(NOBODY, 1, epoch), unknown),
        (Report(NOBODY, 1, epoch, 1, STEPPING, LEASE_S, 1, 0.1, 1, 1, (counters,)), unknown),
        (Contribution(NOBODY, 1, epoch, 1, 0, 1, 1, 1, counters, None, ""), unknown),
        (DrainRequested(learner, before, "long ago", LEASE_S), frozenset()),
        (Fence(learner, before, "killed"), frozenset()),
        (DrainRequested(NOBODY, 1, "long ago", LEASE_S), frozenset()),
    ]


def to_learner(learner: str, incarnation: int, epoch: int, fragments: int) -> list[Any]:
    """Messages to an incarnation that has attached to this epoch: of an older one, or meant for the one before."""
    events: list[Any] = [
        Stop(epoch - 1, "long ago"),
        Notice(epoch - 1, 0, 0, 0, "", 0.0),
        Welcome(epoch - 1, 0, 0.0, (0,) * fragments),
        Welcome(epoch, 0, 0.0, (0,) * fragments),
        StateRequest(epoch, NOBODY, 1, learner, incarnation, 0, LEASE_S),
    ]
    for whose, whom in ((epoch - 1, incarnation), (epoch, incarnation - 1)):
        events += [
            Grant(whose, whom, 10**9, 0, 10**9),
            Drain(whose, whom, "long ago", LEASE_S),
            ReadRequest(whose, whom, 1, 0, 1, 0.0, LEASE_S),
            StateRequest(whose, NOBODY, 1, learner, whom, 0, LEASE_S),
        ]
    return events
