"""What a syncer can recover from besides its journal: the log, a checkpoint, and the learners.

Collects the candidates; outer/journal/rebuild.py chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outer.journal import checkpoint_parts
from outer.journal.groups import Cut, Value
from outer.journal.object_store import Objects
from outer.journal.rebuild import LEARNER, RecoverySource
from outer.numeric import codec as codecs

# (learner's handle, method, arguments) -> its answer; None when it does not answer in time.
Ask = Callable[..., Any]


class Incomplete(Exception):
    """The journal lacks something that the epoch needs; the message says what."""


@dataclass(frozen=True)
class RecoverySources:
    """What the orchestrator found for an epoch whose journal is incomplete."""

    log: Mapping[str, Any]  # what the log's records add up to: record_codec.encode_replay
    snapshot: int  # the newest complete checkpoint; 0: none
    learners: tuple[Any, ...]  # handles of the living learners

    def cut(self, store: Objects) -> Cut | None:
        """The syncer's part of the checkpoint. Raises Damaged."""
        if not self.snapshot:
            return None
        header, values, _ = checkpoint_parts.read_values(store, self.snapshot)
        return Cut(header["kept"], {fragment: Value(*value) for fragment, value in values.items()})

    def held_by_learners(
        self, announced: Sequence[int], journal: Mapping[int, RecoverySource], ask: Ask
    ) -> dict[int, list[RecoverySource]]:
        """For each fragment whose announced version the journal lacks: the newest value that a learner holds.

        `announced`: the newest version of each fragment by the log. A learner holds a newer one if its record is lost.
        """
        holders: dict[int, list[tuple[int, Any]]] = {}
        for learner in self.learners:
            for fragment, version in enumerate(ask(learner, "held_versions") or ()):
                holders.setdefault(fragment, []).append((version, learner))
        found: dict[int, list[RecoverySource]] = {}
        for fragment, version in enumerate(announced):
            newest = max((held for held, _ in holders.get(fragment, [])), default=0)
            if newest <= version and fragment in journal and journal[fragment].value.version == version:
                continue
            for held, learner in sorted(holders.get(fragment, []), key=lambda each: -each[0]):
                if held and (answer := ask(learner, "held", fragment)) is not None:
                    held, theta = answer
                    found[fragment] = [RecoverySource(LEARNER, Value(held, [theta]), codecs.digest(theta))]
                    break
        return found
