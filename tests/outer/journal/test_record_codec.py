"""What is kept of a journal's records is all that another epoch needs of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outer.journal import groups
from outer.protocol.events_effects import StopRequested
from outer.protocol.facts import Finished
from outer.protocol.messages import Grant
from outer.protocol.recovery import Entry, JournalReplay
from tests.property_settings import examples
from tests.transcripts.syncer_world import PATIENT, bench

FRAGMENTS = 3
MOVES = st.tuples(st.sampled_from(["lend", "commit", "die", "epoch"]), st.sampled_from(["a", "b", "ab"]))


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """What a syncer has journaled of two learners that are lent samples, step, are merged and die; of a few epochs."""
    return journaled(draw(st.lists(MOVES, max_size=25)), draw(st.booleans()))


def journaled(moves: list[tuple[str, str]], ends: bool = False) -> list[Entry]:
    made = bench("a", "b", quorum=1, sync={"P": FRAGMENTS, "H": FRAGMENTS, "tau": 1})
    for move, names in moves:
        match move:
            case "lend":
                for name in names:
                    made.do(made.peers[name].report(wants_span=True))
                    made.peers[name].newest_span = made.sent(Grant, name)[-1].span
            case "commit":
                made.commit(*names)
                made.adopt("a", "b")
            case "die":
                made.join(*names, **PATIENT)
            case "epoch":
                made.crash()
    if ends:
        made.do(StopRequested("enough"))
    return made.journal


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


LENT_AND_COMMITTED = journaled([("lend", "a"), ("commit", "a")])


def test_what_was_kept_shares_nothing_with_what_goes_on() -> None:
    plain = kept_of_one()
    before = json.dumps(plain)
    groups.decode_replay(plain).apply(LENT_AND_COMMITTED[1])
    assert json.dumps(plain) == before


def kept_of_one() -> dict[str, Any]:
    replay = JournalReplay.empty(FRAGMENTS)
    replay.apply(LENT_AND_COMMITTED[0])
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
