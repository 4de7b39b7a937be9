"""fencing.* (I4): one syncer epoch, and one incarnation of each learner, may act at a time.

What was received before a fence may merge after it, so a commit that names a fenced incarnation is no breach by
itself. It is one when its step was opened after the fence, because reads follow the opening, and when a newer
incarnation has committed before. Order is the syncer's own, not the clocks'. A fence binds the epoch that
set it; a later one is told anew who lives. What an old epoch tried and the journal refused is in no log.
"""

from __future__ import annotations

from itertools import pairwise

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Key
from orchestrator.accounting.verdicts import Verdict, judge
from outer.protocol.facts import Committed, LearnerAttached, LearnerFenced, SpanGranted, StepOpened, SyncerStarted


def check(history: History) -> list[Verdict]:
    return [_epochs(history), _incarnations(history), _fences(history)]


def _epochs(history: History) -> Verdict:
    """Before it opens a step, an epoch may repeat an earlier one's commits."""
    commits = sorted(history.commits, key=lambda said: said.fact.syncer_step)
    failures = [
        f"epoch {after.fact.epoch} committed syncer step {after.fact.syncer_step}, "
        f"epoch {before.fact.epoch} step {before.fact.syncer_step}"
        for before, after in pairwise(commits)
        if after.fact.epoch < before.fact.epoch
        or (after.fact.syncer_step == before.fact.syncer_step and after.fact.epoch != before.fact.epoch)
    ]
    begun: dict[int, int] = {}  # epoch -> where it opened its first step
    for opened in history.of(StepOpened):
        begun.setdefault(opened.incarnation, opened.position)
    failures += [
        f"syncer step {said.fact.syncer_step} was committed as epoch {said.fact.epoch} by epoch {said.incarnation}"
        for said in commits
        if said.fact.epoch > said.incarnation
        or (said.fact.epoch < said.incarnation and said.position > begun.get(said.incarnation, said.position))
    ]
    started = [said.fact.epoch for said in history.of(SyncerStarted)]
    failures += [
        f"epoch {epoch} started {started.count(epoch)} times"
        for epoch in sorted({*started})
        if started.count(epoch) > 1
    ]
    claim = "one epoch commits at a time, and epochs never fall"
    return judge("fencing.epochs", claim, len(commits), "commits", failures)


def _incarnations(history: History) -> Verdict:
    """An older incarnation neither attaches, nor merges into a fragment, after a newer one has.

    By fragment: with several steps in flight, an answer received before its sender died may commit after the new
    incarnation's first contribution to another fragment.
    """
    failures: list[str] = []
    attached: dict[str, int] = {}
    committed: dict[tuple[str, int], int] = {}  # by learner and fragment
    known: set[Key] = set()
    count = 0
    for said in history.by_syncer(LearnerAttached, Committed):
        if isinstance(said.fact, LearnerAttached):
            fact = said.fact
            if fact.incarnation < attached.get(fact.learner, 0):
                failures.append(f"{fact.learner} {fact.incarnation} attached after {attached[fact.learner]}")
            attached[fact.learner] = max(fact.incarnation, attached.get(fact.learner, 0))
            known.add((fact.learner, fact.incarnation))
            continue
        for one in said.fact.participants:
            count += 1
            if (one.learner, one.incarnation) not in known:
                failures.append(
                    f"{one.learner} {one.incarnation} merged at syncer step {said.fact.syncer_step} unattached"
                )
            place = (one.learner, said.fact.fragment)
            newest = committed.get(place, 0)
            if one.incarnation < newest:
                failures.append(
                    f"{one.learner} {one.incarnation} merged at syncer step {said.fact.syncer_step}, after {newest} had"
                )
            committed[place] = max(one.incarnation, newest)
    claim = "a learner's incarnations attach, and merge into a fragment, in order; none merges that has not attached"
    return judge("fencing.incarnations", claim, count, "contributions", failures)


def _fences(history: History) -> Verdict:
    """Nothing is accepted after a fence: no attaching, no step opened later, no span.

    A grant is recorded once durable, so one in progress at the fence may follow it, and is then not used.
    """
    failures: list[str] = []
    fenced: dict[tuple[int, Key], int] = {}  # (epoch, who) -> how many facts before
    opened: dict[tuple[int, int], int] = {}  # (epoch, syncer step) -> how many facts before
    facts = history.by_syncer(LearnerFenced, LearnerAttached, SpanGranted, StepOpened, Committed)
    for number, said in enumerate(facts):
        epoch, fact = said.incarnation, said.fact
        if isinstance(fact, StepOpened):
            opened[epoch, fact.syncer_step] = number
        elif isinstance(fact, Committed):
            since = opened.get((epoch, fact.syncer_step), -1)
            failures += [
                f"{one.learner} {one.incarnation} merged at syncer step {fact.syncer_step}, "
                "which opened after it was fenced"
                for one in fact.participants
                if fenced.get((epoch, (one.learner, one.incarnation)), number) < since
            ]
        elif isinstance(fact, LearnerFenced):
            fenced.setdefault((epoch, (fact.learner, fact.incarnation)), number)
        elif (epoch, (fact.learner, fact.incarnation)) in fenced:
            name = f"{fact.learner} {fact.incarnation}"
            if isinstance(fact, LearnerAttached):
                failures.append(f"{name} attached after it was fenced")
            elif _used(history, fact):
                failures.append(f"{name} stepped on span {fact.span}, granted after it was fenced")
    claim = "a fenced incarnation attaches no more, joins no step opened later and uses nothing lent afterwards"
    return judge("fencing.fences", claim, len(history.commits), "commits", failures)


def _used(history: History, granted: SpanGranted) -> bool:
    incarnation = history.incarnations.get((granted.learner, granted.incarnation))
    return incarnation is not None and any(said.fact.span == granted.span for said in incarnation.steps)
