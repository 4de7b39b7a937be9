"""What regions tell each other, as JSON and arrays: plain values, the messages of a table, and the names of processes.

Nothing else can be sent, and what comes is built from the table alone: no code of one region runs in another.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import ml_dtypes  # noqa: F401 (NumPy knows bfloat16 and its kin from here on)
import numpy as np
from numpy.typing import NDArray

from learners.checkpoint_writer import SavedPart
from learners.link import Version
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.lifecycle.controller import RankState
from outer.bulk import AtShard
from outer.ports import Peer
from outer.protocol import messages
from outer.relays import Elsewhere

PeerName = tuple[str, str]  # region, and the process's name in it

_SENT = (
    messages.Attach, messages.FragmentCounters, messages.Report, messages.Contribution, messages.SeekDonor,
    messages.StateRequest, messages.State, messages.Welcome, messages.Donor, messages.ReadRequest, messages.Notice,
    messages.Grant, messages.Drain, messages.Stop, AtShard, Elsewhere, RankState, SavedPart, Version,
)  # fmt: skip
_TABLE: dict[str, Any] = {each.__name__: each for each in _SENT} | dict(REGISTRY)
_PLAIN = (int, float, str, bool, types.NoneType)


class Unsendable(TypeError):
    """A value that no region may send to another."""


def packed(value: Any, arrays: list[NDArray[Any]], name_of: Callable[[Peer], PeerName]) -> Any:
    """The value for JSON; its arrays are added to `arrays`. Raises Unsendable."""

    def pack(each: Any) -> Any:
        kind = type(each)
        if each is None or kind in (bool, int, str):
            return each
        if kind is float:
            return each if math.isfinite(each) else {"f": str(each)}
        if kind is list:
            return [*map(pack, each)]
        if kind is tuple:
            return {"t": [*map(pack, each)]}
        if isinstance(each, dict):
            return {"d": [[pack(key), pack(inner)] for key, inner in each.items()]}
        if isinstance(each, np.ndarray):
            arrays.append(each)
            return {"a": len(arrays) - 1, "kind": each.dtype.name}
        if isinstance(each, np.generic):
            return pack(each.item())
        if _TABLE.get(kind.__name__) is kind:
            return {"c": kind.__name__, "v": [pack(getattr(each, name)) for name in _names(kind)]}
        if hasattr(each, "ask") and hasattr(each, "tell"):
            return {"p": [*name_of(each)]}
        raise Unsendable(f"a {kind.__name__} is nothing that regions send each other")

    return pack(value)


def unpacked(value: Any, arrays: Sequence[NDArray[Any]], peer_of: Callable[[PeerName], Peer]) -> Any:
    """The value that `packed` packed. Raises ValueError, KeyError, IndexError or TypeError for anything else."""

    def unpack(each: Any) -> Any:
        if not isinstance(each, (dict, list)):
            return each
        if isinstance(each, list):
            return [*map(unpack, each)]
        match each:
            case {"f": str(number)}:
                return float(number)
            case {"t": list(items)}:
                return tuple(map(unpack, items))
            case {"d": list(items)}:
                return {unpack(key): unpack(inner) for key, inner in items}
            case {"a": int(index), "kind": str(kind)}:
                return arrays[index].view(np.dtype(kind))
            case {"c": str(name), "v": list(items)}:
                return _built(_TABLE[name], [*map(unpack, items)])
            case {"p": [str(region), str(name)]}:
                return peer_of((region, name))
        raise ValueError(f"{sorted(each)} is no value of another region")

    return unpack(value)


def _built(kind: Any, values: Sequence[Any]) -> Any:
    """An instance whose plain fields have their declared types."""
    allowed = _allowed(kind)
    if len(values) != len(allowed):
        raise ValueError(f"a {kind.__name__} has {len(allowed)} fields, and not {len(values)}")
    for (name, types_), value in zip(allowed.items(), values, strict=True):
        if types_ and type(value) not in types_:
            raise ValueError(f"{kind.__name__}.{name} is a {type(value).__name__}")
    return kind(**dict(zip(allowed, values, strict=True)))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else kind._fields


@cache
def _allowed(kind: Any) -> dict[str, tuple[type[Any], ...]]:
    """By field: its types, where they are plain; empty where they are not."""
    hints = typing.get_type_hints(kind)
    found = {}
    for name in _names(kind):
        hint = hints[name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = all(each in _PLAIN for each in options)
        found[name] = (*options, *([int] if float in options else [])) if plain else ()
    return found
