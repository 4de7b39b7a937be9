"""The contents of the learners' and the syncer's fragments, by provenance: where each grew from, and which steps since.

The counterpart of the trainer, of a real learner's host copies, and of the merge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.simulation.checks.oracle import MergedProposal, Oracle
from chaos.simulation.checks.provenance import Content, Key, Range, ValueVersion, rebased
from chaos.simulation.profile import TOKENS
from learners.protocol.events_effects import Apply
from orchestrator.simulation.context import Faults, SimProposal
from outer.numeric import codec as codecs
from outer.protocol.fragments import Fragment
from outer.protocol.messages import Contribution, State


@dataclass(frozen=True)
class Held:
    """A donor's state, as of one completed step."""

    contents: tuple[Content, ...]
    poisoned: bool  # its numbers are not finite

    def damaged(self) -> Held:
        """Another state, as damage on the way makes it."""
        return replace(self, contents=tuple(content._replace(step=content.step + 1) for content in self.contents))

    whole: Mapping[str, Any] = field(default_factory=dict)  # of a checkpoint: what the same incarnation goes on from


class LearnerValues:
    """`step` is the learner's newest step: copies are made after it is dispatched."""

    def __init__(self, unit: Key, oracle: Oracle) -> None:
        self.step = 0
        self._unit, self._oracle = unit, oracle
        self._roots: list[ValueVersion] = list(oracle.origin)
        self._carried: list[Any] = [()] * len(self._roots)
        self._since = [0] * len(self._roots)
        self._bases: list[ValueVersion | None] = [None] * len(self._roots)
        self._first = [0] * len(self._roots)  # the step after which it came from the syncer, not to be rebased
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
        if base is None or (effect.mode == "bootstrap" and base in self._oracle.again):
            self._first[fragment] = self.step
        self._oracle.applied(effect, base, mine, self._first[fragment])
        self._bases[fragment] = self._roots[fragment] = version
        self._carried[fragment], self._since[fragment] = mine.carried, mine.since
        if self._read:
            self._read = {key: value for key, value in self._read.items() if key[0] != fragment}

    def bases(self) -> list[tuple[int, Any]]:
        return [(-1, None) if base is None else (base.number, self._oracle.values.array(base)) for base in self._bases]

    def saved(self) -> NDArray[Any]:
        """Everything but the processes' own; another one may start from it as from a donor's."""
        held = self.packed(False)
        self.gave(self.step, held)
        whole = {name: copy(value) for name, value in vars(self).items() if name not in ("_unit", "_oracle")}
        return self._oracle.values.array(replace(held, whole=whole))

    def restore(self, saved: NDArray[Any]) -> None:
        vars(self).update({name: copy(value) for name, value in self._oracle.values.of(saved).whole.items()})

    def of_saved(self, saved: NDArray[Any]) -> Held:
        held: Held = self._oracle.values.of(saved)
        return held

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

    def __init__(self, oracle: Oracle, faults: Faults, fragments: tuple[Fragment, ...], deltas: bool) -> None:
        self.fragments = fragments
        self.task: Mapping[str, Any] = {"tokens_per_sample": TOKENS}
        self._oracle, self._values, self._faults, self._deltas = oracle, oracle.values, faults, deltas

    def origin(self, fragment: int) -> NDArray[Any]:
        return self._values.array(self._oracle.origin[fragment])

    def examined(self, contribution: Contribution) -> Contribution:
        payload = contribution.payload
        if codecs.digest(payload) != contribution.digest:
            return replace(contribution, payload=None, defect="bad_digest")
        if not math.isfinite(payload[0]):
            return replace(contribution, payload=None, defect="non_finite")
        return contribution

    def encoded(self, contribution: Contribution, poisoned: bool) -> Contribution:
        payload = np.array([math.nan]) if poisoned else self._values.array(contribution.payload)
        return replace(contribution, payload=payload, digest=codecs.digest(payload))

    def received(self, theta: NDArray[Any]) -> ValueVersion:
        version: ValueVersion = self._values.of(theta)
        if theta[0] % 1.0 or type(version) is not ValueVersion:
            self._oracle.broken("oracle.adopted", f"{theta[0]} is no version")
        return version

    def merged(
        self, syncer: Any, fragment: int, version: int, base: NDArray[Any], payloads: Sequence[Any], weights: Any
    ) -> SimProposal:
        before = self._values.of(base)
        contents = tuple(map(self._values.of, payloads))
        if any(payload[0] % 1.0 for payload in payloads):
            self._oracle.broken("oracle.refused", f"version {version} of fragment {fragment} holds a damaged payload")
        ranges: tuple[Range, ...] = ()
        for content in contents:
            ranges += content.ranges if self._deltas else content.beyond(before)
        made = ValueVersion(fragment, version, before, ranges)
        array = self._values.array(made)
        self._oracle.proposed[syncer.epoch, fragment, version] = MergedProposal(made, contents, tuple(weights))
        overflow = self._faults.damages("overflow")
        return SimProposal(fragment, [array], not overflow, math.inf if overflow else 1.0)
