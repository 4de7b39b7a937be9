"""Facts as JSON and in the files of tables: what is written is what is read, and it is small; half-made files go."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog import compactor, tables
from orchestrator.eventlog.compactor import Compactor, Segment, create, manifest, part_of, segment_in, segment_key
from orchestrator.eventlog.events import Event, fact_of
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.eventlog.reader import LogReader
from orchestrator.eventlog.tables import LogPart
from outer.journal import journal as journals
from outer.journal.chain import Segmented
from outer.journal.framing import Damaged
from outer.journal.journal import StaleEpoch
from outer.protocol.facts import Committed, FactsLost, SpanGranted
from tests.orchestrator.eventlog.logs import Memory, chunks, journal, of_syncer, write
from tests.orchestrator.histories import event_of, history
from tests.property_settings import examples

SEGMENT = Segment("syncer", "run", 3, "before", 10, 20, "group", 1000, 0)
WHOLE = st.integers(-(2**63), 2**63 - 1)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of this field's type, the extreme ones too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=3), values(arguments[1]), max_size=2)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values(each) for each in arguments])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return facts(hint)
    drawn = {int: WHOLE, float: st.floats(), str: st.text(max_size=5), bool: st.booleans(), types.NoneType: st.none()}
    return drawn[hint]


def facts(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{each.name: values(hints[each.name]) for each in dataclasses.fields(kind)})


ENVELOPES = {
    "writer": st.sampled_from(["syncer", "learner-a-0", "x"]),
    "incarnation": st.integers(1, 3),
    "sequence": st.integers(0, 2**62),
    "at": st.integers(-(2**50), 2**52).map(lambda micro: micro / 1e6),
}
COMMON = st.sampled_from([StepFinished, Adopted, Committed, SpanGranted]).flatmap(facts)
ANY = st.sampled_from(sorted(REGISTRY)).flatmap(lambda name: facts(REGISTRY[name]))
EVENTS = st.lists(st.builds(Event, **ENVELOPES, fact=COMMON | ANY), max_size=12)


def read_back(part: LogPart) -> LogPart:
    """The part as its files say."""
    files = {name: tables.read(name, tables.write(name, table)) for name, table in part.tables.items()}
    return dataclasses.replace(part, tables=files)


@examples(60)
@given(EVENTS)
def test_every_fact_survives_a_file_and_its_line_to_the_bit(events: list[Event]) -> None:
    part, lines = tables.part_of(events, 1000), [event.to_json() for event in events]
    assert (part.start, part.rows) == (1000, len(events))
    for each in (part, read_back(part)):
        assert [event.to_json() for event in each.events()] == lines
    assert [event_of(line).to_json() for line in lines] == lines
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_what_is_not_finite_comes_back_as_a_number() -> None:
    step = StepFinished(1, 96, 0, 0, math.inf, 0.1, 0.0, "", 0.5, {"a": math.nan, "b": -math.inf})
    (there,) = read_back(tables.part_of([Event("a", 1, 0, 1.0, step)])).events()
    for back in (there, event_of(there.to_json())):
        assert back.fact.loss == math.inf and math.isnan(back.fact.aux["a"]) and back.fact.aux["b"] == -math.inf


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    told = FactsLost("\ud800", 1, 2, 4, "gone"), Adopted(0, 1, 2, "x")
    lost, adopted = read_back(tables.part_of([Event("\ud800", 1, 0, 1.0, fact) for fact in told])).events()
    assert (lost.fact.writer, adopted.writer) == ("?", "?")


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


def test_what_is_sealed_but_is_no_segment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    made = create(store, SEGMENT, tables.part_of(history()[:50], 1000))
    content = store.objects[segment_key("syncer", 3)]
    assert segment_in(content) == made and manifest(made) == (content, made.seal)
    assert [*part_of(store, made).events()] == history()[:50]
    for wrong in (content[1:], content + b" ", content.replace(b"1000", b"1001"), b"", b"[]"):
        with pytest.raises(Damaged, match="checksum does not match"):
            segment_in(wrong)
    with monkeypatch.context() as patched:
        patched.setattr(compactor, "FORMAT", 4)
        with pytest.raises(Damaged, match="format 3"):
            segment_in(content)
    elsewhere = dataclasses.replace(made.files[0], name="../../somebody")
    for change in ({"writers": ("a",)}, {"row": "1"}, {"files": (elsewhere,)}):
        with pytest.raises(Damaged, match="no manifest"):
            segment_in(manifest(dataclasses.replace(made, **change))[0])
    (steps,) = [file for file in made.files if file.table == "steps"]
    for table, message in (("adoptions", "holds no adoptions"), ("strangers", "holds no strangers")):
        with pytest.raises(Damaged, match=message):
            part_of(store, dataclasses.replace(made, files=(dataclasses.replace(steps, table=table),)))
    store.remove(steps.name)
    with pytest.raises(Damaged, match="missing"):
        part_of(store, made)


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
    part = tables.part_of(events)
    assert sum(len(tables.write(name, table)) for name, table in part.tables.items()) < 20 * learners * steps


class Dying(Memory):
    """Takes so many objects under log/ and then no more."""

    left = 1 << 30

    def create(self, name: str, parts: Any) -> None:
        self.left -= name.startswith("log/")
        if self.left < 0:
            raise OSError("the process died")
        super().create(name, parts)


def files_of(store: Memory) -> set[str]:
    return {name for name in store.objects if name.endswith(".parquet")}


@pytest.mark.parametrize("taken", range(7))
def test_a_compaction_that_dies_loses_nothing_and_what_it_left_goes(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of its objects; the next epoch has more facts, so its files are others."""
    monkeypatch.setattr(journals, "SNAPSHOT_GROUPS", 2)
    events, store = of_syncer(history()), Dying()
    first, *rest = chunks(events, len(events) // 2)
    chain = journal(store)
    write(chain, first)
    store.left = taken
    with contextlib.suppress(OSError):
        chain.finish()
    left = files_of(store)
    assert len(left) == min(taken, 5)
    assert [event for part in LogReader(tmp_path, store).rest() for event in part.events()] == first
    store.left = 1 << 30
    chain = journal(store, 2)
    for some in rest:
        write(chain, some)
    chain.finish()
    chain.remove(chain.compact())
    read = LogReader(tmp_path, store)
    assert [event for part in read.rest() for event in part.events()] == events and read.findings.damage == []
    segments = [segment_in(store.read(name)) for name in store.names("log/syncer/segments")]
    assert files_of(store) == {file.name for segment in segments for file in segment.files}
    assert taken in (0, 6) or not left <= files_of(store)


def test_of_two_compactions_the_first_manifest_counts_and_the_others_files_go() -> None:
    store, events = Memory(), history()
    fewer, more = tables.part_of(events[:50], 1000), tables.part_of(events[:60], 1000)
    made = create(store, SEGMENT, fewer)
    before = files_of(store)
    assert create(store, dataclasses.replace(SEGMENT, last=21), more) == made == create(store, SEGMENT, fewer)
    store.objects |= dict.fromkeys(before, b"damaged")
    assert create(store, SEGMENT, fewer) == made and [*part_of(store, made).events()] == history()[:50]
    with pytest.raises(StaleEpoch):
        create(store, dataclasses.replace(SEGMENT, last=19), more)
    assert files_of(store) == before
    with pytest.raises(ValueError, match="another log"):
        create(store, dataclasses.replace(SEGMENT, run="other"), fewer)


def test_what_is_left_between_a_manifest_and_the_sweep_goes_when_the_log_is_opened_again() -> None:
    store = Memory()
    made = create(store, dataclasses.replace(SEGMENT, number=0, before=""), tables.part_of(history()[:50], 1000))
    store.create("log/syncer/steps/000000000-0123456789abcdef.parquet", [b"left"])
    assert Compactor(store, "syncer").newest(Segmented()) == compactor.segmented(made)
    assert files_of(store) == {file.name for file in made.files}
