"""The contents of the learners' and the syncer's fragments, by provenance: where each grew from, and which steps since.

The counterpart of the trainer, of a real learner's host copies, and of the merge.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from chaos.simulation.checks.oracle import MergedProposal, Oracle
from chaos.simulation.checks.provenance import Content, Key, Range, ValueVersion, rebased
from learners.protocol.events_effects import Apply
from orchestrator.simulation.context import Faults
from orchestrator.simulation.syncer_process import SyncerProcess
from outer.protocol.events_effects import Merge, Merged, Publish
from outer.protocol.messages import Contribution, State


class Held(NamedTuple):
    """A donor's state, as of one completed step."""

    contents: tuple[Content, ...]
    poisoned: bool  # its numbers are not finite


class LearnerValues:
    """`step` is the learner's newest step: copies are made after it is dispatched."""

    def __init__(self, unit: Key, oracle: Oracle) -> None:
        self.step = 0
        self._unit, self._oracle = unit, oracle
        self._roots: list[ValueVersion] = list(oracle.origin)
        self._carried: list[Any] = [()] * len(self._roots)
        self._since = [0] * len(self._roots)
        self._bases: list[ValueVersion | None] = [None] * len(self._roots)
        self._first = [0] * len(self._roots)  # the step after which a fragment first came from the syncer
        self._read: dict[tuple[int, int], Content] = {}  # by fragment and step: what was handed out since

    @property
    def whole(self) -> bool:
        """Every fragment came from the syncer."""
        return None not in self._bases

    @property
    def unmerged(self) -> list[int]:
        """Fragments that came from the syncer, with own steps on them that it does not have."""
        return [p for p, base in enumerate(self._bases) if base is not None and self.step > self._since[p]]

    def _content(self, fragment: int) -> Content:
        return Content(self._roots[fragment], self._carried[fragment], self._unit, self._since[fragment], self.step)

    def copies(self, fragments: tuple[int, ...]) -> dict[int, Content]:
        return {fragment: self._content(fragment) for fragment in fragments}

    def read(self, contribution: Contribution) -> None:
        """A fragment was handed out. A rebase asks later what it was."""
        content = contribution.payload
        self._read[contribution.fragment, content.step] = content
        self._oracle.contributed(content, contribution)

    def apply(self, effect: Apply) -> None:
        """Adopt a version."""
        fragment, version = effect.fragment, effect.payload
        base, mine = self._bases[fragment], self._content(fragment)
        if effect.mode == "rebase":
            assert base is not None, "there is nothing to rebase onto before the first version"
            anchor = Content(base, (), self._unit, mine.since, mine.since)
            if effect.read_at is not None:
                anchor = self._read[fragment, effect.read_at]
            mine = rebased(mine, anchor, version)
        else:
            mine = Content(version, (), self._unit, self.step, self.step)
        if base is None:
            self._first[fragment] = self.step
        self._oracle.applied(effect, base, mine, self._first[fragment])
        self._bases[fragment] = self._roots[fragment] = version
        self._carried[fragment], self._since[fragment] = mine.carried, mine.since
        if self._read:
            self._read = {key: value for key, value in self._read.items() if key[0] != fragment}

    def packed(self, poisoned: bool) -> Held:
        return Held(tuple(map(self._content, range(len(self._roots)))), poisoned)

    def gave(self, step: int, held: Held) -> None:
        self._oracle.gave(self._unit, step, held.contents)

    def inherit(self, state: State) -> None:
        """Start from a donor's values. Its steps are in there, and are not this learner's to contribute."""
        held: Held = state.payload
        donor = (state.donor, state.donor_incarnation)
        self._oracle.inherited(self._unit, donor, state.step, held.contents, held.poisoned)
        for fragment, content in enumerate(held.contents):
            self._roots[fragment], self._carried[fragment] = content.root, content.ranges
            self._since[fragment] = self.step


class SyncerValues:
    """Merges payloads into versions. `faults` may make an update overflow.

    `deltas`: a payload is what a learner added to its own base, not its parameters.
    """

    def __init__(self, oracle: Oracle, faults: Faults, deltas: bool) -> None:
        self._oracle, self._faults, self._deltas = oracle, faults, deltas

    def merged(self, syncer: SyncerProcess, effect: Merge) -> Merged:
        base = syncer.values[effect.fragment]
        ranges: tuple[Range, ...] = ()
        for content in effect.payloads:
            ranges += content.ranges if self._deltas else content.beyond(base)
        version = ValueVersion(effect.fragment, effect.syncer_step, base, ranges)
        proposal = MergedProposal(version, effect.payloads, effect.weights)
        digest = f"{effect.fragment}@{effect.syncer_step}/{syncer.epoch}"
        overflow = self._faults.damages("overflow")
        return Merged(effect.syncer_step, proposal, digest, math.inf if overflow else 1.0, not overflow)

    def published(self, syncer: SyncerProcess, effect: Publish) -> ValueVersion:
        version: ValueVersion = effect.proposal.version
        self._oracle.published(syncer.epoch, version)
        return version
