"""Facts as JSON and in segments: what is written is what is read, small, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event, fact_of
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.segment_codec import Segment, decode, encode
from outer.journal.framing import Damaged, pack, unpack
from outer.protocol.facts import Committed, SpanGranted
from tests.orchestrator.histories import event_of, history
from tests.property_settings import examples

SEGMENT = Segment("syncer", "run", 3, "before", 10, 20, "group", 1000, 0)
WHOLE = st.integers(-(2**63), 2**63 - 1)
DIGESTS = st.sampled_from(["", "x", "0f" * 16, "0F" * 16, "00" * 32, "ff" * 32, "f" * 31])


def values(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Values of this field's type, the extreme ones too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if name == "digest":
        return DIGESTS
    if origin is tuple:
        return st.lists(values("", arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=3), values("", arguments[1]), max_size=2)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values("", each) for each in arguments])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return facts(hint)
    drawn = {int: WHOLE, float: st.floats(), str: st.text(max_size=5), bool: st.booleans(), types.NoneType: st.none()}
    return drawn[hint]


def facts(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    columns = {"progress": st.none() | st.floats(allow_nan=False), "read_at": st.none() | st.integers(0, 2**63 - 1)}
    fields = {each.name: values(each.name, hints[each.name]) for each in dataclasses.fields(kind)}
    return st.builds(kind, **{name: columns.get(name, drawn) for name, drawn in fields.items()})


ENVELOPES = {
    "writer": st.sampled_from(["syncer", "learner-a-0", "x"]),
    "incarnation": st.integers(1, 3),
    "sequence": st.integers(0, 2**62),
    "at": st.integers(-(2**50), 2**52).map(lambda micro: micro / 1e6),
}
COMMON = st.sampled_from([StepFinished, Adopted, Committed, SpanGranted]).flatmap(facts)
ANY = st.sampled_from(sorted(REGISTRY)).flatmap(lambda name: facts(REGISTRY[name]))
EVENTS = st.lists(st.builds(Event, **ENVELOPES, fact=COMMON | ANY), max_size=12)


@examples(60)
@given(EVENTS)
def test_every_fact_survives_a_segment_and_its_line_to_the_bit(events: list[Event]) -> None:
    before, lines = block_of(events, 1000), [event.to_json() for event in events]
    written, sealed = encode(SEGMENT, before)
    segment, after = decode(b"".join(written))
    assert segment == sealed and (after.start, after.rows) == (1000, len(events))
    assert [each.to_json() for each in after.events()] == lines
    assert [event_of(line).to_json() for line in lines] == lines
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert after.names == before.names and after.sources[: len(before.sources)] == before.sources
    for name in ("steps", "adoptions", "commits", "contributions"):
        for one, other in zip(getattr(before, name), getattr(after, name), strict=True):
            assert one.dtype == other.dtype
            assert [repr(each) for each in one.tolist()] == [repr(each) for each in other.tolist()]


def test_what_is_not_finite_comes_back_as_a_number() -> None:
    step = StepFinished(1, 96, 0, 0, math.inf, 0.1, 0.0, "", 0.5, {"a": math.nan, "b": -math.inf})
    (there,) = decode(b"".join(encode(SEGMENT, block_of([Event("a", 1, 0, 1.0, step)], 1000))[0]))[1].events()
    for back in (there, event_of(there.to_json())):
        assert back.fact.loss == math.inf and math.isnan(back.fact.aux["a"]) and back.fact.aux["b"] == -math.inf


@pytest.mark.parametrize(
    ("kind", "good", "name", "wrong"),
    [
        ("StepPassed", {"syncer_step": 3}, "syncer_step", "3"),
        ("StepPassed", {"syncer_step": 3}, "syncer_step", 2**63),
        ("StepPassed", {"syncer_step": 3}, "step", 3),
        ("StepOpened", {"syncer_step": 1, "fragment": None}, "fragment", [1]),
        ("StepOpened", {"syncer_step": 1, "fragment": 2}, "fragment", 2.0),
        ("StepOpened", {"syncer_step": 1, "fragment": 2}, "syncer_step", None),
        ("Evaluated", {"syncer_step": 1, "loss": "nan", "tokens": 8}, "loss", "2.0"),
        ("Evaluated", {"syncer_step": 1, "loss": 2, "tokens": 8}, "tokens", True),
        ("Evaluated", {"syncer_step": 1, "loss": 2.0, "tokens": 8}, "loss", 10**400),
        ("Evaluated", {"syncer_step": 1, "loss": 2.0, "tokens": 8}, "metrics", {"accuracy": "high"}),
        ("NodePreempted", {"node": "n", "learners": ["a"], "remaining_s": None}, "learners", "a"),
        ("NodePreempted", {"node": "n", "learners": ["a"], "remaining_s": 1}, "remaining_s", "soon"),
    ],
)
def test_a_value_that_is_not_of_its_fields_type_is_refused(
    kind: str, good: dict[str, Any], name: str, wrong: Any
) -> None:
    assert type(fact_of(kind, good)) is REGISTRY[kind]
    with pytest.raises((TypeError, KeyError, OverflowError)):
        fact_of(kind, good | {name: wrong})


def test_what_is_sealed_but_is_no_segment_is_named() -> None:
    header, arrays, _ = unpack(b"".join(encode(SEGMENT, block_of(history()[:50], 1000))[0]))
    for wrong, message in (
        ({"format": 3}, "format 3"),
        ({"sources": []}, "not valid"),
        ({"packed": []}, "not valid"),
    ):
        content = b"".join(pack(header | wrong, arrays)[0])
        with pytest.raises(Damaged, match=message):
            decode(content)
    with pytest.raises(Damaged, match="not valid"):
        decode(b"".join(pack(header, [np.zeros(9, np.uint8)] * len(arrays))[0]))


def test_a_step_with_its_adoption_takes_at_most_twenty_bytes() -> None:
    """Random losses and durations, so that nothing but their order can be compressed."""
    draw, learners, steps = np.random.default_rng(5), 4, 1500
    events: list[Event] = []
    clocks = draw.random(learners)
    for step in range(1, steps + 1):
        for learner in range(learners):
            clocks[learner] += 1.0 + 0.01 * draw.standard_normal()
            loss, seconds, at = float(np.float32(draw.random())), float(draw.random()), round(float(clocks[learner]), 6)
            done = StepFinished(step, 8192, step // 16, 8 * (4 * step + learner), loss, seconds, 0.0, "", step / steps)
            events.append(Event(f"learner-{learner}", 1, 2 * step, at, done))
            events.append(Event(f"learner-{learner}", 1, 2 * step + 1, at, Adopted(step % 8, step - 1, step, "rebase")))
    assert sum(map(len, encode(SEGMENT, block_of(events, 1000))[0])) < 20 * learners * steps
