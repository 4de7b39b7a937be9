"""A run line by line, for debugging one seed: `diloco chaos sim --seed N --trace`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from chaos.simulation.checks.provenance import Content, ValueVersion


class Trace:
    """Columns: virtual seconds, host, incarnation or epoch, what, detail."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write

    def line(self, now: float, host: str, number: int | str, what: str, detail: str) -> None:
        self._write(f"{now:10.4f}  {host:<12}  {number!s:>3}  {what:<12}  {detail}".rstrip())

    def event(self, process: Any, event: Any) -> None:
        """A process handles an event."""
        name, number = process.key
        self.line(process.time.now, name, number, "hears", words(event))

    def fact(self, process: Any, fact: Any) -> None:
        """A process records a fact."""
        name, number = process.key
        self.line(process.time.now, name, number, "says", words(fact))

    def words(self, thing: Any) -> str:
        return words(thing)


def words(thing: Any) -> str:
    """An event or a fact in words: its name and its fields, in their order."""
    return f"{type(thing).__name__}({', '.join(f'{f.name}={_value(getattr(thing, f.name))}' for f in fields(thing))})"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, ValueVersion):
        return f"v{value.number}"
    if isinstance(value, Content):
        own = " ".join(f"{one.unit[0]}{one.unit[1]}({one.after},{one.upto}]x{one.times}" for one in value.ranges)
        return f"v{value.root.number}+[{own}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + " ".join(_value(each) for each in value) + "]"
    if hasattr(value, "__dataclass_fields__"):
        return words(value)
    return str(value)
