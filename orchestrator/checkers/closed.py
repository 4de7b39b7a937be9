"""closed.* (I13): a refused message changes nothing, and its sender is told why.

Only refusals by the syncer are in the log; a peer that never reached it is not seen here.
"""

from __future__ import annotations

import re

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Key
from orchestrator.accounting.verdicts import Verdict, judge
from outer.protocol.facts import Committed, LearnerAttached, Refused, SpanGranted

REASONS: dict[str, frozenset[str]] = {  # by message
    "expect": frozenset({"stale_incarnation"}),
    "attach": frozenset({"unknown_learner", "stale_incarnation", "wrong_config"}),
    "seek": frozenset({"unknown_learner", "stale_incarnation", "stale_epoch"}),
    "report": frozenset({"unknown_learner", "stale_incarnation", "stale_epoch", "wrong_counters"}),
    "contribution": frozenset(
        {
            "unknown_learner",
            "stale_incarnation",
            "stale_epoch",
            "stale_base",
            "doubled",
            "late",
            "bad_digest",
            "non_finite",
            "wrong_sender",
            "wrong_shape",
            "wrong_fragment",
            "wrong_counters",
        }
    ),
}
FIELD = re.compile(r"\S+: here .+, there .+")  # outer/protocol/manifest.py


def check(history: History) -> list[Verdict]:
    return [_refusals(history), _strangers(history)]


def _refusals(history: History) -> Verdict:
    refused = history.of(Refused)
    failures: list[str] = []
    for said in refused:
        fact = said.fact
        name = f"a {fact.message} of {fact.learner} {fact.incarnation} was refused"
        if fact.reason not in REASONS.get(fact.message, ()):
            failures.append(f"{name} for {fact.reason!r}, which is no reason")
        elif fact.reason == "wrong_config" and not FIELD.match(fact.detail):
            failures.append(f"{name} for its configuration, and no field was named")
    claim = "every refusal has a reason, and that of a configuration names the fields that differ"
    not_exercised = "nothing was refused" if history.commits else ""
    return judge("closed.refusals", claim, len(refused), "refusals", failures, not_exercised)


def _strangers(history: History) -> Verdict:
    """A refused incarnation takes part in nothing, in any epoch, until one admits it."""
    kept_out: set[Key] = set()
    let_in: set[Key] = set()
    merged: list[tuple[Key, int]] = []  # (incarnation not yet admitted, syncer step)
    failures: list[str] = []
    for said in history.by_syncer(Refused, LearnerAttached, SpanGranted, Committed):
        fact = said.fact
        if isinstance(fact, Committed):
            keys = [(one.learner, one.incarnation) for one in fact.participants]
            merged += [(key, fact.syncer_step) for key in keys if key not in let_in]
            continue
        key = (fact.learner, fact.incarnation)
        if isinstance(fact, LearnerAttached):
            let_in.add(key)
        elif isinstance(fact, SpanGranted):
            if key in kept_out and key not in let_in:
                failures.append(f"{key[0]} {key[1]} was refused, and lent span {fact.span}")
        elif fact.message == "attach":
            kept_out.add(key)
    failures += [
        f"{key[0]} {key[1]} was refused, and merged at syncer step {syncer_step}"
        for key, syncer_step in merged
        if key in kept_out
    ]
    claim = "an incarnation that was refused when attaching is lent nothing and merges into nothing"
    not_exercised = "nobody was refused" if history.commits else ""
    return judge("closed.strangers", claim, len(kept_out), "refused incarnations", failures, not_exercised)
