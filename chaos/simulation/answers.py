"""Reads of one learner's fragments, from the syncer's question to the answer: the shell's part of contributing.

What is wrong with an answer is put in here. Knows nothing of what is due, or of what becomes of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos.simulation import confusion
from chaos.simulation.network import Call
from learners.protocol import events_effects

if TYPE_CHECKING:
    from chaos.simulation.setting import Setting

Key = tuple[int, int]  # syncer step and attempt


class Answers:
    """Of one unit."""

    def __init__(self, setting: Setting, unit: Any) -> None:
        self._setting, self._unit = setting, unit
        self._asked: dict[Key, list[Call]] = {}

    def __len__(self) -> int:
        """Reads that are not answered yet."""
        return sum(map(len, self._asked.values()))

    def die(self) -> None:
        for calls in self._asked.values():
            for call in calls:
                call.died()

    def read(self, call: Call) -> None:
        """The syncer's question for a fragment."""
        request = call.message
        key = (request.syncer_step, request.attempt)
        self._asked.setdefault(key, []).append(call)
        self._unit.hear(request)
        if key in self._asked:
            self._unit.after(request.deadline_s, self._no_boundary, key, call)

    def _no_boundary(self, key: Key, call: Call) -> None:
        if call in self._asked.get(key, ()):
            self._take(key, call)
            call.reply(0.0, None)

    def _take(self, key: Key, call: Call) -> None:
        calls = self._asked[key]
        calls.remove(call)
        if not calls:
            del self._asked[key]

    def give(self, effect: events_effects.Answer) -> None:
        """To whoever has waited longest for it."""
        contribution, unit, setting = effect.contribution, self._unit, self._setting
        key = (contribution.syncer_step, contribution.attempt)
        if key not in self._asked:
            return
        call, content, defect = self._asked[key][0], contribution.payload, ""
        self._take(key, call)
        unit.values.note_read(contribution.fragment, content)
        setting.truth.contributed(content, contribution)
        if unit.poisoned:
            setting.fired["non_finite"] += 1
            defect = "non_finite"
        elif unit.corrupts or (setting.flips and setting.damaged("bit_flip")):
            defect = "bad_digest"
        elif setting.flips and setting.damaged("garbled"):
            contribution = confusion.garbled(contribution, setting)
        payload = None if defect else contribution.payload  # as the inspection leaves it
        digest = f"{unit.name}{unit.incarnation}@{contribution.step}"
        call.reply(1.0, (replace(contribution, payload=payload, digest=digest, defect=defect), len(unit.facts)))
        unit.moment("answered")
