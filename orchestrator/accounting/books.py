"""The books: the fate of every token that was processed, computed from the event log alone.

The unit is one step of one incarnation of one learner, with its tokens. It is

- committed, when a contribution that covers it, (base_step, step], has merged into any fragment;
- discarded, when none can any more, for the first reason that applies:
  `overlap`      every fragment was overwritten after the step, before it was read;
  `stale_base`   the same, and the last contribution that surely covered it was refused for its base;
  `refused`      the same, refused for another reason;
  `killed`       its incarnation was fenced or lost before the step was read;
  `drained`      the same, but it had been asked to leave, and its deadline passed;
  `run_ended`    the run ended first;
- in flight otherwise.

A refusal does not name the steps it covered. It surely covered those that finished before its syncer step opened and
after the last overwriting adoption before the refusal; others stay `overlap`. Every number is an integer and summed on
its own, never by subtraction. In a log that is still growing, `killed` may become committed: a contribution received
before a fence may merge after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

from orchestrator.accounting.history import OVERWRITING, History, indexed
from orchestrator.accounting.incarnations import Incarnation, Key
from orchestrator.eventlog.events import Event
from outer.protocol.facts import Refused, StepOpened

COMMITTED, IN_FLIGHT = "committed", "in_flight"
REASONS = ("drained", "killed", "overlap", "refused", "run_ended", "stale_base")
_FATES = (COMMITTED, IN_FLIGHT, *REASONS)
_FATE = {fate: place for place, fate in enumerate(_FATES)}

Unit = tuple[str, int, int]  # learner, incarnation, step
Range = tuple[int, int]  # steps (after, upto]


@dataclass(frozen=True)
class Ledger:
    """Token counts by fate."""

    processed: int
    committed: int
    discarded: dict[str, int]  # by reason; every reason is there
    in_flight: int

    @property
    def balanced(self) -> bool:
        return self.processed == self.committed + sum(self.discarded.values()) + self.in_flight


@dataclass(frozen=True)
class Books(Ledger):
    """The whole run's ledger, each learner's, and each fragment's."""

    by_learner: dict[str, Ledger]
    token_fragments: tuple[Ledger, ...]  # fragment by fragment: was this token's part of *it* committed
    _settled: dict[Key, tuple[list[int], bytes]]  # steps of each incarnation, and of each its place in _FATES

    @cached_property
    def fates(self) -> dict[Unit, str]:
        """The fate of every unit: committed, in_flight, or a reason."""
        return {
            (*key, step): _FATES[fate]
            for key, (steps, fates) in self._settled.items()
            for step, fate in zip(steps, fates, strict=True)
        }


class _Refusal(NamedTuple):
    covered: Range
    reason: str  # stale_base | refused


@dataclass(frozen=True)
class _Evidence:
    """The evidence for the fates of one incarnation's units, for one fragment or for all."""

    merged: list[Range]
    wiped: int  # every unit up to this step was overwritten; -1: none
    refusals: list[_Refusal]
    otherwise: str  # the fate of what was neither merged nor overwritten


_SETTLED: WeakKeyDictionary[History, Books] = WeakKeyDictionary()


def settle(events: Iterable[Event] | History) -> Books:
    """The books of a log, in time linear in steps times fragments; cached per history."""
    history = indexed(events)
    if history not in _SETTLED:
        _SETTLED[history] = _settle(history)
    return _SETTLED[history]


def _settle(history: History) -> Books:
    rules = history.rules
    fragments = range(len(rules.sizes) if rules is not None else 0)
    merged, refusals = _merged(history), _refusals(history)
    settled: dict[Key, tuple[list[int], bytes]] = {}
    total, learners, shares = _Sums(), defaultdict[str, _Sums](_Sums), [_Sums() for _ in fragments]
    for key, incarnation in history.incarnations.items():
        if not incarnation.steps:
            continue
        otherwise = _otherwise(incarnation, history.ended)
        wiped = _wiped(incarnation)
        apart = [
            _Evidence(merged[key][fragment], wiped.get(fragment, -1), refusals[key][fragment], otherwise)
            for fragment in fragments
        ]
        steps, tokens = _units(incarnation)
        said = incarnation.tokens[-1]  # a unit recorded twice unbalances the ledger
        whole = _fates(steps, _together(apart, otherwise))
        settled[key] = (steps, bytes(whole))
        total.add(said, tokens, whole)
        learners[incarnation.learner].add(said, tokens, whole)
        for share, evidence in zip(shares, apart, strict=True):
            share.add(said, tokens, _fates(steps, evidence))
    ledger = total.ledger
    return Books(
        ledger.processed,
        ledger.committed,
        ledger.discarded,
        ledger.in_flight,
        {name: learners[name].ledger for name in sorted(learners)},
        tuple(share.ledger for share in shares),
        settled,
    )


