"""I7, finite: nothing that is not a number has reached the global parameters.

A learner's own loss may diverge; its contributions are then refused. What was merged and evaluated may not. That a
merged update's norm is bounded is not held against the log: no bound on it is set anywhere.
"""

from __future__ import annotations

import math

from orchestrator.accounting.history import History
from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.events import Evaluated


def check(history: History) -> list[Verdict]:
    broken: list[str] = []
    for said in history.commits:
        fact = said.fact
        numbers = [("norm", fact.norm), *(("weight of " + one.learner, one.weight) for one in fact.participants)]
        broken += [
            f"syncer step {fact.syncer_step}: the {name} is {number}"
            for name, number in numbers
            if not 0.0 <= number < math.inf
        ]
    broken += [
        f"the held-out loss at syncer step {said.fact.syncer_step} is {said.fact.loss}"
        for said in history.of(Evaluated)
        if not math.isfinite(said.fact.loss)
    ]
    promise = "norms (of whatever size), weights and held-out losses are finite, norms and weights not negative"
    return [judge("finite.commits", promise, len(history.commits), "commits", broken)]
