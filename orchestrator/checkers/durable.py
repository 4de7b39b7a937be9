"""durable.* (I1): every later syncer epoch starts from all commits that an earlier one announced.

The log has the announcements, and what each epoch starts from, but not the journal: a commit that was neither announced
nor recovered is not missed here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Said
from orchestrator.accounting.verdicts import Verdict, judge
from outer.protocol.facts import Committed, Finished, StepOpened, SyncerStarted


def check(history: History) -> list[Verdict]:
    return [_restarts(history), _records(history)]


def _restarts(history: History) -> Verdict:
    """An epoch that has opened a step has repeated every record that the log may have lacked."""
    name, claim = "durable.restarts", "a new epoch starts from every commit that was announced before, and no other"
    started: list[Said[SyncerStarted]] = history.by_syncer(SyncerStarted)
    restarts = [said for said in started if said.incarnation > history.epochs[0]]
    if mute := [said for said in restarts if len(said.fact.versions) != len(said.fact.sizes)]:
        return Verdict(name, claim, "unknown", f"epoch {mute[0].incarnation} does not say what it starts from")
    opened = {said.incarnation for said in history.of(StepOpened)}
    failures = [wrong for said in restarts for wrong in _misses(history, said, said.incarnation in opened)]
    not_exercised = "the syncer never restarted" if started else ""
    return judge(name, claim, len(restarts), "restarts", failures, not_exercised)


def _misses(history: History, said: Said[SyncerStarted], complete: bool) -> list[str]:
    """How an epoch's versions differ from earlier commits. `complete`: the log has all of those."""
    commits = [commit.fact for commit in history.commits if commit.fact.epoch < said.incarnation]
    newest = dict.fromkeys(range(len(said.fact.versions)), 0)
    for fact in commits:
        newest[fact.fragment] = max(newest.get(fact.fragment, 0), fact.syncer_step)
    name = f"epoch {said.incarnation} starts from"
    failures = [
        f"{name} version {version} of fragment {fragment}, version {newest[fragment]} was announced"
        for fragment, version in enumerate(said.fact.versions)
        if version < newest[fragment] or (complete and version > newest[fragment])
    ]
    tokens = max((fact.tokens_committed for fact in commits), default=0)
    if said.fact.tokens_committed < tokens or (complete and said.fact.tokens_committed > tokens):
        failures.append(f"{name} {said.fact.tokens_committed} committed tokens, {tokens} were announced")
    return failures


def _records(history: History) -> Verdict:
    failures = [
        f"epoch {again.incarnation} says {_what(again.fact)} otherwise than epoch {first.incarnation}"
        for first, again in history.repeats
        if first.fact != again.fact
    ]
    ends: list[Said[Finished]] = history.by_syncer(Finished)
    failures += [
        f"epoch {again.incarnation} ends with other tokens than epoch {first.incarnation} did"
        for first, again in pairwise(ends)
        if first.fact.tokens_committed != again.fact.tokens_committed
    ]
    checked = len(history.repeats) + len(ends[1:])
    claim = "what two epochs say of one commit, grant or return, or of the end, is the same word for word"
    not_exercised = "no epoch had to say anything again" if history.events else ""
    return judge("durable.records", claim, checked, "repeated records", failures, not_exercised)


def _what(fact: Any) -> str:
    if isinstance(fact, Committed):
        return f"the commit of syncer step {fact.syncer_step}"
    return f"span {fact.span} of {fact.learner} {fact.incarnation}"
