"""An event: one record of the log, a fact in its envelope, and its line of JSON; and facts from JSON values, each field
checked against its declared type: tuples, dicts, unions and dataclasses of integers, floats, booleans and text.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from orchestrator.eventlog.facts import REGISTRY


@dataclass(frozen=True)
class Unknown:
    """A fact of a kind that this version does not know: a newer one wrote it. It is kept as it is."""

    kind: str
    fields: dict[str, Any]


def kind_of(fact: Any) -> str:
    return fact.kind if type(fact) is Unknown else type(fact).__name__


def fact_of(kind: str, record: dict[str, Any]) -> Any:
    """A fact from its fields as in JSON. Raises as `build`."""
    known = REGISTRY.get(kind)
    return Unknown(kind, record) if known is None else build(known, record)


@dataclass(frozen=True)
class Event:
    """An immutable log record: writer, incarnation (the epoch, for the syncer), per-writer sequence number, wall-clock
    time of that process in Unix seconds, and fact. Times are for durations only; nothing is decided by them.
    """

    writer: str  # syncer | orchestrator | chaos | a learner's name
    incarnation: int
    sequence: int  # from 0, without gaps, per (writer, incarnation)
    at: float
    fact: Any

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.writer, self.incarnation, self.sequence)

    def to_json(self) -> str:
        """One line of strict JSON: a number that is not finite is written as a string, its name."""
        record = {
            "writer": self.writer,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "at": round(self.at, 6),
            "kind": kind_of(self.fact),
            "fact": self.fields,  # apart: a fact has fields of the envelope's names
        }
        return json.dumps(record, separators=(",", ":"), allow_nan=False)

    @property
    def fields(self) -> dict[str, Any]:
        """The fact's fields as in JSON."""
        if type(self.fact) is Unknown:
            return self.fact.fields
        fields: dict[str, Any] = finite(asdict(self.fact))
        return fields


def finite(value: Any) -> Any:
    """The value for strict JSON: numbers that are not finite become `nan`, `inf`, `-inf`."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


# ------------------------------------------------------------------ facts from JSON values

Reader = Callable[[Any], Any]  # raises TypeError or OverflowError for a value of another type
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
_INT_MAX = 2**63  # excluded: the largest that NumPy holds
_SHAPES: dict[type[Any], dict[str, Reader]] = {}


def _shape(kind: type[Any]) -> dict[str, Reader]:
    if kind not in _SHAPES:
        hints = typing.get_type_hints(kind)
        _SHAPES[kind] = {each.name: reader(hints[each.name]) for each in fields(kind)}
    return _SHAPES[kind]


def build(kind: type[Any], record: dict[str, Any]) -> Any:
    """An instance from its fields. Raises TypeError, AttributeError, KeyError or OverflowError where they misfit."""
    shape = _shape(kind)
    if unknown := record.keys() - shape.keys():
        raise KeyError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")
    return kind(**{name: shape[name](value) for name, value in record.items()})


@cache
def reader(hint: Any) -> Reader:
    """The function that reads values of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        item = reader(arguments[0])
        return lambda value: tuple([item(each) for each in _only(list, value)])
    if origin is dict:
        item = reader(arguments[1])
        return lambda value: {name: item(each) for name, each in _only(dict, value).items()}
    if origin in (types.UnionType, typing.Union):
        arms = [reader(each) for each in arguments]
        return lambda value: _first_of(arms, value)
    if is_dataclass(hint):
        return lambda value: build(typing.cast(type[Any], hint), value)
    if hint is float:
        return _float
    if hint is int:
        return _int
    assert hint in (str, bool, types.NoneType), hint
    return lambda value: _only(hint, value)


def _only(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{_short(value)} is no {kind.__name__}")
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{_short(value)} is no int")
    if not -_INT_MAX <= value < _INT_MAX:
        raise OverflowError("a whole number has more than 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) in (float, int) or value in _NOT_FINITE:
        return float(value)
    raise TypeError(f"{_short(value)} is no float")


def _first_of(arms: Sequence[Reader], value: Any) -> Any:
    refused: list[TypeError] = []
    for read in arms:
        try:
            return read(value)
        except TypeError as error:
            refused.append(error)
    raise refused[0]


def _short(value: Any) -> str:
    """A value for an error message; nested ones by their type, for they may be too deep to print."""
    return f"a {type(value).__name__}" if isinstance(value, (dict, list)) else repr(value)[:40]
