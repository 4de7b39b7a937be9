"""An event: one record of the log, a fact in its envelope, and its line of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.eventlog.decode import build, reader
from orchestrator.eventlog.facts import REGISTRY

_ENVELOPE = {"writer": reader(str), "incarnation": reader(int), "sequence": reader(int), "at": reader(float)}


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

    @staticmethod
    def from_json(line: str) -> Event:
        """Parse one line. Raises ValueError with the reason."""
        try:
            record = json.loads(line)
            envelope = {name: read(record[name]) for name, read in _ENVELOPE.items()}
            if not math.isfinite(envelope["at"]):
                raise TypeError(f"at {envelope['at']} is no time")
            return Event(**envelope, fact=build(REGISTRY[record["kind"]], record["fact"]))
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not an event: {error!r} in {line[:120]!r}") from error


def finite(value: Any) -> Any:
    """The value for strict JSON: numbers that are not finite become `nan`, `inf`, `-inf`."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
