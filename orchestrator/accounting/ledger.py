"""The books: the fate of every token that was processed, computed from the event log alone, as it is read.

The unit is one step of one incarnation of one learner, with its tokens. It is

- committed, when a contribution that covers it, (base_step, step], has merged into any fragment;
- discarded, when none can any more, for the first reason that applies:
  `overlap`      every fragment was overwritten after the step, before it was read;
  `stale_base`   the same, and the last contribution that surely covered it was refused for its base;
  `refused`      the same, refused for another reason;
  `killed`       its incarnation was fenced or lost before the step was read;
  `drained`      the same, but it had been asked to leave, and its deadline passed;
  `run_ended`    the run ended first;
- unknown, when the fact that told of it was lost (FactsLost) and no contribution covers it;
- in flight otherwise.

A refusal does not name the steps it covered. It surely covered those that finished before its syncer step opened and
after the last overwriting adoption before the refusal; others stay `overlap`. Every number is an integer and summed on
its own, never by subtraction. While the log is growing, `killed` may become committed: a contribution received before a
fence may merge after it. That is over once the newest syncer step that was open at the fence has ended, because syncer
steps end in order. orchestrator/accounting/lost_steps.py says how lost steps count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from orchestrator.accounting.windows import StepTable
from orchestrator.eventlog.block import Ints, Key

COMMITTED, IN_FLIGHT, UNKNOWN = "committed", "in_flight", "unknown"
REASONS = ("drained", "killed", "overlap", "refused", "run_ended", "stale_base")
FATES = (IN_FLIGHT, COMMITTED, *REASONS)  # Table.fate indexes it; in flight is PENDING
FATE = {fate: place for place, fate in enumerate(FATES)}

Unit = tuple[str, int, int]  # learner, incarnation, step


@dataclass(frozen=True)
class Ledger:
    """Token counts by fate."""

    processed: int
    committed: int
    discarded: dict[str, int]  # by reason; every reason is there
    in_flight: int
    unknown: int = 0

    @property
    def balanced(self) -> bool:
        return self.processed == self.committed + sum(self.discarded.values()) + self.in_flight + self.unknown


@dataclass(frozen=True)
class Books(Ledger):
    """The whole run's ledger, each learner's, and each fragment's."""

    by_learner: dict[str, Ledger] = field(default_factory=dict)
    token_fragments: tuple[Ledger, ...] = ()  # fragment by fragment: was this token's part of *it* committed
    fates: dict[Unit, str] = field(default_factory=dict)  # of every unit; only `settle` fills it


class Covered(NamedTuple):
    """The known steps that contributions cover, arrays of [m]."""

    slots: Ints  # NONE: the log knows no step of its incarnation
    first: Ints  # rows [first, last) of the windows
    last: Ints


class Settled(NamedTuple):
    """Steps of one incarnation, in step order, whose fates are final."""

    key: Key
    rows: StepTable


def nothing() -> Ints:
    return np.zeros(len(FATES), np.int64)


@dataclass
class Sums:
    """A ledger under construction."""

    fates: Ints = field(default_factory=nothing)  # tokens by fate
    unknown: int = 0
    said: int = 0  # tokens processed, counted apart

    @property
    def ledger(self) -> Ledger:
        of = dict(zip(FATES, self.fates.tolist(), strict=True))
        discarded = {reason: of[reason] for reason in REASONS}
        return Ledger(self.said, of[COMMITTED], discarded, of[IN_FLIGHT], self.unknown)
