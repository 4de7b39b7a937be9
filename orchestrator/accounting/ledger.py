"""The books: the fate of every token that was processed, computed from the event log alone, as it is read.

The unit is one step of one incarnation of one learner, with its tokens. It is

- committed, when a contribution that covers it, (base_step, step], has merged into any fragment;
- discarded, when none can any more, for the first reason that applies:
  `overlap`      every fragment was overwritten after the step, before it was read;
  `stale_base`   the same, and the last contribution that surely covered it was refused for its base;
  `refused`      the same, refused for another reason;
  `killed`       its incarnation was fenced or lost before the step was read;
  `drained`      the same, but it had been asked to leave, and its deadline passed;
  `set_aside`    its incarnation ended on the step's samples, which were set aside;
  `run_ended`    the run ended first;
- unknown, when the fact that told of it was lost (FactsLost) and no contribution covers it;
- in flight otherwise.

A refusal does not name the steps it covered. It surely covered those that finished before its syncer step opened and
after the last overwriting adoption before the refusal; others stay `overlap`. Every number is an integer and summed on
its own, never by subtraction. While the log is growing, `killed` may become committed: a contribution received before a
fence may merge after it. That is over once the newest syncer step that was open at the fence has ended, because syncer
steps end in order. How lost steps count is said below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from orchestrator.accounting.records import Records
from orchestrator.accounting.windows import StepTable, StepWindows
from orchestrator.eventlog.block import NONE, Ints, Key
from outer.protocol.facts import Refused

COMMITTED, IN_FLIGHT, UNKNOWN = "committed", "in_flight", "unknown"
REASONS = ("drained", "killed", "overlap", "refused", "run_ended", "set_aside", "stale_base")
FATES = (IN_FLIGHT, COMMITTED, *REASONS)  # StepTable.fate indexes it; in flight is PENDING
FATE = {fate: place for place, fate in enumerate(FATES)}


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


# ------------------------------------------------------------------ lost steps

# Steps of one incarnation whose facts were lost: their number and tokens, as what is known tells them.
# Steps missing between two known ones count with the tokens of the next known one. A contribution that covers lost
# steps says their tokens: what it counts beyond the known steps in its range. From then on they are committed, with
# that number; otherwise they stay unknown for good.


class Retired(NamedTuple):
    """Tokens of lost steps that no contribution can cover any more."""

    committed: int
    unknown: int
    fragments: list[int]  # committed, by fragment


@dataclass
class LostSteps:
    step: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # ascending
    tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    fragments: list[set[int]] = field(default_factory=list)  # by step, those it was committed through
    after: int = NONE  # steps after this one are missing, and the next known step tells how many; NONE: none are

    def lose(self, newest: int) -> None:
        """Facts were lost after this step."""
        if self.after == NONE:
            self.after = max(newest, int(self.step.max(initial=0)), 0)

    def resume(self, step: int, tokens: int) -> None:
        """The next known step after a loss."""
        self._add(self.after, step - 1, tokens)
        self.after = NONE

    def cover(self, base_step: int, step: int, fragment: int, tokens: int, known: int) -> int:
        """A contribution of so many tokens, of which `known` are of known steps in its range, merged.

        Returns the tokens of lost steps that no contribution had covered before.
        """
        if self.after != NONE and step > self.after:
            self._add(self.after, step, 0)
            self.after = step
        inside = np.flatnonzero((self.step > base_step) & (self.step <= step)).tolist()
        fresh = [row for row in inside if not self.fragments[row]]
        for row in inside:
            self.fragments[row].add(fragment)
        if not fresh:
            return 0
        counted = max(0, tokens - known - int(self.tokens[[row for row in inside if row not in fresh]].sum()))
        each, rest = divmod(counted, len(fresh))
        self.tokens[fresh] = each
        self.tokens[fresh[:rest]] += 1
        return counted

    def retire(self, upto: int, fragments: int) -> Retired:
        """Forget the steps up to this one."""
        gone = int(np.searchsorted(self.step, upto, "right"))
        total = self._sums(gone, fragments)
        self.step, self.tokens, self.fragments = self.step[gone:], self.tokens[gone:], self.fragments[gone:]
        return total

    def sums(self, fragments: int) -> Retired:
        return self._sums(len(self.step), fragments)

    @property
    def empty(self) -> bool:
        return not len(self.step) and self.after == NONE

    def _add(self, after: int, upto: int, tokens: int) -> None:
        steps = np.arange(max(after, int(self.step.max(initial=0))) + 1, upto + 1)
        self.step = np.concatenate([self.step, steps])
        self.tokens = np.concatenate([self.tokens, np.full(len(steps), tokens)])
        self.fragments += [set() for _ in steps]

    def _sums(self, rows: int, fragments: int) -> Retired:
        tokens, through = self.tokens[:rows].tolist(), self.fragments[:rows]
        committed = sum(count for count, where in zip(tokens, through, strict=True) if where)
        apart = [sum(n for n, where in zip(tokens, through, strict=True) if p in where) for p in range(fragments)]
        return Retired(committed, sum(tokens) - committed, apart)


# ------------------------------------------------------------------ refusals

# Refused contributions, and which steps they surely covered.


OPENED_KEPT = 1024  # a refusal is about one of so many newest syncer steps


class Refusal(NamedTuple):
    """A refused contribution: it surely covered the steps (based, upto]."""

    fragment: int
    fate: int
    based: int
    upto: int


def reasons(steps: Ints, refusals: Iterable[Refusal]) -> Ints:
    """Why these overwritten steps were never merged: of several refusals, the newest of the last fragment tells."""
    fates = np.full(len(steps), FATE["overlap"])
    for refusal in sorted(refusals, key=lambda each: each.fragment):
        fates[(steps > refusal.based) & (steps <= refusal.upto)] = refusal.fate
    return fates


@dataclass
class Refusals:
    """Part of the books: the refusals that still may tell why a step is discarded."""

    windows: StepWindows
    of: dict[Key, list[Refusal]] = field(default_factory=dict)
    wiped: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # the windows' before the newest block
    _opened: dict[int, int] = field(default_factory=dict)  # syncer step -> position of its opening

    def open(self, step: int, position: int) -> None:
        """A syncer step opened."""
        self._opened[step] = position
        if len(self._opened) > OPENED_KEPT:
            del self._opened[next(iter(self._opened))]

    def refuse(self, position: int, fact: Refused) -> None:
        # The first copy of a duplicate was accepted, so the second loses nothing.
        if fact.message != "contribution" or fact.reason == "doubled":
            return
        windows, fragment, key = self.windows, fact.fragment, (fact.learner, fact.incarnation)
        opened, slot = self._opened.get(fact.syncer_step or 0), windows.slots.get(key)
        if opened is None or slot is None or fragment is None or fragment >= windows.fragments:
            return
        row = int(windows.by(np.array([slot]), np.array([opened]))[0]) - 1
        if row < 0 or windows.rows.slot[row] != slot:
            return
        grouped = windows.grouped
        assert grouped is not None
        adopted = grouped.adoptions
        before = grouped.overwrites & (grouped.adoption_slots == slot) & (adopted.fragment == fragment)
        newer = adopted.after_step[before & (adopted.position < position)].max(initial=NONE)
        based = max(int(newer), int(self.wiped[slot, fragment]))
        fate = FATE["stale_base" if fact.reason == "stale_base" else "refused"]
        self.of.setdefault(key, []).append(Refusal(fragment, fate, based, int(windows.rows.step[row])))

    def forget(self, floor: Ints) -> None:
        """By slot: all steps up to this one are settled."""
        for key, refusals in self.of.items():
            self.of[key] = [each for each in refusals if each.upto > floor[self.windows.slots[key]]]


# ------------------------------------------------------------------ token fragments

# The books of each fragment: was a token's part of this one fragment committed?


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

    def beyond(self, slot: int, last: int, fate: int, aside: int) -> Ints:
        """[fragments, fates]: the tokens of an incarnation's steps that `sums` do not count yet, all of this fate, but
        for the row whose samples were set aside; `last`: there is none.
        """
        shares = np.zeros_like(self.sums)
        slots = np.full(self.count, slot)
        first = self.windows.upto(slots, self.done[slot, : self.count])
        for begin, end, of in ((first, aside, fate), (aside, aside + 1, FATE["set_aside"]), (aside + 1, last, fate)):
            ends = np.full(self.count, min(end, last))
            shares[:, of] += self.windows.tokens_in(np.minimum(np.maximum(first, begin), ends), ends)
        return shares

    def add_lost(self, sums: Ints, unknown: list[int], lost: Retired) -> None:
        """Add the tokens of lost steps to these sums."""
        for fragment, committed in enumerate(lost.fragments):
            sums[fragment, FATE[COMMITTED]] += committed
            unknown[fragment] += lost.committed + lost.unknown - committed