class _Sums:
    """A ledger under construction."""

    def __init__(self) -> None:
        self._processed = 0
        self._of = [0] * len(_FATES)

    def add(self, said: int, tokens: Sequence[int], fates: bytearray) -> None:
        """Add the tokens of these steps to their fates; fast where all steps have the same number."""
        self._processed += said
        if min(tokens) == max(tokens):
            for fate in range(len(_FATES)):
                self._of[fate] += tokens[0] * fates.count(fate)
        else:
            for count, fate in zip(tokens, fates, strict=True):
                self._of[fate] += count

    @property
    def ledger(self) -> Ledger:
        of = dict(zip(_FATES, self._of, strict=True))
        return Ledger(self._processed, of[COMMITTED], {reason: of[reason] for reason in REASONS}, of[IN_FLIGHT])


def _units(incarnation: Incarnation) -> tuple[list[int], list[int]]:
    """An incarnation's steps, each once and ascending, and the tokens of each."""
    tokens = {fact.step: fact.tokens for fact in incarnation.ordered}
    return list(tokens), list(tokens.values())


def _fates(steps: list[int], evidence: _Evidence) -> bytearray:
    """The index in _FATES of each of these ascending steps. A later cause overrules an earlier one."""
    wiped = bisect_right(steps, evidence.wiped)
    fates = bytearray([_FATE["overlap"]]) * wiped + bytearray([_FATE[evidence.otherwise]]) * (len(steps) - wiped)
    for refusal in evidence.refusals:
        first, last = _inside(steps, refusal.covered)
        last = min(last, wiped)
        fates[first:last] = bytes([_FATE[refusal.reason]]) * max(0, last - first)
    for covered in evidence.merged:
        first, last = _inside(steps, covered)
        fates[first:last] = bytes([_FATE[COMMITTED]]) * (last - first)
    return fates


def _inside(steps: list[int], covered: Range) -> tuple[int, int]:
    """The slice of `steps` inside the range."""
    first = bisect_right(steps, covered[0])
    return first, max(first, bisect_right(steps, covered[1]))


def _together(apart: list[_Evidence], otherwise: str) -> _Evidence:
    """A unit is committed when any fragment merged it, and overwritten only when all fragments were."""
    return _Evidence(
        [covered for evidence in apart for covered in evidence.merged],
        min((evidence.wiped for evidence in apart), default=-1),
        [refusal for evidence in apart for refusal in evidence.refusals],
        otherwise,
    )


def _otherwise(incarnation: Incarnation, ended: bool) -> str:
    if incarnation.over in ("killed", "drained"):
        return incarnation.over
    return "run_ended" if ended else IN_FLIGHT


def _wiped(incarnation: Incarnation) -> dict[int, int]:
    """By fragment, the step up to which everything was overwritten."""
    upto: dict[int, int] = {}
    for said in incarnation.adoptions:
        fact = said.fact
        if fact.mode in OVERWRITING and fact.after_step > upto.get(fact.fragment, -1):
            upto[fact.fragment] = fact.after_step
    return upto


def _merged(history: History) -> dict[Key, dict[int, list[Range]]]:
    ranges: dict[Key, dict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for said in history.commits:
        for one in said.fact.participants:
            ranges[(one.learner, one.incarnation)][said.fact.fragment].append((one.base_step, one.step))
    return ranges


def _refusals(history: History) -> dict[Key, dict[int, list[_Refusal]]]:
    """By incarnation and fragment, in order, the steps that refused contributions surely covered."""
    found: dict[Key, dict[int, list[_Refusal]]] = defaultdict(lambda: defaultdict(list))
    refused = [said for said in history.of(Refused) if said.fact.message == "contribution"]
    opened = {said.fact.syncer_step: said.position for said in history.of(StepOpened)} if refused else {}
    for said in refused:
        fact, key = said.fact, (said.fact.learner, said.fact.incarnation)
        # The first copy of a duplicate was accepted, so the second loses nothing.
        if fact.reason == "doubled" or fact.fragment is None:
            continue
        if key not in history.incarnations or fact.syncer_step not in opened:
            continue
        incarnation = history.incarnations[key]
        finished = bisect_left(incarnation.steps, opened[fact.syncer_step], key=lambda step: step.position)
        if finished == 0:
            continue
        based = [
            adopted.fact.after_step
            for adopted in incarnation.adoptions
            if adopted.fact.fragment == fact.fragment
            and adopted.fact.mode in OVERWRITING
            and adopted.position < said.position
        ]
        covered = (max(based, default=-1), incarnation.steps[finished - 1].fact.step)
        reason = "stale_base" if fact.reason == "stale_base" else "refused"
        found[key][fact.fragment].append(_Refusal(covered, reason))
    return found
