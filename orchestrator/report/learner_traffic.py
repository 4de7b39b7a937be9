"""Bytes between the syncer and each learner, against those of data-parallel training of the same steps.

Computed from the log's sizes of fragments, merged contributions, adoptions and received states. Payloads only, each
byte once. Headers, refused contributions, and versions that were fetched and never adopted are not in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.accounting.history import History
from orchestrator.accounting.summary import ELEMENT_BYTES
from orchestrator.eventlog.facts import REGISTRY

GRADIENT_BYTES = 4  # of one float32


@dataclass(frozen=True)
class Link:
    """One learner's traffic over the whole run, all incarnations, in bytes."""

    learner: str
    up: int | None  # contributions that merged; None: the recipe does not name a known codec
    down: int  # versions adopted while stepping
    joins: int  # versions adopted to begin with
    peers: int  # states received from another learner
    steps: int
    data_parallel: float  # a ring all-reduce of every step's float32 gradient among all configured learners

    @property
    def total(self) -> int | None:
        return None if self.up is None else self.up + self.down + self.joins + self.peers


def links(history: History, recipe: Mapping[str, Any]) -> list[Link]:
    """One link for each learner, in order of arrival; none where the log does not know the learners."""
    rules = history.rules
    if rules is None:
        return []
    width = ELEMENT_BYTES.get(str((recipe.get("sync") or {}).get("codec")))
    up, down, joins, peers = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for commit in history.commits:
        for one in commit.fact.participants:
            up[one.learner] += rules.sizes[commit.fact.fragment]
    for said in history.of(Adopted):
        table = joins if said.fact.mode == "bootstrap" else down
        table[said.writer] += rules.sizes[said.fact.fragment] * ELEMENT_BYTES["fp32"]
    for said in history.of(REGISTRY.get("StateReceived", type(None))):
        if said.fact.source == "peer":
            peers[said.writer] += said.fact.bytes
    steps = Counter(said.writer for said in history.of(StepFinished))
    count, elements = len(rules.learners), sum(rules.sizes)
    a_step = 2 * (count - 1) / count * elements * GRADIENT_BYTES
    return [
        Link(
            name,
            None if width is None else up[name] * width,
            down[name],
            joins[name],
            peers[name],
            steps[name],
            steps[name] * a_step,
        )
        for name in history.learners
    ]
