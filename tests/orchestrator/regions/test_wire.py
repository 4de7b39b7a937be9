"""What regions may send each other, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from learners.link import Version
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.regions import wire
from orchestrator.regions.wire import Unsendable, packed, unpacked
from outer.bulk import AtShard
from outer.protocol.messages import STEPPING, Contribution, FragmentCounters, Report, State


class Named:
    """A process."""

    def __init__(self, *name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]

    async def ask(self, method: str, *arguments: Any) -> Any: ...

    def tell(self, method: str, *arguments: Any) -> None: ...


def name_of(peer: Any) -> Any:
    return peer.name


def sent(value: Any) -> Any:
    arrays: list[Any] = []
    told = json.loads(json.dumps(packed(value, arrays, name_of), allow_nan=False))
    return unpacked(told, arrays, lambda name: Named(*name))


COUNTERS = FragmentCounters(None, 0, 3, 30)
STEP = StepFinished(step=1, tokens=5, span=0, position=0, loss=float("nan"), seconds=0.5, waited_s=0.0, waited_for="")
VALUES = [
    None, True, 7, 0.5, float("-inf"), "text", [1, (2, [3])], {"a": (1,), 2: None},
    Report("a", 1, None, 1, STEPPING, 5.0, 1, 0.1, 10, 0, (COUNTERS,), aux={"x": 1.0}),
    (3, "digest", [1, 2], 0), AtShard(Named("eu", "shard.1.0"), 4),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    assert sent(value) == value and type(sent(value)) is type(value)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
def test_arrays_keep_their_dtype_and_shape(dtype: Any) -> None:
    theta = np.arange(6).reshape(2, 3).astype(dtype)
    for value in (Version(1, "d", theta, 0), State("a", 1, 2, 3, [theta], "d", theta.nbytes)):
        came = sent(value)
        array = came.theta if isinstance(came, Version) else came.payload[0]
        assert array.dtype == theta.dtype and np.array_equal(array, theta)


def test_a_fact_keeps_what_is_not_finite() -> None:
    assert repr(sent([(0, 1.5, STEP)])) == repr([(0, 1.5, STEP)])


def test_what_is_in_no_table_is_not_sent() -> None:
    for value in (object(), {1: {2}}, Exception("x"), print):
        with pytest.raises(Unsendable, match="nothing that regions send"):
            sent(value)


ANSWER = packed(Contribution("a", 1, 1, 1, 0, 1, 3, 30, COUNTERS, None, ""), [], name_of)


@pytest.mark.parametrize(
    "forged",
    [
        {"c": "Popen", "v": []},
        {"c": "Grant", "v": [1, 2]},
        {**ANSWER, "v": [7, *ANSWER["v"][1:]]},
        {"a": 3, "kind": "float32"},
        {"a": 0, "kind": "object"},
        {"p": ["eu", 3]},
        {"f": "much"},
        {"x": 1},
    ],
    ids=str,
)
def test_what_no_region_sends_is_refused(forged: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
        unpacked(forged, [np.zeros(2, np.float32)], lambda name: Named(*name))


def test_every_fact_of_the_log_can_be_sent() -> None:
    assert set(REGISTRY) <= set(wire._TABLE)
