"""closed.* (I13): a refused message changes nothing, and its sender is told why.

Only refusals by the syncer are in the log; a peer that never reached it is not seen here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import Failures, judge
from orchestrator.checkers.state import CheckState
from orchestrator.eventlog.block import Block, Key
from outer.protocol.facts import Refused, SpanGranted

KEPT = 1024  # newest incarnations that were refused, and that merged unattached

REASONS: dict[str, frozenset[str]] = {  # by message
    "expect": frozenset({"stale_incarnation"}),
    "attach": frozenset({"malformed", "unknown_learner", "stale_incarnation", "wrong_config"}),
    "seek": frozenset({"malformed", "unknown_learner", "stale_incarnation", "stale_epoch"}),
    "report": frozenset({"malformed", "unknown_learner", "stale_incarnation", "stale_epoch", "wrong_counters"}),
    "contribution": frozenset(
        {
            "malformed",
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


@dataclass
class Closed:
    state: CheckState
    refusals: Failures = field(default_factory=Failures)
    strangers: Failures = field(default_factory=Failures)
    refused: int = 0
    kept_out: int = 0  # incarnations that were refused when attaching
    _out: dict[Key, None] = field(default_factory=dict)  # the newest of these
    _merged: dict[Key, int] = field(default_factory=dict)  # not admitted so far -> syncer step at which it merged

    def take(self, block: Block) -> None:
        for said in self.state.story:
            fact = said.fact
            if isinstance(fact, Refused):
                self._on_refused(fact)
            elif isinstance(fact, SpanGranted) and not self.state.records.is_repeated(said.position):
                key = (fact.learner, fact.incarnation)
                if key in self._out and self.state.attached_at(key) > said.position:
                    self.strangers.add(f"{key[0]} {key[1]} was refused, and lent span {fact.span}")
        self._on_commits()

    def _on_refused(self, fact: Refused) -> None:
        self.refused += 1
        name = f"a {fact.message} of {fact.learner} {fact.incarnation} was refused"
        if fact.reason not in REASONS.get(fact.message, ()):
            self.refusals.add(f"{name} for {fact.reason!r}, which is no reason")
        elif fact.reason == "wrong_config" and not FIELD.match(fact.detail):
            self.refusals.add(f"{name} for its configuration, and no field was named")
        key = (fact.learner, fact.incarnation)
        if fact.message == "attach" and key not in self._out:
            self.kept_out += 1
            self._out[key] = None
            if key in self._merged:
                self._breach(key, self._merged[key])
            _bound(self._out)

    def _on_commits(self) -> None:
        """A refused incarnation takes part in nothing, in any epoch, until one admits it."""
        merged = self.state.merged
        assert merged is not None
        attached = np.array([self.state.attached_at(key) for key in self.state.sources], np.int64)
        early = attached[merged.parts.learner] > merged.position
        for row in np.flatnonzero(early).tolist():
            key = self.state.sources[int(merged.parts.learner[row])]
            step = self.state.commits[int(merged.parts.commit[row])].syncer_step
            if key in self._out:
                self._breach(key, step)
            self._merged.setdefault(key, step)
            _bound(self._merged)

    def _breach(self, key: Key, syncer_step: int) -> None:
        self.strangers.add(f"{key[0]} {key[1]} was refused, and merged at syncer step {syncer_step}")

    def verdicts(self) -> list[Verdict]:
        ran = self.state.committed > 0
        return [
            judge("closed.refusals", self.refused, "refusals", self.refusals, "nothing was refused" if ran else ""),
            judge(
                "closed.strangers",
                self.kept_out,
                "refused incarnations",
                self.strangers,
                "nobody was refused" if ran else "",
            ),
        ]


def _bound(things: dict[Key, Any]) -> None:
    if len(things) > KEPT:
        del things[next(iter(things))]
