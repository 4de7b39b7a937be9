"""What is left when a syncer has lost its journal, and how it is got: the log's records, a checkpoint, learners.

Knows whom to ask; which of the answers is taken is decided in `salvage`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from outer.journal import checkpoint_parts
from outer.journal.journal import Cut, Value
from outer.journal.object_store import Objects
from outer.journal.rebuild import LEARNER, RecoverySource
from outer.numeric import codec as codecs
from outer.protocol.facts import Record

HOLDINGS_S = 10.0  # for a learner to give what it holds of a fragment


class Incomplete(Exception):
    """The journal does not tell all that an epoch needs; the message says what is lacking."""


@dataclass(frozen=True)
class RecoverySources:
    """What else there is to rebuild from."""

    records: tuple[tuple[int, Record], ...]  # by the log, each once: (epoch that said it, record)
    snapshot: int  # the newest checkpoint that is whole; 0: none
    learners: tuple[Any, ...]  # handles of those that live

    def cut(self, store: Objects) -> Cut | None:
        """The syncer's part of the checkpoint. Raises Damaged."""
        if not self.snapshot:
            return None
        header, arrays, _ = checkpoint_parts.read(store, self.snapshot, checkpoint_parts.SYNCER)
        rest = iter(arrays)
        values = {f: Value(version, [next(rest) for _ in range(count)]) for f, version, count in header["values"]}
        return Cut(header["kept"], values)

    def held_by_learners(
        self, announced: Sequence[int], journal: Mapping[int, RecoverySource]
    ) -> dict[int, list[RecoverySource]]:
        """Of each fragment whose newest value the journal has not, the newest that a learner has."""
        newest: dict[int, list[tuple[int, Any]]] = {}
        for learner in self.learners:
            with contextlib.suppress(ray.exceptions.RayError):  # dead, or frozen: others may have it
                for fragment, version in enumerate(ray.get(learner.holdings.remote(), timeout=HOLDINGS_S)):
                    newest.setdefault(fragment, []).append((version, learner))
        found: dict[int, list[RecoverySource]] = {}
        for fragment, version in enumerate(announced):
            if fragment in journal and journal[fragment].value.version == version:
                continue
            for held, learner in sorted(newest.get(fragment, []), key=lambda each: -each[0]):
                if not 0 < held <= version:
                    continue
                with contextlib.suppress(ray.exceptions.RayError):
                    held, theta = ray.get(learner.held.remote(fragment), timeout=HOLDINGS_S)
                    found[fragment] = [RecoverySource(LEARNER, Value(held, [theta]), codecs.digest(theta))]
                    break
        return found
