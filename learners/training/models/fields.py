"""Reads a recipe's [model] table into a model's fields."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from outer.config import Section

Fields = TypeVar("Fields", bound=Section)


def read(kind: type[Fields], model: dict[str, Any]) -> Fields:
    """The fields of a built-in model. Raises ValueError, naming every field that is wrong."""
    try:
        return kind(**model)
    except ValidationError as error:
        raise ValueError("; ".join(_in_words(problem, kind) for problem in error.errors())) from error


def _in_words(problem: Any, kind: type[Section]) -> str:
    field = ".".join(("model", *map(str, problem["loc"])))
    if problem["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return f"{field} = {problem['input']!r}: no such key; known are {known}"
    if not problem["loc"]:
        return f"{field}: {problem['msg']}"
    return f"{field} = {problem['input']!r}: {problem['msg']}"
