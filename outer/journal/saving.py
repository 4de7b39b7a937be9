"""Saves the state of folds or of machines and loads it again, without running anything that the bytes say.

State is made of None, bool, int, float, str, NumPy scalars, list, tuple, dict, defaultdict, Counter, set, frozenset,
deque, arrays, and instances of registered classes (`saved`): dataclasses, named tuples, enums, and classes whose
attributes are all set in `__init__`. What two places share they share again after loading; arrays that are views of one
memory do not. Classes are looked up in the registry and never imported, and made without calling `__init__`. What is
`kept` is not written: the program that loads has its own.

The bytes are those of outer/journal/framing.py: a JSON header and arrays. A mutable thing is written once, in a list,
and referred to by its place in it.
"""

from __future__ import annotations

import copy
import dis
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from outer.journal.framing import pack, unpack

FORMAT = 1
_KINDS = "biuf"  # dtype kinds of arrays and scalars
_PLAIN = (bool, int, str, type(None))
_FACTORIES: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in (int, float, list, dict, set, deque)}
_CLASSES: dict[str, type[Any]] = {}
_PARTS: dict[type[Any], tuple[str, ...]] = {}
_PASSING: dict[type[Any], dict[str, Any]] = {}
_STAND_INS: dict[type[Any], tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}

C = TypeVar("C", bound=type[Any])


def saved(kind: C, **passing: Any) -> C:
    """Register a class whose instances may be part of a fold's state. Usable as a decorator.

    `passing`: what is saved instead of attributes that are about the newest block only.
    """
    if issubclass(kind, Enum):
        saved_as(kind, lambda member: member.value, kind)
    _CLASSES[_name(kind)], _PASSING[kind] = kind, passing
    return kind


def saved_all(*modules: ModuleType) -> None:
    """Register every class of these modules."""
    for module in modules:
        for thing in vars(module).values():
            if isinstance(thing, type) and thing.__module__ == module.__name__:
                saved(thing)


def saved_as(kind: type[Any], state_of: Callable[[Any], Any], again: Callable[[Any], Any]) -> None:
    """Register a class whose instances are saved as an array or plain value, `state_of`, and made `again` from it."""
    _CLASSES[_name(kind)], _STAND_INS[kind] = kind, (state_of, again)


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def dump(state: Any, kept: Mapping[str, Any] | None = None) -> bytes:
    """The state as bytes. Raises TypeError where it holds anything else than the docstring of this module says.

    `kept`: by name, things that are not written, and that the loading program has too.
    """
    writer = _Writer(kept or {})
    root = writer.value(state, type(state).__name__)
    objects = list(writer.objects())
    classes = [[name, _attributes(_CLASSES[name])] for name in writer.classes]
    header = {"format": FORMAT, "classes": classes, "objects": objects, "root": root}
    return b"".join(pack(header, writer.arrays)[0])


def load(data: bytes, kept: Mapping[str, Any] | None = None) -> Any:
    """The state of these bytes. Raises ValueError if they are damaged or were written for other classes."""
    header, arrays, _ = unpack(data)
    if header.get("format") != FORMAT:
        raise ValueError(f"the state has format {header.get('format')!r}, this program reads {FORMAT}")
    try:
        return _Reader(header, arrays, kept or {}).state()
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"the state cannot be read: {error!r}") from error


# ------------------------------------------------------------------ classes


def _attributes(kind: type[Any]) -> tuple[str, ...]:
    """What an instance consists of: its fields, or the attributes that `__init__` sets."""
    if kind not in _PARTS:
        _PARTS[kind] = _found(kind)
    return _PARTS[kind]


def _found(kind: type[Any]) -> tuple[str, ...]:
    if kind in _STAND_INS:
        return ()
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind))
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    inits = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base) and base is not object]
    found = (step.argval for init in inits for step in dis.get_instructions(init) if step.opname == "STORE_ATTR")
    return tuple(sorted(set(found)))


