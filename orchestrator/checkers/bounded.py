"""bounded.* (I11): open syncer steps, spans held and reads stay within their limits.

Queues, references in flight, memory and open files are not in the log; their own code limits them.
"""

from __future__ import annotations

import math
from collections import Counter

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Key
from orchestrator.accounting.verdicts import Verdict, judge
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    ReadFailed,
    SpanGranted,
    StepOpened,
    StepPassed,
    StepReopened,
    SyncerStarted,
)

SPANS_HELD_MAX = 1.5  # a learner asks for one when it holds half of one or less


def check(history: History) -> list[Verdict]:
    return [_steps(history), _spans(history), _reads(history)]


def _steps(history: History) -> Verdict:
    """At most max(1, tau) open. The next epoch reopens what an epoch left open."""
    limits = {said.incarnation: max(1, said.fact.overlap_steps) for said in history.of(SyncerStarted)}
    failures: list[str] = []
    running, epoch = set[int](), -1
    facts = history.by_syncer(StepOpened, StepPassed, Committed, Finished)
    for said in facts:
        if said.incarnation != epoch:
            running, epoch = set(), said.incarnation
        if not isinstance(said.fact, StepOpened):
            running.discard(said.fact.syncer_step)
            continue
        running.add(said.fact.syncer_step)
        if len(running) > limits.get(epoch, len(running)):
            failures.append(f"{len(running)} steps are open at syncer step {said.fact.syncer_step}")
    claim = "at most max(1, tau) syncer steps are open at a time"
    return judge("bounded.steps", claim, len(history.of(StepOpened)) if limits else 0, "syncer steps", failures)


def _spans(history: History) -> Verdict:
    """A learner asks for more when it holds at most half a span, or too little for `ahead_s`."""
    granted: dict[Key, list[SpanGranted]] = {}
    for said in history.of(SpanGranted):
        granted.setdefault((said.fact.learner, said.fact.incarnation), []).append(said.fact)
    most = SPANS_HELD_MAX * max((span.stop - span.start for spans in granted.values() for span in spans), default=0)
    ahead_s = max((said.fact.ahead_s for said in history.of(SyncerStarted)), default=0.0)
    failures: list[str] = []
    for key, spans in granted.items():
        steps = history.incarnations[key].steps if key in history.incarnations else []
        begun = {said.fact.span for said in steps}
        ahead = sum(span.stop - span.start for span in spans if span.span not in begun)
        fastest_s = min((said.fact.seconds for said in steps if said.fact.seconds > 0.0), default=math.inf)
        if ahead > most + ahead_s / fastest_s * max(span.batch_size for span in spans):
            failures.append(f"{key[0]} {key[1]} was lent {ahead} samples in spans that it never began")
    claim = "no learner is lent more than a span and a half ahead, or more than lasts for data.ahead_s"
    return judge("bounded.spans", claim, len(granted), "borrowers", failures)


def _reads(history: History) -> Verdict:
    """Each attempt reads every learner at most once."""
    tried: Counter[tuple[int, int]] = Counter()
    attempts: Counter[tuple[int, int]] = Counter()
    learners: dict[int, set[str]] = {}
    facts = history.by_syncer(LearnerAttached, ReadFailed, StepReopened, Committed)
    for said in facts:
        fact, epoch = said.fact, said.incarnation
        if isinstance(fact, LearnerAttached):
            learners.setdefault(epoch, set()).add(fact.learner)
        elif isinstance(fact, ReadFailed):
            tried[epoch, fact.syncer_step] += 1
        elif isinstance(fact, StepReopened):
            attempts[epoch, fact.syncer_step] += 1
        else:
            tried[fact.epoch, fact.syncer_step] += len(fact.participants)  # a later one may have said it
    failures = [
        f"syncer step {step} was read {count} times in {attempts[epoch, step] + 1} attempts"
        for (epoch, step), count in tried.items()
        if count > len(learners.get(epoch, ())) * (attempts[epoch, step] + 1)
    ]
    claim = "a syncer step is read from each learner at most once an attempt"
    return judge("bounded.reads", claim, len(tried), "steps that were read", failures)
