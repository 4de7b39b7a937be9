"""The books of a running run: each step's tokens get their fate once it can no longer change.

orchestrator/accounting/books.py defines the fates and computes the same from a whole log; a test compares the two.
Here a step is remembered only until its fate is known, so memory does not grow with the run. Lines must come in the
order in which the syncer wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.accounting.history import OVERWRITING
from orchestrator.telemetry.log_tail import Line

COMMITTED = "committed"
LATE_STEPS = 10_000  # a refusal is about a syncer step at most this old
Key = tuple[str, int]  # learner, incarnation


class Fate(NamedTuple):
    learner: str
    fate: str  # committed, or why discarded
    tokens: int


class _Step(NamedTuple):
    tokens: int
    at: float


@dataclass
class _Refusal:
    """A refusal: it surely covered the steps after `based` that had finished when its syncer step opened."""

    fragment: int
    reason: str  # stale_base | refused
    opened_at: float
    refused_at: float
    based: int


@dataclass
class _Incarnation:
    """One incarnation, while some of its steps have no fate yet."""

    pending: dict[int, _Step] = field(default_factory=dict)  # by step, ascending
    adopted: dict[int, int] = field(default_factory=dict)  # fragment -> newest overwriting adoption was after this step
    refusals: list[_Refusal] = field(default_factory=list)
    ended: str = ""  # killed | drained
    ended_at: int | None = None  # the newest syncer step opened by then: what was received may merge until it commits


class Fates:
    """Takes the log line by line; yields the fates that have become certain."""

    def __init__(self) -> None:
        self._fragments = 0
        self._incarnations: dict[Key, _Incarnation] = {}
        self._opened: dict[int, float] = {}  # syncer step -> when it opened
        self._newest_opened = 0
        self._finished_at: float | None = None
        self._handlers = {
            "SyncerStarted": self._on_started,
            "StepFinished": self._on_step,
            "Adopted": self._on_adopted,
            "StepOpened": self._on_opened,
            "StepPassed": self._on_passed,
            "Refused": self._on_refused,
            "Committed": self._on_committed,
            "LearnerFenced": self._on_ended,
            "LearnerLost": self._on_ended,
            "Finished": self._on_finished,
            "RunFinished": self._on_finished,
        }

    def take(self, line: Line) -> Iterator[Fate]:
        handler = self._handlers.get(line.kind)
        if handler is not None:
            yield from handler(line, line.fact)

    def close(self) -> Iterator[Fate]:
        """The log is read to its end: settle all steps without a fate."""
        for key, state in self._incarnations.items():
            yield from self._settle(key, state, state.ended or "run_ended")

    # -------------------------------------------------------------- learners

    def _incarnation(self, learner: str, incarnation: int) -> _Incarnation:
        return self._incarnations.setdefault((learner, incarnation), _Incarnation())

    def _on_step(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        self._incarnation(line.writer, line.incarnation).pending[fact["step"]] = _Step(fact["tokens"], line.at)
        return iter(())

    def _on_adopted(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        if fact["mode"] not in OVERWRITING:
            return
        state, fragment, after = self._incarnation(line.writer, line.incarnation), fact["fragment"], fact["after_step"]
        state.adopted[fragment] = max(state.adopted.get(fragment, -1), after)
        for refusal in state.refusals:
            if refusal.fragment == fragment and line.at < refusal.refused_at:
                refusal.based = max(refusal.based, after)
        if self._fragments and len(state.adopted) == self._fragments:
            yield from self._overwritten((line.writer, line.incarnation), state)

    def _overwritten(self, key: Key, state: _Incarnation) -> Iterator[Fate]:
        """Settle the steps after which every fragment was overwritten: they can no longer be read."""
        wiped = min(state.adopted.values())
        for step in [step for step in state.pending if step <= wiped]:
            yield Fate(key[0], _lost(state, step), state.pending.pop(step).tokens)
        state.refusals = [refusal for refusal in state.refusals if any(s > refusal.based for s in state.pending)]

    def _on_ended(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        state = self._incarnation(fact["learner"], fact["incarnation"])
        over = self._finished_at is not None and line.at >= self._finished_at
        if not state.ended and not over:
            state.ended = "drained" if fact.get("reason") == "drained" else "killed"
            state.ended_at = self._newest_opened
        return iter(())

    # -------------------------------------------------------------- the syncer

    def _on_started(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        self._fragments = len(fact["sizes"])
        return iter(())

    def _on_opened(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        self._newest_opened = max(self._newest_opened, fact["syncer_step"])
        self._opened[fact["syncer_step"]] = line.at
        return iter(())

    def _on_refused(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        opened_at = self._opened.get(fact["syncer_step"])
        said = fact["message"] == "contribution" and fact["reason"] != "doubled" and fact["fragment"] is not None
        key = (fact["learner"], fact["incarnation"])
        if said and opened_at is not None and key in self._incarnations:
            state, fragment = self._incarnations[key], fact["fragment"]
            reason = "stale_base" if fact["reason"] == "stale_base" else "refused"
            based = state.adopted.get(fragment, -1)
            state.refusals.append(_Refusal(fragment, reason, opened_at, line.at, based))
        return iter(())

    def _on_committed(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        for one in fact["participants"]:
            state = self._incarnation(one["learner"], one["incarnation"])
            for step in range(one["base_step"] + 1, one["step"] + 1):
                if step in state.pending:
                    yield Fate(one["learner"], COMMITTED, state.pending.pop(step).tokens)
        yield from self._on_passed(line, fact)

    def _on_passed(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        """Syncer steps end in order: what dead learners sent for this one or before has merged or never will."""
        step = fact["syncer_step"]
        for key, state in list(self._incarnations.items()):
            if state.ended_at is not None and state.ended_at <= step:
                yield from self._settle(key, state, state.ended)
        self._opened.pop(step - LATE_STEPS, None)

    def _on_finished(self, line: Line, fact: Mapping[str, Any]) -> Iterator[Fate]:
        if self._finished_at is None:
            self._finished_at = line.at
        return iter(())

    @staticmethod
    def _settle(key: Key, state: _Incarnation, otherwise: str) -> Iterator[Fate]:
        for step in list(state.pending):
            yield Fate(key[0], otherwise, state.pending.pop(step).tokens)


def _lost(state: _Incarnation, step: int) -> str:
    """Why an overwritten step never merged: the refusal that surely covered it, else `overlap`."""
    finished = state.pending[step].at
    covering = [each for each in state.refusals if each.based < step and finished <= each.opened_at]
    # Of several, the books name the newest of the last fragment.
    return sorted(covering, key=lambda each: each.fragment)[-1].reason if covering else "overlap"
