"""Refused contributions, and which steps they surely covered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from orchestrator.accounting.ledger import FATE
from orchestrator.accounting.windows import StepWindows
from orchestrator.eventlog.block import NONE, Ints, Key
from outer.protocol.facts import Refused

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
