"""Checks what only the simulator can see: which steps are really in each value, and what the store really holds.

The log is judged by the log's own checks (history.py).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chaos.simulation.checks.provenance import Content, Key, ValueVersion, uneven
from chaos.simulation.profile import Options
from learners.protocol.events_effects import Apply
from outer.protocol.events_effects import Append
from outer.protocol.facts import Committed, SetAside, SpanGranted, SpanReturned, StateRebuilt

NONE = -1
SHOWN_MAX = 8  # violations of one check that are kept


class Violation(NamedTuple):
    check: str
    reason: str


class MergedProposal(NamedTuple):
    """A merge as the shell made it: the fragment's next version, from these payloads with these weights."""

    version: ValueVersion
    payloads: tuple[Content, ...]
    weights: tuple[float, ...]


class ValueTable:
    """Values by number: in shells, messages and the store an array of that number stands for a value."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._numbers: dict[int, int] = {}  # by identity

    def array(self, value: Any) -> NDArray[Any]:
        """The same for the same value."""
        number = self._numbers.setdefault(id(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return np.array([float(number)])

    def of(self, array: NDArray[Any]) -> Any:
        return self._values[int(array[0])]


class Oracle:
    """Collects the violations of a run. `tips` is each fragment's newest durable version."""

    def __init__(self, options: Options) -> None:
        self.violations: list[Violation] = []
        self.origin = tuple(ValueVersion(p, 0, None, ()) for p in range(options.fragments))
        self.tips = list(self.origin)
        self.epoch = 0  # the newest that has opened
        self.values = ValueTable()
        self.appends: dict[tuple[int, int], Append] = {}  # records, by epoch and sequence
        self.proposed: dict[tuple[int, int, int], MergedProposal] = {}  # by epoch, fragment and version: the newest
        self._found = list[ValueVersion]()  # the tips before epochs that rebuilt them and wrote nothing
        self.again = set[ValueVersion]()  # lost ones, and those that were left: learners that hold one adopt again
        self._lost: dict[tuple[int, Key], int] = {}  # by fragment and learner: the last own step in a lost version
        self._spans: set[int] = set()  # whose grant is durable
        self._lent: dict[Key, int] = {}  # samples, durably
        self._committed: dict[Key, int] = {}  # the last step of each that is in any durable version
        self._batch = options.batch
        self.checked = 0
        self.shared: dict[str, int] = {}  # the newest syncer step that each learner has a share in
        self._given: dict[tuple[Key, int], list[tuple[Content, ...]]] = {}  # what a donor gave as of a step of its own
        self.garbled: dict[int, tuple[Content, str]] = {}  # by identity: what must be refused, and why
        self.spoilt: list[Key] = []  # incarnations that ended on a sample that cannot be read, since all was healed
        self._tokens = options.tokens
        self._learners = options.learners
        self._sync = options.sync
        self._lockstep = options.sync.overlap == "strict"
        self._overlap_steps = options.sync.overlap_steps

    def broken(self, check: str, reason: str) -> None:
        if sum(each.check == check for each in self.violations) < SHOWN_MAX:
            self.violations.append(Violation(check, reason))

    # -------------------------------------------------------------- the syncer's side

    def committed(self, record: Committed, proposal: MergedProposal) -> None:
        """A commit became durable."""
        self._found = []
        version, name = proposal.version, f"fragment {record.fragment} at syncer step {record.syncer_step}"
        tip = self.tips[record.fragment]
        self.checked += 1
        if version.parent is not tip:
            made_from = version.parent.number if version.parent else None
            self.broken("oracle.lineage", f"{name} was made from version {made_from}, durable was {tip.number}")
        if version.odd and (reason := uneven(version.lineage())):
            self.broken("oracle.once", f"{name}: {reason}")
        self.tips[record.fragment] = version
        version.durable = True
        if len(record.participants) != len(proposal.payloads):
            named = f"{len(record.participants)} of {len(proposal.payloads)} payloads"
            self.broken("oracle.record", f"{name} names {named}")
        if self.garbled and any(id(content) in self.garbled for content in proposal.payloads):
            self.broken("oracle.refused", f"{name} holds an answer that was to be refused")
        if self._lockstep:
            self._together(name, record.syncer_step, proposal.payloads)
        for content in proposal.payloads:
            self.shared[content.unit[0]] = record.syncer_step
            self._committed[content.unit] = max(content.step, self._committed.get(content.unit, 0))
        for one, content, weight in zip(record.participants, proposal.payloads, proposal.weights, strict=False):
            told = (one.learner, one.incarnation), one.base_step, one.step, one.steps, one.tokens, one.weight
            steps = content.step - content.since
            tokens = steps * self._tokens[content.unit[0]]
            held = content.unit, content.since, content.step, steps, tokens, weight
            if told != held or content.carried or one.age != self._age(content, version):
                self.broken("oracle.record", f"{name} says {told}, the payload is {held} with {content.carried}")

    def _age(self, content: Content, version: ValueVersion) -> int:
        """How many rounds a payload's base is behind the version merged onto; NONE where it is no ancestor of that."""
        base, tip = version.parent, version.parent
        while base is not None and base is not content.root:
            base = base.parent
        return NONE if base is None or tip is None else math.ceil((tip.number - base.number) / self._sync.round_steps)

    def _together(self, name: str, syncer_step: int, payloads: tuple[Content, ...]) -> None:
        """In strict overlap a commit is of every learner's step of its own number."""
        steps = {content.unit[0]: content.step for content in payloads}
        if sorted(steps) != sorted(self._learners) or set(steps.values()) != {syncer_step}:
            self.broken("oracle.lockstep", f"{name} holds {steps}")

    def published(self, epoch: int, version: ValueVersion) -> None:
        """It is announced. What is not durable never is."""
        if not version.durable:
            name = f"version {version.number} of fragment {version.fragment}"
            self.broken("oracle.durable", f"epoch {epoch} announced {name}, which is not durable")

    def rebuilt(self, fact: StateRebuilt) -> None:
        """An epoch says which versions are lost, and which are left; if it wrote nothing, the next may find more."""
        self._found = self._found or list(self.tips)
        self.tips = list(self._found)
        for fragment, left in zip(fact.commits_lost, fact.versions_left, strict=True):
            tip = self.tips[fragment]
            while tip.number > left and tip.parent is not None:
                self.again.add(tip)
                for unit, step in tip.newest.items():
                    self._lost[fragment, unit] = max(step, self._lost.get((fragment, unit), 0))
                tip = tip.parent
            self.again.add(tip)
            self.tips[fragment] = tip

    def recovered(self, epoch: int, versions: list[ValueVersion], told: list[int]) -> None:
        """An epoch begins with these, and its machine with these numbers."""
        if told != [tip.number for tip in self.tips]:
            self.broken(
                "oracle.durable", f"epoch {epoch} begins with {told}, durable is {[t.number for t in self.tips]}"
            )
        for version in versions:
            if self.tips[version.fragment] is not version:
                tip = self.tips[version.fragment].number
                self.broken(
                    "oracle.durable",
                    f"epoch {epoch} begins with version {version.number} of fragment {version.fragment}, not {tip}",
                )

    def lent(self, granted: SpanGranted) -> None:
        """A grant became durable. What the learner's earlier incarnations had not committed has to be back by then."""
        key = (granted.learner, granted.incarnation)
        self._spans.add(granted.span)
        self._lent[key] = self._lent.get(key, 0) + granted.stop - granted.start
        for (name, incarnation), samples in self._lent.items():
            used = self._committed.get((name, incarnation), 0) * self._batch[name]
            if name == key[0] and incarnation < key[1] and samples > used:
                reason = f"{name} {incarnation} keeps {samples} samples after its end, {used} of them are committed"
                self.broken("oracle.returned", reason)

    def returned(self, back: SpanReturned | SetAside) -> None:
        """Check that no sample that is returned, or set aside, is committed."""
        key = (back.learner, back.incarnation)
        self._lent[key] -= back.stop - back.start
        used = self._committed.get(key, 0) * self._batch[back.learner]
        if self._lent[key] < used:
            reason = f"{back.learner} {back.incarnation} keeps {self._lent[key]} samples, {used} are committed"
            self.broken("oracle.returned", reason)

    def granted(self, epoch: int, span: int) -> None:
        """A learner is told of a span."""
        if span not in self._spans:
            self.broken("oracle.spans", f"epoch {epoch} lent span {span}, which no durable record says")

    # -------------------------------------------------------------- the learners' side

    def applied(self, effect: Apply, before: ValueVersion | None, after: Content, bootstrapped: int) -> None:
        """A learner adopted a version. `bootstrapped`: the step after which it took this fragment as it is."""
        version, unit = effect.payload, after.unit
        name = f"{unit[0]} {unit[1]} adopted version {version.number} of fragment {effect.fragment}"
        if version.number != effect.version:
            self.broken("oracle.adopted", f"{name} as version {effect.version}")
        if before is not None and version.number <= before.number and before not in self.again:
            self.broken("oracle.adopted", f"{name} after version {before.number}")
        if not version.durable:
            self.broken("oracle.durable", f"{name}, which is not durable")
        if self._lockstep and before is not None:
            due = version.number + self._overlap_steps
            if after.step != due or version.parent is not before:
                self.broken(
                    "oracle.lockstep", f"{name} after step {after.step} and version {before.number}, due is {due}"
                )
        merged = version.newest.get(unit, 0)
        if merged > after.since or after.carried or version.odd:
            own = [one for one in (*version.lineage(), *after.ranges) if one.unit == unit]
            if reason := uneven(own):
                self.broken("oracle.own", f"{name}: {reason}")
        # What went into a lost version stays counted, so a learner does not hand it in again.
        kept_from = max(merged, bootstrapped, self._lost.get((effect.fragment, unit), 0))
        if effect.mode == "rebase" and after.since > kept_from:
            self.broken("oracle.kept", f"{name} and lost its own steps from {kept_from} to {after.since}")

    def contributed(self, content: Content, contribution: Any) -> None:
        """Check the claims of a learner about the payload that it hands out."""
        told = contribution.step, contribution.counters.base_step, contribution.processed
        held = content.step, content.since, content.step * self._tokens[content.unit[0]]
        if told != held:
            self.broken(
                "oracle.counters", f"{content.unit[0]} {content.unit[1]} says {told} of a payload that is {held}"
            )

    def gave(self, donor: Key, step: int, contents: tuple[Content, ...]) -> None:
        """A donor's state, on its way to a joiner."""
        self._given.setdefault((donor, step), []).append(contents)
        if any(content.step != step for content in contents):
            self.broken("oracle.state", f"{donor[0]} {donor[1]} gave as of step {step} what is not of that step")

    def inherited(self, joiner: Key, donor: Key, step: int, contents: tuple[Content, ...], poisoned: bool) -> None:
        """A joiner starts from a donor's state: the one that the donor gave, of one completed step."""
        name = f"{joiner[0]} {joiner[1]} starts from {donor[0]} {donor[1]} at step {step}"
        if contents not in self._given.get((donor, step), ()):
            self.broken("oracle.state", f"{name}, which gave something else")
        if poisoned:
            self.broken("oracle.finite", f"{name}, whose numbers are not finite")
