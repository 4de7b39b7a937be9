"""Rebuilds the syncer's state when the journal is missing, damaged, or was never kept.

The records come from the event log, which has every announced one. Each fragment's value comes from the journal, the
newest checkpoint or a learner, whichever has the newest. A value that no source has is lost, and is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from outer.journal import checkpoint_parts
from outer.journal.groups import Value
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.ports import NoAnswer, Peer, insist
from outer.protocol.facts import Record, StateRebuilt
from outer.protocol.leases import longest_s
from outer.protocol.recovery import Entry, JournalReplay, Recovered

JOURNAL, CHECKPOINT, LEARNER, INITIAL = "journal", "checkpoint", "learner", "initial"

HELD_S = 10.0  # for a learner to give what it holds of a fragment


@dataclass(frozen=True)
class RecoverySource:
    """A fragment's value from one source. A learner's value has no outer state: `value.arrays` is theta alone."""

    source: str
    value: Value
    digest: str  # of theta


@dataclass
class Rebuilt:
    """The rebuilt state. Later epochs open no syncer step up to its clock, and do not know of every loan."""

    replay: JournalReplay
    values: dict[int, Value] = field(default_factory=dict)  # by fragment; a fragment without one has its initial value
    momentum_lost: set[int] = field(default_factory=set)  # fragments whose value has no outer state
    sources: list[str] = field(default_factory=list)  # by fragment
    # By fragment: (announced version, version used instead).
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def found(self) -> Recovered:
        return self.replay.found

    def fact(self, why: str) -> StateRebuilt:
        """The fact to log."""
        return StateRebuilt(
            why,
            tuple(self.sources),
            tuple(sorted(self.momentum_lost)),
            tuple(fragment for fragment, _ in sorted(self.lost.items())),
            tuple(left for _, (_, left) in sorted(self.lost.items())),
        )


def replay_log(records: Iterable[tuple[int, Record]], fragments: int) -> JournalReplay:
    """Replay the log's records. `records`: (epoch that logged it, record), each once, in the syncer's order."""
    replay, epoch, sequence = JournalReplay.empty(fragments), 0, 0
    for said_by, record in records:
        epoch, sequence = (said_by, 0) if said_by > epoch else (epoch, sequence)
        replay.apply(Entry(epoch, sequence, record))
        sequence += 1
    return replay


def rebuild(
    log: JournalReplay,
    journal: Mapping[int, RecoverySource],
    checkpoint: Mapping[int, Value],
    learners: Mapping[int, Sequence[RecoverySource]],
) -> Rebuilt:
    """Take the newest value of each fragment. A newer one than the log knows, which a learner holds, was announced too.

    No record is taken back: what went into a lost version stays counted, and is not trained again.
    """
    known, fragments = log.found, range(len(log.found.versions))
    held = {
        fragment: max((each.value.version for each in each_of), default=0) for fragment, each_of in learners.items()
    }
    announced = [max(known.versions[fragment], held.get(fragment, 0)) for fragment in fragments]
    rebuilt = Rebuilt(log)
    known.clock, known.whole = max(known.clock, *announced), False
    for fragment in fragments:
        offered = [*([journal[fragment]] if fragment in journal else []), *learners.get(fragment, ())]
        if fragment in checkpoint:
            offered.append(RecoverySource(CHECKPOINT, checkpoint[fragment], ""))
        digest = known.digests[fragment] if announced[fragment] == known.versions[fragment] else ""
        best = _best(offered, announced[fragment], digest)
        version = 0 if best is None else best.value.version
        rebuilt.sources.append(INITIAL if best is None else best.source)
        if version < announced[fragment]:
            rebuilt.lost[fragment] = (announced[fragment], version)
        log.found.digests[fragment] = "" if best is None else best.digest
        if best is not None:
            rebuilt.values[fragment] = best.value
            if best.source == LEARNER:
                rebuilt.momentum_lost.add(fragment)
        log.found.versions[fragment] = version
    return rebuilt


def _best(offered: Sequence[RecoverySource], announced: int, digest: str) -> RecoverySource | None:
    """The newest value up to the announced version, preferably with outer state."""
    sound = [
        each
        for each in offered
        if 0 < each.value.version <= announced
        and not (each.value.version == announced and each.digest and digest and each.digest != digest)
    ]
    return max(sound, key=lambda each: (each.value.version, each.source != LEARNER), default=None)


# ------------------------------------------------------------------ collecting values


class Incomplete(Exception):
    """The journal lacks something that the epoch needs; the message says what."""


@dataclass(frozen=True)
class RecoverySources:
    """The sources that the orchestrator found for an epoch whose journal is incomplete."""

    log: Mapping[str, Any]  # what the log's records add up to: groups.encode_replay
    snapshot: int  # the newest complete checkpoint; 0: none
    learners: tuple[Peer, ...]  # that live

    def saved(self, store: Objects) -> dict[int, Value]:
        """The values in the checkpoint, by fragment. Raises Damaged."""
        values = checkpoint_parts.read_values(store, self.snapshot)[1] if self.snapshot else {}
        return {fragment: Value(*value) for fragment, value in values.items()}

    async def held_by_learners(
        self, announced: Sequence[int], journal: Mapping[int, RecoverySource], size: int
    ) -> dict[int, list[RecoverySource]]:
        """For each fragment whose announced version the journal lacks: the newest value that a learner holds.

        `announced`: the newest version of each fragment by the log. A learner holds a newer one if its record is lost.
        `size`: bytes of the largest fragment.
        """
        holders: dict[int, list[tuple[int, Peer]]] = {}
        told = await asyncio.gather(*(_asked(HELD_S, learner, "held_versions") for learner in self.learners))
        for learner, versions in zip(self.learners, told, strict=True):
            for fragment, version in enumerate(versions or ()):
                holders.setdefault(fragment, []).append((version, learner))
        silent = set[Peer]()  # since then: nobody waits for them twice
        found: dict[int, list[RecoverySource]] = {}
        for fragment, version in enumerate(announced):
            newest = max((held for held, _ in holders.get(fragment, [])), default=0)
            if newest <= version and fragment in journal and journal[fragment].value.version == version:
                continue
            for held, learner in sorted(holders.get(fragment, []), key=lambda each: -each[0]):
                if not held or learner in silent:
                    continue
                if (answer := await _asked(longest_s(HELD_S, size), learner, "held", fragment)) is not None:
                    held, theta = answer
                    found[fragment] = [RecoverySource(LEARNER, Value(held, [theta]), codecs.digest(theta))]
                    break
                silent.add(learner)
        return found


async def _asked(deadline_s: float, learner: Peer, method: str, *arguments: Any) -> Any:
    """A learner's answer; None when it is dead, frozen or out of reach: another may hold the same."""
    with contextlib.suppress(NoAnswer, TimeoutError):
        return await asyncio.wait_for(insist(partial(learner.ask, method, *arguments)), deadline_s)
