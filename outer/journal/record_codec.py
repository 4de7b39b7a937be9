"""Encodes journal entries, and the state that they add up to, as plain JSON values, and decodes them.

The encoded state is a snapshot: with it the journal can remove old groups.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from outer.protocol.coverage import Coverage, Mark
from outer.protocol.facts import Committed, Finished, LinkCarried, Record, SpanGranted, SpanReturned
from outer.protocol.recovery import Entry, JournalReplay, Recovered
from outer.protocol.sample_spans import Borrowed, SpanPool

KINDS: dict[str, type[Record]] = {
    kind.__name__: kind for kind in (Committed, SpanGranted, SpanReturned, LinkCarried, Finished)
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}


def decode_entry(plain: dict[str, Any]) -> Entry:
    """Decode an entry. Raises ValueError (pydantic's is one), KeyError or TypeError for anything else."""
    record = _ADAPTERS[plain["kind"]].validate_python(plain["record"])
    return Entry(int(plain["epoch"]), int(plain["sequence"]), record)


@dataclass(frozen=True)
class _Incarnation:
    """The saved state of one incarnation."""

    learner: str
    number: int
    batch_size: int | None
    merged_step: dict[int, int]
    covered: list[tuple[int, int, int, int]]  # (from step, its tokens, to step, its tokens)


@dataclass(frozen=True)
class SavedState:
    """The state of a JournalReplay."""

    epoch: int
    due: int
    versions: list[int]
    digests: list[str]
    tokens_committed: int
    finished: dict[str, Any] | None
    newest: dict[str, int]
    incarnations: list[_Incarnation]
    next_sample: int
    next_span: int
    returned: list[tuple[int, int]]
    borrowed: list[Borrowed]
    carried: dict[str, dict[int, int]]


_STATE = TypeAdapter(SavedState)


def encode_replay(replay: JournalReplay) -> dict[str, Any]:
    """The state of a replay as JSON values."""
    found = replay.found
    keys = sorted(found.batch_sizes.keys() | found.merged_step.keys() | found.coverage.keys())
    each = [
        _Incarnation(
            *key,
            found.batch_sizes.get(key),
            found.merged_step.get(key, {}),
            [(*begin, *end) for begin, end in found.coverage[key].intervals] if key in found.coverage else [],
        )
        for key in keys
    ]
    state = SavedState(
        replay.epoch,
        replay.due,
        found.versions,
        found.digests,
        found.tokens_committed,
        None if found.finished is None else asdict(found.finished),
        found.incarnations,
        each,
        *found.spans.state(),
        found.carried,
    )
    return dict(_STATE.dump_python(state, mode="json"))


def decode_replay(values: dict[str, Any]) -> JournalReplay:
    """Decode a replay. Raises ValueError (pydantic's is one), KeyError or TypeError for anything else."""
    state = _STATE.validate_python(values)
    found = Recovered(
        list(state.versions),
        list(state.digests),
        state.tokens_committed,
        SpanPool.of(state.next_sample, state.next_span, state.returned, state.borrowed),
        incarnations=dict(state.newest),
        finished=None if state.finished is None else Finished(**state.finished),
        carried={learner: dict(quarters) for learner, quarters in state.carried.items()},
    )
    for each in state.incarnations:
        key = (each.learner, each.number)
        if each.batch_size is not None:
            found.batch_sizes[key] = each.batch_size
        if each.merged_step:
            found.merged_step[key] = dict(each.merged_step)
        if each.covered:
            coverage = found.coverage[key] = Coverage()
            for begin, begin_tokens, end, end_tokens in each.covered:
                coverage.add(Mark(begin, begin_tokens), Mark(end, end_tokens))
    return JournalReplay(found, state.epoch, state.due)
