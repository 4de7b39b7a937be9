"""The books of each fragment: was a token's part of this one fragment committed?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from orchestrator.accounting.ledger import COMMITTED, FATE, FATES
from orchestrator.accounting.lost_steps import Retired
from orchestrator.accounting.records import Records
from orchestrator.accounting.refusals import Refusal, reasons
from orchestrator.accounting.windows import StepWindows
from orchestrator.eventlog.block import Ints, Key


@dataclass
class TokenFragments:
    """Counts by fragment and fate, part of the books. A step's part of a fragment is settled when the fragment is read
    or overwritten after it.
    """

    windows: StepWindows
    count: int = 0
    sums: Ints = field(default_factory=lambda: np.zeros((0, len(FATES)), np.int64))  # [fragments, fates]
    unknown: list[int] = field(default_factory=list)
    done: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [slots, fragments] settled up to this step

    def widen(self, count: int) -> None:
        if count > self.count:
            sums = np.zeros((count, len(FATES)), np.int64)
            sums[: self.count] = self.sums
            self.sums, self.unknown = sums, [*self.unknown, *[0] * (count - self.count)]
            self.count = count

    def merge(
        self, records: Records, refused: Mapping[Key, list[Refusal]], slots: Ints, first: Ints, last: Ints
    ) -> None:
        """Count fragment by fragment, in log order, what contributions merged and what they left out below."""
        windows, parts, commits = self.windows, records.contributions, records.commits
        fragments = commits.fragment[parts.commit]
        rows = np.flatnonzero((slots >= 0) & (fragments < self.count))
        if len(rows):
            width = windows.fragments
            place = slots[rows] * width + fragments[rows]
            order = rows[np.argsort(place, kind="stable")]
            place = slots[order] * width + fragments[order]
            opens = np.diff(place, prepend=-1) != 0
            done = self.done.reshape(-1)
            # The step up to which each was counted before: in its place's order, never falling.
            before = np.concatenate([[0], parts.step[order][:-1]])
            before[opens] = done[place[opens]]
            lift = np.cumsum(opens) << 41
            before = np.maximum.accumulate(before + lift) - lift
            base = np.maximum(parts.base_step[order], before)
            which, upto = slots[order], windows.upto(slots[order], base)
            self._lose(refused, which, fragments[order], before, base)
            tokens = windows.tokens_in(np.minimum(np.maximum(first[order], upto), last[order]), last[order])
            np.add.at(self.sums[:, FATE[COMMITTED]], fragments[order], tokens)
            np.maximum.at(done, place, parts.step[order])
        wiped = windows.wiped[:, : self.count]
        where = np.nonzero(wiped > self.done[:, : self.count])
        self._lose(refused, where[0], where[1], self.done[where], wiped[where])
        self.done[where] = wiped[where]

    def _lose(
        self, refusals: Mapping[Key, list[Refusal]], slots: Ints, fragments: Ints, after: Ints, upto: Ints
    ) -> None:
        """Discard a fragment's part of the steps (after, upto], which was overwritten."""
        windows = self.windows
        first, last = windows.upto(slots, after), windows.upto(slots, upto)
        refused = {windows.slots[key]: refusals[key] for key in refusals}
        plain = ~np.isin(slots, list(refused)) if refused else np.ones(len(slots), bool)
        tokens = windows.tokens_in(first[plain], last[plain])
        np.add.at(self.sums[:, FATE["overlap"]], fragments[plain], tokens)
        for row in np.flatnonzero(~plain & (last > first)).tolist():
            rows = windows.rows.part(slice(int(first[row]), int(last[row])))
            here = [refusal for refusal in refused[int(slots[row])] if refusal.fragment == fragments[row]]
            np.add.at(self.sums[fragments[row]], reasons(rows.step, here), rows.tokens)

    def beyond(self, slot: int, last: int, fate: int) -> Ints:
        """[fragments, fates]: the tokens of an incarnation's steps that `sums` do not count yet, all of this fate."""
        shares = np.zeros_like(self.sums)
        slots = np.full(self.count, slot)
        first = self.windows.upto(slots, self.done[slot, : self.count])
        shares[:, fate] = self.windows.tokens_in(first, np.full(self.count, last))
        return shares

    def add_lost(self, sums: Ints, unknown: list[int], lost: Retired) -> None:
        """Add the tokens of lost steps to these sums."""
        for fragment, committed in enumerate(lost.fragments):
            sums[fragment, FATE[COMMITTED]] += committed
            unknown[fragment] += lost.committed + lost.unknown - committed
