"""The books: what became of every token that was processed. Computed from the event log alone.

The unit is one step of one incarnation of one learner, with its tokens. It is

- committed, when a contribution that covers it, (base_step, step], has merged into any fragment;
- discarded, when none can any more, under the first cause that applies:
  `overlap`      every fragment was overwritten after it, before it was read;
  `stale_base`   so too, and the last contribution that surely covered it was refused for its base;
  `refused`      so too, refused for another reason;
  `killed`       its incarnation was fenced or lost while it still could have been read;
  `drained`      so too, but it had been asked to leave, and its deadline came first;
  `run_ended`    the run was over first;
- in flight otherwise.

A refusal does not say which steps it covered. It surely covered those finished before its syncer step opened
and after the last overwriting adoption said before the refusal; what lies outside stays `overlap`.
Every number is an integer and is summed on its own, none is found by subtraction. In a log that is still being
written `killed` may yet become committed: what was received before a fence may merge after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from learners.facts import StepFinished
from orchestrator.checkers.history import OVERWRITING, History, Key, Life, indexed
from orchestrator.events import Event
from outer.facts import Refused, StepOpened

COMMITTED, IN_FLIGHT = "committed", "in_flight"
REASONS = ("drained", "killed", "overlap", "refused", "run_ended", "stale_base")

Unit = tuple[str, int, int]  # learner, incarnation, step
Range = tuple[int, int]  # steps (after, upto]


@dataclass(frozen=True)
class Ledger:
    """One table, in tokens."""

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
    fates: dict[Unit, str]  # committed | in_flight | a reason


class _Refusal(NamedTuple):
    covered: Range
    reason: str  # stale_base | refused


@dataclass(frozen=True)
class _Evidence:
    """What decides the fates of one incarnation's units, for one fragment or for all together."""

    merged: list[Range]
    wiped: int  # every unit up to this step was overwritten; -1: none
    refusals: list[_Refusal]
    otherwise: str  # the fate of what was neither merged nor overwritten


_SETTLED: WeakKeyDictionary[History, Books] = WeakKeyDictionary()


def settle(events: Iterable[Event] | History) -> Books:
    """The books of a log, in time linear in its steps times its fragments; of one history, once."""
    history = indexed(events)
    if history not in _SETTLED:
        _SETTLED[history] = _settle(history)
    return _SETTLED[history]


def _settle(history: History) -> Books:
    rules = history.rules
    fragments = len(rules.sizes) if rules is not None else 0
    merged, refusals = _merged(history), _refusals(history)
    fates: dict[Unit, str] = {}
    shares: list[dict[Unit, str]] = [{} for _ in range(fragments)]
    for key, life in history.lives.items():
        apart = [
            _Evidence(
                merged[key][fragment],
                _wiped(life, fragment),
                refusals[key][fragment],
                _otherwise(life, history.ended),
            )
            for fragment in range(fragments)
        ]
        fates.update(_fates(life, _together(apart, _otherwise(life, history.ended))))
        for share, evidence in zip(shares, apart, strict=True):
            share.update(_fates(life, evidence))
    steps = [((said.writer, said.incarnation), said.fact) for said in history.of(StepFinished)]
    total = _ledger(steps, fates)
    learners = sorted({learner for (learner, _), _ in steps})
    return Books(
        total.processed,
        total.committed,
        total.discarded,
        total.in_flight,
        {name: _ledger([step for step in steps if step[0][0] == name], fates) for name in learners},
        tuple(_ledger(steps, share) for share in shares),
        fates,
    )


def _ledger(steps: list[tuple[Key, StepFinished]], fates: dict[Unit, str]) -> Ledger:
    tokens: dict[Unit, int] = {}
    for key, step in steps:
        tokens[(*key, step.step)] = step.tokens
    sums: dict[str, int] = dict.fromkeys((COMMITTED, IN_FLIGHT, *REASONS), 0)
    for unit, count in tokens.items():
        sums[fates[unit]] += count
    return Ledger(
        sum(step.tokens for _, step in steps),  # a unit said twice unbalances the ledger
        sums[COMMITTED],
        {reason: sums[reason] for reason in REASONS},
        sums[IN_FLIGHT],
    )


def _fates(life: Life, evidence: _Evidence) -> Iterator[tuple[Unit, str]]:
    steps = sorted(said.fact.step for said in life.steps)
    committed = {step for covered in evidence.merged for step in _inside(steps, covered)}
    refused = {step: refusal.reason for refusal in evidence.refusals for step in _inside(steps, refusal.covered)}
    for step in steps:
        if step in committed:
            fate = COMMITTED
        elif step <= evidence.wiped:
            fate = refused.get(step, "overlap")
        else:
            fate = evidence.otherwise
        yield (*life.key, step), fate


def _inside(steps: list[int], covered: Range) -> list[int]:
    return steps[bisect_right(steps, covered[0]) : bisect_right(steps, covered[1])]


def _together(apart: list[_Evidence], otherwise: str) -> _Evidence:
    """A unit is merged through any fragment, and overwritten only when it is in all of them."""
    return _Evidence(
        [covered for evidence in apart for covered in evidence.merged],
        min((evidence.wiped for evidence in apart), default=-1),
        [refusal for evidence in apart for refusal in evidence.refusals],
        otherwise,
    )


def _otherwise(life: Life, ended: bool) -> str:
    if life.over in ("killed", "drained"):
        return life.over
    return "run_ended" if ended else IN_FLIGHT


def _wiped(life: Life, fragment: int) -> int:
    adoptions = (said.fact for said in life.adoptions if said.fact.fragment == fragment)
    return max((adopted.after_step for adopted in adoptions if adopted.mode in OVERWRITING), default=-1)


def _merged(history: History) -> dict[Key, dict[int, list[Range]]]:
    ranges: dict[Key, dict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for said in history.commits:
        for one in said.fact.participants:
            ranges[(one.learner, one.incarnation)][said.fact.fragment].append((one.base_step, one.step))
    return ranges


def _refusals(history: History) -> dict[Key, dict[int, list[_Refusal]]]:
    """Per incarnation and fragment, in order, the steps that refused contributions surely covered."""
    found: dict[Key, dict[int, list[_Refusal]]] = defaultdict(lambda: defaultdict(list))
    opened = {said.fact.syncer_step: said.position for said in history.of(StepOpened)}
    for said in history.of(Refused):
        fact, key = said.fact, (said.fact.learner, said.fact.incarnation)
        # The first copy of a doubled contribution was taken, so the second is no reason for a loss.
        if fact.message != "contribution" or fact.reason == "doubled" or fact.fragment is None:
            continue
        if key not in history.lives or fact.syncer_step not in opened:
            continue
        life = history.lives[key]
        finished = bisect_left(life.steps, opened[fact.syncer_step], key=lambda step: step.position)
        if finished == 0:
            continue
        based = [
            adopted.fact.after_step
            for adopted in life.adoptions
            if adopted.fact.fragment == fact.fragment
            and adopted.fact.mode in OVERWRITING
            and adopted.position < said.position
        ]
        covered = (max(based, default=-1), life.steps[finished - 1].fact.step)
        reason = "stale_base" if fact.reason == "stale_base" else "refused"
        found[key][fact.fragment].append(_Refusal(covered, reason))
    return found
