"""What is kept of a journal's records is all that another epoch needs of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.journal import groups
from outer.protocol.facts import Committed, Finished, Participant, Record, SpanGranted, SpanReturned
from outer.protocol.recovery import Entry, JournalReplay
from tests.property_settings import examples

FRAGMENTS, STEP_SAMPLES = 3, 4
LEARNERS = ("a", "b")


class World:
    """Learners that are lent samples, step, are merged, die: records as a syncer would write them."""

    def __init__(self) -> None:
        self.records: list[tuple[int, Record]] = []  # (epoch, record)
        self.epoch = 1
        self.step = self.span = self.tokens = 0
        self.lent: dict[str, list[SpanGranted]] = {name: [] for name in LEARNERS}
        self.incarnation = dict.fromkeys(LEARNERS, 1)
        self.merged: dict[str, int] = dict.fromkeys(LEARNERS, 0)  # steps of this incarnation

    def say(self, record: Record) -> None:
        self.records.append((self.epoch, record))

    def grant(self, name: str) -> None:
        batches = 3
        start = self.span * batches * STEP_SAMPLES
        granted = SpanGranted(
            name, self.incarnation[name], self.span, start, start + batches * STEP_SAMPLES, STEP_SAMPLES
        )
        self.span += 1
        self.lent[name].append(granted)
        self.say(granted)

    def commit(self, names: tuple[str, ...], fragment: int, steps: int) -> None:
        able = [name for name in names if self.merged[name] + steps <= 3 * len(self.lent[name])]
        if not able:
            return
        base, self.step = self.step, self.step + 1
        ones = []
        for name in able:
            begin, end = self.merged[name], self.merged[name] + steps
            self.merged[name] = end
            one = Participant(name, self.incarnation[name], end, begin, steps, 8 * steps, 1 / len(able), "d", 8 * end)
            ones.append(one)
            self.tokens += one.tokens
        record = Committed(
            self.step, fragment, self.epoch, base, tuple(ones), 2, "d", 0.1, self.tokens, 0.2, 0.0, 1.0, "r"
        )
        self.say(record)

    def die(self, name: str) -> None:
        for span in self.lent[name]:
            start = max(span.start, self._consumed(name))
            if start < span.stop:
                self.say(SpanReturned(name, self.incarnation[name], span.span, start, span.stop))
        self.lent[name], self.merged[name] = [], 0
        self.incarnation[name] += 1

    def _consumed(self, name: str) -> int:
        """First sample of it that no commit covers, where spans of it are one behind the other."""
        left = self.merged[name] * STEP_SAMPLES
        for span in self.lent[name]:
            if left < span.stop - span.start:
                return span.start + left
            left -= span.stop - span.start
        return 10**9


EVENTS = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(LEARNERS)),
    st.tuples(
        st.just("commit"),
        st.sampled_from([("a",), ("b",), LEARNERS]),
        st.integers(0, FRAGMENTS - 1),
        st.integers(1, 3),
    ),
    st.tuples(st.just("die"), st.sampled_from(LEARNERS)),
    st.tuples(st.just("epoch")),
    st.tuples(st.just("finish")),
)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Of a few epochs."""
    world = World()
    for kind, *rest in draw(st.lists(EVENTS, max_size=40)):
        match kind:
            case "epoch":
                world.epoch += 1
            case "finish":
                world.say(Finished(world.step, world.tokens, "enough"))
            case _:
                getattr(world, kind)(*rest)
    found: list[Entry] = []
    for epoch, record in world.records:
        before = found[-1] if found and found[-1].epoch == epoch else None
        sequence = 0 if before is None else before.sequence + 1
        found.append(Entry(epoch, sequence, record))
    return found


def state(replay: JournalReplay) -> Any:
    """Everything that a replay holds; spans and coverage have no equality of their own."""
    found = replay.found
    covered = {key: value.intervals for key, value in found.coverage.items() if value.intervals}
    plain = replace(found, spans=None, coverage=covered)  # type: ignore[arg-type]
    return replay.epoch, replay.due, found.spans.state(), plain


@examples(80)
@given(entries(), st.integers(0, 60))
def test_what_is_kept_goes_on_as_if_nothing_had_been(given_: list[Entry], cut: int) -> None:
    straight, kept = JournalReplay.empty(FRAGMENTS), JournalReplay.empty(FRAGMENTS)
    for entry in given_[:cut]:
        kept.apply(entry)
    text = json.dumps(groups.encode_replay(kept), allow_nan=False)
    kept = groups.decode_replay(json.loads(text))
    assert json.dumps(groups.encode_replay(kept), allow_nan=False) == text
    for entry in given_:
        straight.apply(entry)
    for entry in given_[cut:]:
        kept.apply(entry)
    assert state(kept) == state(straight)


@examples(40)
@given(entries())
def test_records_come_back_from_a_groups_plain_values(given_: list[Entry]) -> None:
    header = groups.encode([groups.Logged(entry, number, 0.0, []) for number, entry in enumerate(given_)])
    assert groups.Group(0, json.loads(json.dumps(header)), [], "").entries() == given_


def test_what_was_kept_shares_nothing_with_what_goes_on() -> None:
    replay = JournalReplay.empty(FRAGMENTS)
    replay.apply(Entry(1, 0, SpanGranted("a", 1, 0, 0, 12, STEP_SAMPLES)))
    plain = groups.encode_replay(replay)
    before = json.dumps(plain)
    again = groups.decode_replay(plain)
    world = World()
    world.grant("a")
    world.commit(("a",), 1, 2)
    again.apply(Entry(1, 1, world.records[1][1]))
    assert json.dumps(plain) == before


def kept_of_one() -> dict[str, Any]:
    replay = JournalReplay.empty(FRAGMENTS)
    replay.apply(Entry(1, 0, SpanGranted("a", 1, 0, 0, 12, STEP_SAMPLES)))
    return groups.encode_replay(replay)


@pytest.mark.parametrize("key", sorted(kept_of_one()))
@pytest.mark.parametrize("change", ["left out", "of another kind"])
def test_what_was_not_kept_by_us_is_an_error(key: str, change: str) -> None:
    plain = kept_of_one()
    if change == "left out":
        del plain[key]
    else:
        plain[key] = {"some": "thing"} if not isinstance(plain[key], dict) else [object()]
    with pytest.raises((ValueError, KeyError, TypeError)):
        groups.decode_replay(plain)


def test_a_record_of_an_unknown_kind_is_an_error() -> None:
    plain = {"epoch": 1, "sequence": 0, "kind": "Finished", "record": asdict(Finished(1, 2, "why"))}
    for change in ({"kind": "Nonsense"}, {"record": {}}, {"record": None}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            groups.decode_entry(plain | change)
