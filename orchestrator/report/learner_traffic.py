"""Bytes between the syncer and each learner, against those of data-parallel training of the same steps.

Computed from the log's sizes of fragments, merged contributions, adoptions and received states. Payloads only, each
byte once. Headers, refused contributions, and what came after the last adoption are not in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learners.protocol.facts import StateReceived
from orchestrator.accounting.summary import downloaded
from orchestrator.eventlog.block import Block, Commits, ContributionRows
from outer.numeric import formats
from outer.protocol.facts import SyncerStarted

GRADIENT_BYTES = 4  # of one float32


@dataclass(frozen=True)
class LinkTraffic:
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


@dataclass
class TrafficTotals:
    """What passed one learner's link, in bytes but for `up`, and the steps that it made."""

    up: int = 0  # elements
    otherwise: int = 0  # of contributions in a number format other than the run's
    down: int = 0
    joins: int = 0
    peers: int = 0
    steps: int = 0


@dataclass(eq=False)
class TrafficFold:
    """A fold of every learner's traffic."""

    sizes: tuple[int, ...] = ()  # elements of each fragment
    learners: dict[str, TrafficTotals] = field(default_factory=dict)

    def start(self, rules: SyncerStarted) -> None:
        self.sizes = rules.sizes

    def take(self, block: Block, commits: Commits, contributions: ContributionRows) -> None:
        """`commits` and `contributions`: those of the block that no earlier epoch made."""
        if self.sizes:
            sizes = np.array([*self.sizes, 0], np.int64)
            adopted, joining = block.adoptions, block.adoptions.mode == block.code("bootstrap")

            def known(fragments: Any) -> Any:
                return np.minimum(fragments, len(self.sizes))  # a strange log may name others: they count nothing

            elements, own = sizes[known(commits.fragment)[contributions.commit]], contributions.codec != ""
            self._add(block, "up", contributions.learner[~own], elements[~own])
            if own.any():
                forms = [formats.known(codec) for codec in contributions.codec[own].tolist()]
                sent = [form.bytes(n) if form else 0 for form, n in zip(forms, elements[own].tolist(), strict=True)]
                self._add(block, "otherwise", contributions.learner[own], np.array(sent, np.int64))
            came = downloaded(adopted, sizes[known(adopted.fragment)])
            self._add(block, "joins", adopted.source[joining], came[joining])
            self._add(block, "down", adopted.source[~joining], came[~joining])
        self._add(block, "steps", block.steps.source, np.ones(len(block.steps.source), np.int64))
        for _, event in block.others:
            if isinstance(event.fact, StateReceived) and event.fact.source == "peer":
                self._of(event.writer).peers += event.fact.bytes

    def _add(self, block: Block, name: str, sources: Any, amounts: Any) -> None:
        totals = np.zeros(len(block.sources), np.int64)
        np.add.at(totals, sources, amounts)
        for source in np.flatnonzero(totals).tolist():
            sent = self._of(block.sources[source][0])
            setattr(sent, name, getattr(sent, name) + int(totals[source]))

    def _of(self, learner: str) -> TrafficTotals:
        return self.learners.setdefault(learner, TrafficTotals())

    def links(self, names: tuple[str, ...], configured: int, recipe: Mapping[str, Any]) -> list[LinkTraffic]:
        """One link for each of these learners; `configured`: how many a data-parallel run would have."""
        form = formats.known((recipe.get("sync") or {}).get("codec"))
        a_step = 2 * (configured - 1) / configured * sum(self.sizes) * GRADIENT_BYTES if configured else 0.0
        made = []
        for name in names:
            sent = self.learners.get(name, TrafficTotals())
            up = None if form is None else round(sent.up * form.bits / 8) + sent.otherwise
            made.append(LinkTraffic(name, up, sent.down, sent.joins, sent.peers, sent.steps, sent.steps * a_step))
        return made