def _immutable(kind: type[Any]) -> bool:
    """Whether its instances are values: their identity does not matter, and they may be keys."""
    return issubclass(kind, tuple) or (is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _contents(thing: Any, where: str) -> list[tuple[str, Any]]:
    kind = type(thing)
    names = _attributes(kind)
    if not issubclass(kind, tuple) and hasattr(thing, "__dict__"):
        extra = {name for name in vars(thing) if not isinstance(getattr(kind, name, None), cached_property)}
        if wrong := sorted(extra.symmetric_difference(names)):
            raise TypeError(f"{where}: {kind.__name__}.{wrong[0]} is not a field, or not set in __init__")
    passing = _PASSING[kind]
    return [(name, copy.copy(passing[name]) if name in passing else getattr(thing, name)) for name in names]


# ------------------------------------------------------------------ writing


class _Writer:
    def __init__(self, kept: Mapping[str, Any]) -> None:
        self._kept = {id(thing): name for name, thing in kept.items()}
        self.classes: dict[str, int] = {}
        self.arrays: list[NDArray[Any]] = []
        self._things: list[tuple[Any, str]] = []  # mutable, in order of appearance, and where
        self._places: dict[int, int] = {}

    def value(self, value: Any, where: str) -> Any:
        """A value as JSON; of a mutable one its place."""
        kind = type(value)
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return value
        if kind is float:
            return ["float", repr(value)]
        if id(value) in self._kept:
            return ["kept", self._kept[id(value)]]
        if kind in (tuple, frozenset):
            return [kind.__name__, *(self.value(item, where) for item in value)]
        if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
            return ["scalar", value.dtype.str, self.value(value.item(), where)]
        if kind in _STAND_INS:
            place = self.classes.setdefault(_name(kind), len(self.classes))
            return ["again", place, self.value(_STAND_INS[kind][0](value), where)]
        if _CLASSES.get(_name(kind)) is kind and _immutable(kind):
            return ["value", *self._instance(value, where)]
        place = self._places.setdefault(id(value), len(self._things))
        if place == len(self._things):
            self._things.append((value, where))
        return ["at", place]

    def objects(self) -> Iterator[list[Any]]:
        """Each mutable thing as JSON. Writing one may find more."""
        for thing, where in self._things:
            yield self._object(thing, where)

    def _object(self, thing: Any, where: str) -> list[Any]:
        kind = type(thing)
        if kind in (list, set):
            return [kind.__name__, *(self.value(item, f"{where}[]") for item in thing)]
        if kind is deque:
            return ["deque", thing.maxlen, *(self.value(item, f"{where}[]") for item in thing)]
        if kind is defaultdict:
            if thing.default_factory is None or _FACTORIES.get(thing.default_factory.__name__) is None:
                raise TypeError(f"{where}: a defaultdict of {thing.default_factory} cannot be saved")
            return ["defaultdict", thing.default_factory.__name__, *self._items(thing, where)]
        if kind in (dict, Counter):
            return [kind.__name__, *self._items(thing, where)]
        if kind is np.ndarray:
            return self._array(thing, where)
        if _CLASSES.get(_name(kind)) is kind:
            return ["instance", *self._instance(thing, where)]
        raise TypeError(f"{where}: a {_name(kind)} cannot be saved")

    def _items(self, thing: dict[Any, Any], where: str) -> Iterator[Any]:
        for key, item in thing.items():
            yield self.value(key, f"{where} key")
            yield self.value(item, f"{where}[{key!r}]")

    def _array(self, array: NDArray[Any], where: str) -> list[Any]:
        if array.dtype.kind == "O":
            return ["objects", list(array.shape), *(self.value(item, f"{where}[]") for item in array.ravel())]
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"{where}: an array of {array.dtype} cannot be saved")
        self.arrays.append(array)
        return ["array", len(self.arrays) - 1]

    def _instance(self, thing: Any, where: str) -> Iterator[Any]:
        yield self.classes.setdefault(_name(type(thing)), len(self.classes))
        for name, item in _contents(thing, where):
            yield self.value(item, f"{where}.{name}")


# ------------------------------------------------------------------ reading


class _Reader:
    """First makes every mutable thing empty, then fills them, so that they may refer to each other in any way."""

    def __init__(self, header: dict[str, Any], arrays: list[NDArray[Any]], kept: Mapping[str, Any]) -> None:
        self._arrays, self._kept = arrays, kept
        self._classes = [_class(name, names) for name, names in header["classes"]]
        self._objects, self._root = header["objects"], header["root"]
        self._things = [self._empty(*parts) for parts in self._objects]

    def state(self) -> Any:
        for thing, parts in zip(self._things, self._objects, strict=True):
            self._fill(thing, *parts)
        return self._value(self._root)

    def _value(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        tag, *rest = value
        match tag:
            case "at":
                return self._things[rest[0]]
            case "kept":
                return self._kept[rest[0]]
            case "again":
                return _STAND_INS[self._classes[rest[0]]][1](self._value(rest[1]))
            case "float":
                return float(rest[0])
            case "tuple":
                return tuple(map(self._value, rest))
            case "frozenset":
                return frozenset(map(self._value, rest))
            case "scalar":
                return np.dtype(rest[0]).type(self._value(rest[1]))
            case "value":
                kind, values = self._classes[rest[0]], [*map(self._value, rest[1:])]
                if issubclass(kind, tuple):
                    return kind(*values)
                return _set(object.__new__(kind), values)
        raise ValueError(f"the state holds a {tag!r}, which this program does not know")

    def _empty(self, tag: str, *parts: Any) -> Any:
        match tag:
            case "list" | "set" | "dict" | "Counter":
                return {"list": list, "set": set, "dict": dict, "Counter": Counter}[tag]()
            case "deque":
                return deque(maxlen=parts[0])
            case "defaultdict":
                return defaultdict(_FACTORIES[parts[0]])
            case "array":
                return self._arrays[parts[0]].copy()
            case "objects":
                return np.empty(parts[0], object)
            case "instance":
                kind = self._classes[parts[0]]
                return object.__new__(kind)
        raise ValueError(f"the state holds a {tag!r}, which this program does not know")

    def _fill(self, thing: Any, tag: str, *parts: Any) -> None:
        values = parts if tag in ("list", "set", "dict", "Counter") else parts[1:]
        match tag:
            case "list" | "deque":
                thing.extend(map(self._value, values))
            case "set":
                thing.update(map(self._value, values))
            case "dict" | "Counter" | "defaultdict":
                for key, item in zip(values[::2], values[1::2], strict=True):
                    thing[self._value(key)] = self._value(item)
            case "objects":
                for place, item in enumerate(values):
                    thing.flat[place] = self._value(item)
            case "instance":
                _set(thing, [*map(self._value, values)])


def _class(name: str, names: list[str]) -> type[Any]:
    kind = _CLASSES.get(name)
    if kind is None:
        raise ValueError(f"the state holds a {name}, which this program does not know")
    if tuple(names) != _attributes(kind):
        raise ValueError(f"the state's {name} has {', '.join(names)}; this program's {', '.join(_attributes(kind))}")
    return kind


def _set(thing: Any, values: list[Any]) -> Any:
    for name, value in zip(_attributes(type(thing)), values, strict=True):
        object.__setattr__(thing, name, value)
    return thing
