"""Records of a journal that several tests write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outer.protocol.facts import Committed, Participant


def committed(step: int, fragment: int, epoch: int = 1, **change: Any) -> Committed:
    """Syncer step `step` takes learner a's step of that number, of 8 tokens, into a fragment."""
    one = Participant("a", 1, step, step - 1, 1, 8, 1.0, "d", 8 * step)
    record = Committed(step, fragment, epoch, 0, (one,), 1, "d", 1.0, 8 * step, 0.1, 0.2, 0.3, "why")
    return replace(record, **change)
