"""The state of folds comes back as it was, and nothing else than registered classes does."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.eventlog import log_writer  # noqa: F401  registers events
from orchestrator.eventlog.events import Event
from outer.journal import saving
from outer.journal.framing import pack, unpack
from outer.journal.saving import dump, load, saved, saved_as
from outer.protocol.facts import LearnerAttached


@saved
class Windows:
    def __init__(self) -> None:
        self.steps: deque[int] = deque(maxlen=3)
        self._sum = np.zeros(2)


@saved
class Fold:
    def __init__(self, windows: Windows) -> None:
        self.windows, self.count = windows, 0

    def take(self, step: int) -> None:
        self.windows.steps.append(step)
        self.count += 1


@saved
@dataclass
class Ring:
    other: Ring | None = None
    seen: set[tuple[int, str]] = field(default_factory=set)


@saved
class Place(NamedTuple):
    epoch: int
    position: int


@saved
@dataclass(frozen=True)
class Limits:
    steps: int
    margin: float

    @cached_property
    def both(self) -> float:
        return self.steps * self.margin


@dataclass
class Passing:
    count: int
    rows: list[int] | None  # of the newest block


saved(Passing, rows=None)


class Stranger:
    pass


@saved
class Stage(Enum):
    OPEN = "open"


class Held:
    def __init__(self, value: Any) -> None:
        self.lock, self.value = threading.Lock(), value


saved_as(Held, lambda held: held.value, Held)


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
KEYS = st.one_of(PLAIN, st.tuples(PLAIN, PLAIN), st.frozensets(st.integers()), st.builds(Place, st.integers(), PLAIN))
STATE = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.lists(inner).map(deque),
        st.dictionaries(KEYS, inner),
        st.dictionaries(KEYS, inner).map(lambda items: defaultdict(list, items)),
        st.sets(KEYS),
        st.builds(Limits, st.integers(), st.floats(allow_nan=False)),
    ),
)


def types(value: Any) -> Any:
    """The types of a state's parts; 1, 1.0 and True are equal, but not the same."""
    if isinstance(value, dict):
        return type(value), [(types(key), types(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return type(value), [*map(types, value)]
    return type(value)


@given(STATE)
def test_any_state_comes_back(state: Any) -> None:
    again = load(dump(state))
    assert again == state
    assert types(again) == types(state)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_a_saved_fold_goes_on_as_the_unsaved_one(before: list[int], after: list[int]) -> None:
    fold = Fold(Windows())
    for step in before:
        fold.take(step)
    again = load(dump(fold))
    for step in after:
        fold.take(step)
        again.take(step)
    assert (again.count, again.windows.steps) == (fold.count, fold.windows.steps)
    assert again.windows.steps.maxlen == 3


def test_what_folds_share_they_share_again() -> None:
    windows = Windows()
    one, other = load(dump([Fold(windows), Fold(windows)]))
    assert one.windows is other.windows is not windows


def test_things_may_refer_to_each_other() -> None:
    ring = Ring()
    ring.other = Ring(ring, {(1, "a")})
    again = load(dump(ring))
    assert again.other.other is again
    assert again.other.seen == {(1, "a")}


@pytest.mark.parametrize("dtype", ["?", "<i8", "<i4", "u1", "<f8", "<f4"])
def test_arrays_keep_type_shape_and_bits_and_can_be_changed(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    again = load(dump({"array": array}))["array"]
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    again[0, 0] = 1


def test_an_array_of_objects_and_scalars() -> None:
    array = np.array([None, "a", (1, 2.5)], object)
    words, number = load(dump((array, np.float32(0.1))))
    assert words.tolist() == array.tolist()
    assert (type(number), number) == (np.float32, np.float32(0.1))


def test_numbers_that_json_does_not_have() -> None:
    nan, up, down, large = load(dump([math.nan, math.inf, -math.inf, 2**100]))
    assert math.isnan(nan)
    assert (up, down, large) == (math.inf, -math.inf, 2**100)


def test_facts_and_counts() -> None:
    state = {"event": Event("a", 1, 0, 2.5, LearnerAttached("a", 1, 4)), "counts": Counter("aab")}
    assert load(dump(state)) == state
    assert type(load(dump(state))["counts"]) is Counter


def test_a_value_that_was_used_is_saved_without_what_it_derived() -> None:
    limits = Limits(3, 0.5)
    assert limits.both == 1.5
    assert load(dump(limits)).both == 1.5


def test_what_is_about_the_newest_block_only_is_left_out() -> None:
    assert load(dump(Passing(3, [1, 2]))) == Passing(3, None)


def test_what_is_kept_is_the_loading_programs_own() -> None:
    ours, theirs = Stranger(), Stranger()
    state = dump({"held": [ours, 1]}, {"the stranger": ours})
    assert load(state, {"the stranger": theirs})["held"][0] is theirs
    with pytest.raises(ValueError, match="cannot be read"):
        load(state)


def test_an_enum_and_what_is_made_again() -> None:
    stage, held = load(dump((Stage.OPEN, Held(np.arange(3)))))
    assert stage is Stage.OPEN
    assert held.value.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "state",
    [Stranger(), [lambda: 1], {"a": Stranger()}, defaultdict(lambda: 1), np.array(["a"]), {1: object()}, b"raw"],
)
def test_what_is_not_state_is_refused_by_its_place(state: Any) -> None:
    with pytest.raises(TypeError, match="cannot be saved"):
        dump(state)


def test_an_attribute_from_elsewhere_is_refused() -> None:
    fold = Fold(Windows())
    fold.windows.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Fold.windows: Windows.extra"):
        dump(fold)


def altered(data: bytes, **change: Any) -> bytes:
    header, arrays, _ = unpack(data)
    return b"".join(pack({**header, **change}, arrays)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"classes": [["os.system", []]]}, "os.system"),
        ({"classes": [["builtins.list", []]]}, "builtins.list"),
        ({"objects": [["call", 1]]}, "'call'"),
        ({"root": ["at", 7]}, "cannot be read"),
        ({"root": ["call", 7]}, "'call'"),
        ({"objects": [[]]}, "cannot be read"),
    ],
)
def test_bytes_that_say_something_else_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(altered(dump([1]), **change))


def test_a_class_that_has_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump(Place(1, 2))
    name = f"{__name__}.Place"
    for names in (["epoch"], ["epoch", "position", "at"]):
        with pytest.raises(ValueError, match="this program's epoch, position"):
            load(altered(data, classes=[[name, names]]))
    monkeypatch.delitem(saving._CLASSES, name)
    with pytest.raises(ValueError, match="does not know"):
        load(data)


def test_damage_is_refused() -> None:
    data = dump([1, 2, 3])
    with pytest.raises(ValueError, match="checksum"):
        load(data[:40] + b"x" + data[41:])
    assert json.loads(json.dumps(load(data))) == [1, 2, 3]
