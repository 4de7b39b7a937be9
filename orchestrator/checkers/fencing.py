"""Fencing: one syncer epoch, and one incarnation of each learner, may speak at a time.

What was received before a fence may merge after it, so a commit that names a fenced incarnation is no breach by
itself. It is one when its step was opened after the fence, because reads follow the opening, and when a newer
incarnation has committed before. Order is the syncer's own, no clock decides it.
"""

from __future__ import annotations

from itertools import pairwise

from orchestrator.checkers.history import History, Key, Verdict, judge
from outer.facts import Committed, LearnerAttached, LearnerFenced, SpanGranted, StepOpened, SyncerStarted


def check(history: History) -> list[Verdict]:
    return [_epochs(history), _incarnations(history), _fences(history)]


def _epochs(history: History) -> Verdict:
    commits = sorted(history.commits, key=lambda said: said.fact.syncer_step)
    broken = [
        f"epoch {after.fact.epoch} committed syncer step {after.fact.syncer_step}, "
        f"epoch {before.fact.epoch} step {before.fact.syncer_step}"
        for before, after in pairwise(commits)
        if after.fact.epoch < before.fact.epoch
        or (after.fact.syncer_step == before.fact.syncer_step and after.fact.epoch != before.fact.epoch)
    ]
    broken += [
        f"syncer step {said.fact.syncer_step} was committed as epoch {said.fact.epoch} by epoch {said.incarnation}"
        for said in commits
        if said.fact.epoch != said.incarnation
    ]
    started = [said.fact.epoch for said in history.of(SyncerStarted)]
    broken += [
        f"epoch {epoch} started {started.count(epoch)} times"
        for epoch in sorted({*started})
        if started.count(epoch) > 1
    ]
    promise = "one epoch commits at a time, and epochs never fall"
    return judge("fencing.epochs", promise, len(commits), "commits", broken)


def _incarnations(history: History) -> Verdict:
    """An older incarnation neither attaches, nor merges into a fragment, after a newer one has.

    By fragment: with several steps in flight, an answer that was there before its sender died may commit after
    the newcomer's first contribution to another fragment.
    """
    broken: list[str] = []
    attached: dict[str, int] = {}
    committed: dict[tuple[str, int], int] = {}  # by learner and fragment
    known: set[Key] = set()
    count = 0
    for said in history.by_syncer(LearnerAttached, Committed):
        if isinstance(said.fact, LearnerAttached):
            fact = said.fact
            if fact.incarnation < attached.get(fact.learner, 0):
                broken.append(f"{fact.learner} {fact.incarnation} attached after {attached[fact.learner]}")
            attached[fact.learner] = max(fact.incarnation, attached.get(fact.learner, 0))
            known.add((fact.learner, fact.incarnation))
            continue
        for one in said.fact.participants:
            count += 1
            name = f"{one.learner} {one.incarnation} merged at syncer step {said.fact.syncer_step}"
            if (one.learner, one.incarnation) not in known:
                broken.append(f"{name} without having attached")
            place = (one.learner, said.fact.fragment)
            if one.incarnation < committed.get(place, 0):
                broken.append(f"{name}, after {committed[place]} had")
            committed[place] = max(one.incarnation, committed.get(place, 0))
    promise = "a learner's incarnations attach, and merge into a fragment, in order; none merges that has not attached"
    return judge("fencing.incarnations", promise, count, "contributions", broken)


def _fences(history: History) -> Verdict:
    """Nothing new is accepted after a fence: no attaching, no span, no step opened later."""
    broken: list[str] = []
    fenced: set[Key] = set()
    barred: dict[int, frozenset[Key]] = {}  # syncer step -> who was fenced when it opened
    facts = history.by_syncer(LearnerFenced, LearnerAttached, SpanGranted, StepOpened, Committed)
    for said in facts:
        match said.fact:
            case LearnerFenced():
                fenced.add((said.fact.learner, said.fact.incarnation))
            case StepOpened():
                barred[said.fact.syncer_step] = frozenset(fenced)
            case Committed():
                broken += [
                    f"{one.learner} {one.incarnation} merged at syncer step {said.fact.syncer_step}, "
                    "which opened after it was fenced"
                    for one in said.fact.participants
                    if (one.learner, one.incarnation) in barred.get(said.fact.syncer_step, ())
                ]
            case _:
                if (said.fact.learner, said.fact.incarnation) in fenced:
                    what = "attached" if isinstance(said.fact, LearnerAttached) else "was granted a span"
                    broken.append(f"{said.fact.learner} {said.fact.incarnation} {what} after it was fenced")
    promise = "a fenced incarnation attaches no more, is lent nothing and joins no step opened later"
    return judge("fencing.fences", promise, len(history.commits), "commits", broken)
