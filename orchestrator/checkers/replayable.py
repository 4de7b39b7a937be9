"""replayable.* (I9): the log has all that a replay of every commit needs.

That is each contributing incarnation's steps without a gap, its initial state, and digests to compare with. A donor
that died may not have sent its last facts: what is then missing is unknown, and so are steps whose facts were lost.
Only a replay can show equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.protocol.facts import Donated, StateReceived, StateSaved
from orchestrator.accounting.verdicts import Verdict
from orchestrator.accounting.windows import MOST
from orchestrator.checkers.claims import Failures, judge, unknown
from orchestrator.checkers.state import CheckState, MergedRows, previous
from orchestrator.eventlog.block import NONE, Block, Ints, Key
from orchestrator.eventlog.events import Event

GIFTS_KEPT = 4096  # newest states that a donor gave, and that incarnations received
GIFTS_EACH = 8  # newest ones of one donor to one joiner, which asks again when an answer is late
SAVED_KEPT = 4  # newest states that a learner saved


def _ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass
class Replayable:
    state: CheckState
    steps: Failures = field(default_factory=Failures)
    states: Failures = field(default_factory=Failures)
    lost_steps: Failures = field(default_factory=Failures)  # what is missing because facts were lost
    lost_states: Failures = field(default_factory=Failures)
    contributing: int = 0  # incarnations
    digests: tuple[int, int] = (0, 0)  # of commits, of contributions
    without: tuple[Failures, Failures] = field(default_factory=lambda: (Failures(), Failures()))
    _received: dict[Key, StateReceived] = field(default_factory=dict)
    # (donor, incarnation, joiner, incarnation) -> all that was given, and whether the log has the donor's step
    _given: dict[tuple[str, int, str, int], list[tuple[Donated, bool]]] = field(default_factory=dict)
    _saved: dict[str, dict[tuple[int, int], bool]] = field(default_factory=dict)  # learner -> (incarnation, step)
    _waiting: dict[Key, StateReceived] = field(default_factory=dict)  # contributed, from a state nobody gave so far
    # By slot:
    _began: Ints = field(default_factory=_ints)  # the first step, NONE
    _last: Ints = field(default_factory=_ints)  # the last step
    _whole: Ints = field(default_factory=_ints)  # no step up to this one is missing; MOST: none so far
    _adopted: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [slots, fragments] first after_step
    _contributed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def take(self, block: Block) -> None:
        windows, fit = self.state.windows, self.state.windows.fit
        self._began, self._last, self._whole = fit(self._began, NONE), fit(self._last, NONE), fit(self._whole, MOST)
        self._adopted = fit(self._adopted, MOST, windows.fragments)
        self._contributed = fit(self._contributed, False)
        self._follow_learners()
        for _, event in block.others:
            if isinstance(event.fact, StateReceived):
                self._received[event.writer, event.incarnation] = event.fact
                _bound(self._received)
            elif isinstance(event.fact, Donated):
                self._on_donated(event, event.fact)
            elif isinstance(event.fact, StateSaved):
                here = self._saved.setdefault(event.writer, {})
                here[event.incarnation, event.fact.step] = self._has(event, event.fact.step)
        merged = self.state.merged
        assert merged is not None
        if len(merged.slots):
            self._on_contributions(merged)
        for key in [key for key, received in self._waiting.items() if self._gift(key, received) is not None]:
            self._compare(key, self._waiting.pop(key))
        for here in self._saved.values():  # only now: who starts from a state may contribute after it has saved others
            for old in [*here][:-SAVED_KEPT]:
                del here[old]
        self._digests()

    def _follow_learners(self) -> None:
        grouped = self.state.windows.grouped
        assert grouped is not None
        slots, steps = grouped.step_slots, grouped.steps.step
        before = previous(self._last, slots, steps)
        first = before == NONE
        self._began[slots[first]] = steps[first]
        gaps = ~first & (steps != before + 1)
        np.minimum.at(self._whole, slots[gaps], before[gaps])
        adopted = grouped.adoptions
        np.minimum.at(self._adopted, (grouped.adoption_slots, adopted.fragment), adopted.after_step)

    def _on_contributions(self, merged: MergedRows) -> None:
        """With a peer's state steps begin at 1, else right after the first adoption: later in strict overlap."""
        slots = merged.slots
        known = slots >= 0
        fresh = known & ~self._contributed[slots]
        broken = ~known | (merged.parts.step > np.minimum(self._whole, self._last)[slots])
        for slot in np.unique(slots[fresh]).tolist():
            self._contributed[slot] = True
            self.contributing += 1
            self._begin(next(key for key, each in self.state.windows.slots.items() if each == slot), slot)
        for row in np.flatnonzero(broken).tolist():
            key = self.state.sources[int(merged.parts.learner[row])]
            slot, step = int(slots[row]), int(merged.parts.step[row])
            missing = 1 if slot < 0 else min(int(self._whole[slot]), int(self._last[slot])) + 1
            told = f"step {min(missing, step)} of {key[0]} {key[1]} is in a commit, and not in the log"
            (self.lost_steps if merged.lost[row] else self.steps).add(told)

    def _begin(self, key: Key, slot: int) -> None:
        """The first contribution of an incarnation: its steps begin where its state does."""
        received, lost = self._received.get(key), key in self.state.keeper.lost
        peer = received is not None and received.source == "peer"
        adopted = int(self._adopted[slot].min(initial=MOST))
        first = 1 if peer or adopted == MOST else 1 + adopted
        if self._began[slot] != first:
            told = f"step {first} of {key[0]} {key[1]} is in a commit, and not in the log"
            (self.lost_steps if lost else self.steps).add(told)
        if peer and received is not None:
            if self._gift(key, received) is None:
                self._waiting[key] = received
                _bound(self._waiting)
            else:
                self._compare(key, received)
            return
        for fragment in range(self.state.fragments):
            if self._adopted[slot, fragment] >= self._began[slot]:
                told = f"{key[0]} {key[1]} stepped before it had fragment {fragment} from anyone"
                (self.lost_states if lost else self.states).add(told)

    # -------------------------------------------------------------- states of peers

    def _has(self, event: Event, step: int) -> bool:
        """Whether the log has this step of the learner that tells of it."""
        slot = self.state.windows.slots.get((event.writer, event.incarnation))
        return slot is not None and bool(self.state.windows.newest[slot] >= step)

    def _on_donated(self, event: Event, fact: Donated) -> None:
        key = (event.writer, event.incarnation, fact.joiner, fact.joiner_incarnation)
        gifts = self._given.setdefault(key, [])
        gifts.append((fact, self._has(event, fact.step)))
        del gifts[:-GIFTS_EACH]
        _bound(self._given)

    def _gift(self, key: Key, received: StateReceived) -> tuple[Donated | None, bool] | None:
        """Return the given state (None from a checkpoint), and whether the log has the donor's step (None: unsaid).

        It is known by its content: the donor may have given the same joiner several.
        """
        for gift, has in self._given.get((received.donor, received.donor_incarnation, *key), ()):
            if not any(_differs(key, received, gift)):
                return gift, has
        # From a checkpoint, whose seal has been checked.
        stepped = self._saved.get(received.donor, {}).get((received.donor_incarnation, received.donor_step))
        return None if stepped is None else (None, stepped)

    def _compare(self, key: Key, received: StateReceived) -> None:
        found = self._gift(key, received)
        assert found is not None
        if not found[1]:
            self.lost_states.add(
                f"{key[0]} {key[1]} started from step {received.donor_step} "
                f"of {received.donor} {received.donor_incarnation}, which is not in the log"
            )

    # -------------------------------------------------------------- digests

    def _digests(self) -> None:
        """A simulated log has no digests: a replay has nothing to compare with."""
        commits, parts = self.state.records.commits, self.state.records.contributions
        blank = [np.array(column == "", bool) for column in (commits.digest, parts.digest)]
        counts = [len(each) - int(each.sum()) for each in blank]
        self.digests = (self.digests[0] + counts[0], self.digests[1] + counts[1])
        for row in np.flatnonzero(blank[0]).tolist():
            self.without[0].add(f"the commit of syncer step {self.state.commits[row].syncer_step} has no digest")
        if blank[1].any():
            _, commit, one = next(self.state.contributions(blank[1]))
            learner, incarnation = self.state.sources[int(one.learner)]
            told = f"the contribution of {learner} {incarnation} at syncer step {commit.syncer_step} has no digest"
            self.without[1].add(told, int(blank[1].sum()))

    def verdicts(self) -> list[Verdict]:
        failed = Failures()
        if self.states:
            failed.add(self.states.first, self.states.count)
        for key, received in self._waiting.items():
            for gift, _ in self._given.get((received.donor, received.donor_incarnation, *key), ())[-1:]:
                for told in _differs(key, received, gift):
                    failed.add(told)
        states = judge("replayable.states", self.contributing, "contributing incarnations", failed)
        if not failed and (missing := self._missing()):
            states = unknown(states.name, missing)
        steps = judge("replayable.steps", self.contributing, "contributing incarnations", self.steps)
        if not self.steps and self.lost_steps:
            steps = unknown(steps.name, self.lost_steps.first)
        failures = Failures()
        for recorded, without in zip(self.digests, self.without, strict=True):
            if recorded and without:
                failures.add(without.first, without.count)
        checked = sum(
            recorded + without.count for recorded, without in zip(self.digests, self.without, strict=True) if recorded
        )
        return [steps, states, judge("replayable.digests", checked, "digests", failures)]

    def _missing(self) -> str:
        if self._waiting:
            key, received = next(iter(self._waiting.items()))
            return f"{key[0]} {key[1]} started from {received.donor}, which does not say that it gave"
        return self.lost_states.first


def _differs(key: Key, received: StateReceived, gift: Donated) -> Iterator[str]:
    for what, got, gave in (
        ("step", received.donor_step, gift.step),
        ("digest", received.digest, gift.digest),
        ("bytes", received.bytes, gift.bytes),
        ("versions", received.versions, gift.versions),
    ):
        if got != gave:
            donor = f"{received.donor} {received.donor_incarnation}"
            yield f"{key[0]} {key[1]} started from {what} {got} of {donor}, which gave {gave}"


def _bound(things: dict[Any, Any]) -> None:
    if len(things) > GIFTS_KEPT:
        del things[next(iter(things))]
