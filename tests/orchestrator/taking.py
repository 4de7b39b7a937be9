"""A journal and checkpoints of given parameters, in a store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.store import checkpoints
from orchestrator.store.checkpoints import CheckpointManifest, CheckpointPart
from outer.journal import checkpoint_parts
from outer.journal.groups import Logged
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.numeric import codec
from outer.protocol.facts import Committed, Participant
from outer.protocol.fragments import Fragment
from outer.protocol.recovery import Entry


def journal(store: Folder, fragments: int, thetas: Sequence[Any]) -> StoredJournal:
    """One epoch's, in which the first fragments have committed these values, at steps 5, 6, ..."""
    made = StoredJournal(store, "journal", 1, fragments)
    made.open()
    for index, theta in enumerate(thetas):
        one = Participant("learner-a-0", 1, 1, 0, 1, 8, 1.0, "d", 8)
        record = Committed(5 + index, index, 1, 0, (one,), 1, codec.digest(theta), 1.0, 8, 0.1, 0.2, 0.3, "why")
        made.write([Logged(Entry(1 + index, 0, record), index, 1.0, [theta, np.arange(3)])])
    return made


def manifest(snapshot: int, run: str, parts: list[CheckpointPart], **more: Any) -> CheckpointManifest:
    about = {"config_hash": "c", "final": False, "epoch": 1, "syncer_step": 5, "tokens_committed": 8, "omitted": []}
    about |= {"created_at": time.time()} | more
    return CheckpointManifest(snapshot=snapshot, run=run, parts=parts, **about)


def take(
    store: Folder,
    snapshot: int,
    journaled: StoredJournal,
    fragments: Sequence[Fragment],
    initial: Mapping[int, Any] | None = None,
) -> None:
    """A checkpoint of the syncer alone."""
    header, arrays = journaled.cut().part(1, snapshot, tuple(fragments), dict(initial or {}))
    part = CheckpointPart(**checkpoint_parts.write(store, snapshot, checkpoint_parts.SYNCER, header, arrays))
    checkpoints.write(store, manifest(snapshot, journaled.run or "run", [part]))
