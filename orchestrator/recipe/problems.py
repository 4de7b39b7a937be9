"""Errors in a user's input: field, value, what is allowed, and the fix. Pydantic's errors are rewritten so."""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Problem:
    """One thing to correct."""

    field: str  # dotted path under the recipe's own keys, "pools.0.learners", or what else was given
    value: Any  # as given; None: nothing was
    message: str  # what is wrong and what is allowed
    fix: str

    @property
    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"field": self.field, "value": self.value, "message": self.message, "fix": self.fix}

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {literal(self.value)}"
        return f"{self.field}{given}: {self.message}\n    fix: {self.fix}"


class InputError(Exception):
    """All problems of the input at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = list(problems)

    def __reduce__(self) -> tuple[type[InputError], tuple[list[Problem]]]:
        return InputError, (self.problems,)  # the message is derived: pickling would pass it as the problems


def literal(value: Any) -> str:
    """A value as TOML spells it, or nearly; tables and long texts are cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    longest = 60 if isinstance(value, (dict, list)) else 400
    return text if len(text) <= longest else text[: longest - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to this one, or None."""
    folded = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), folded, n=1)
    return folded[matches[0]] if matches else None


# ------------------------------------------------------------------ the keys of a model


def keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The model's fields by the keys that a user writes."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def submodel(hint: Any) -> type[BaseModel] | None:
    """The one pydantic model inside an annotation such as `tuple[PoolConfig, ...]`."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint
    return next((model for part in typing.get_args(hint) if (model := submodel(part))), None)


def _spellings(model: type[BaseModel]) -> dict[str, str]:
    """Spellings that suggest a key: the keys, the names used in the code, and the paper's letters."""
    spellings = {info.alias: info.alias for info in model.model_fields.values() if info.alias}
    spellings |= {name: info.alias or name for name, info in model.model_fields.items()}
    return spellings | {word: key for word, key in {"K": "quorum", "learning_rate": "lr"}.items() if key in spellings}


def _elsewhere(root: type[BaseModel], key: str) -> list[str]:
    """List the other places in the recipe where a key of this name belongs."""
    sections = ((name, submodel(info.annotation)) for name, info in keys(root).items())
    return [f"{name}.{_spellings(model)[key]}" for name, model in sections if model and key in _spellings(model)]


# ------------------------------------------------------------------ what a field allows, in words

_PATTERNS = {
    "^[a-z0-9]": "1 to 40 lower-case letters, digits and hyphens, a letter or digit first and last",
    r"^[\w.]+:": "an import path `package.module:factory`",
    "^[A-Za-z0-9]": "1 to 63 letters, digits, `-`, `_` and `.`, a letter or digit first and last",
}
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table"}
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


def allowed(hint: Any, metadata: Sequence[Any] = ()) -> str:
    """Return in words what an annotation allows: "a whole number above 0", "one of kill, freeze"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return allowed(arguments[0], (*metadata, *arguments[1:]))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(allowed(part, metadata) for part in arguments if part is not type(None))
    if origin is typing.Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(literal(choice) for choice in arguments)
    for start, words in _PATTERNS.items():
        if any(str(getattr(item, "pattern", "")).startswith(start) for item in metadata):
            return words
    if origin in (tuple, list):
        least = max((getattr(item, "min_length", None) or 0 for item in metadata), default=0)
        each = allowed(arguments[0]) if typing.get_origin(arguments[0]) is typing.Literal else ""
        return "a list" + (f" of at least {least}" if least else "") + (each and f", each {each}")
    words = _WORDS.get(origin or hint, "a table")
    limits = [
        f"{phrase} {getattr(item, name):g}" for name, phrase in _BOUNDS for item in metadata if hasattr(item, name)
    ]
    return " ".join([words, " and ".join(limits)]) if limits else words


# ------------------------------------------------------------------ pydantic's errors, rewritten


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> Iterator[Problem]:
    """One problem for each field, under the keys that the user wrote.

    Pydantic reports an error for each alternative of a union, and calls a list too short once bad items are left out.
    Both become one problem.
    """
    seen: set[str] = set()
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue
        path, owner, info = _locate(model, detail["loc"])
        field = (prefix + ".".join(map(str, path))).rstrip(".")
        if field not in seen:
            seen.add(field)
            yield _problem(field, str(path[-1]) if path else "", detail, model, owner, info)


def model_of(error: ValidationError) -> type[BaseModel]:
    """The model that refused the input. Pydantic gives its name only."""
    waiting: list[type[BaseModel]] = [BaseModel]
    while waiting:
        model = waiting.pop()
        if model.__name__ == error.title:
            return model
        waiting += model.__subclasses__()
    return BaseModel


def _locate(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[int | str], type[BaseModel], Any]:
    """Follow a location as far as the input goes. Pydantic appends the names of union members."""
    path: list[int | str] = []
    owner, info = model, None
    inside: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            path.append(part)
        elif inside is not None:
            owner, info = inside, keys(inside).get(part)
            path.append(part)
            inside = submodel(info.annotation) if info else None
        elif info is not None and typing.get_origin(info.annotation) is dict and part != "[key]":
            path.append(part)
            info = FieldInfo.from_annotation(typing.get_args(info.annotation)[1])
        else:
            break
    return path, owner, info


def _problem(field: str, key: str, detail: Any, root: type[BaseModel], owner: type[BaseModel], info: Any) -> Problem:
    if detail["type"] == "extra_forbidden":
        return _unknown(field, key, detail["input"], root, owner)
    if detail["type"] == "value_error":
        return _contradiction(field, detail, submodel(info.annotation) if info else owner)
    assert info is not None
    about = f" ({info.description})" if info.description else ""
    if detail["type"] == "missing":
        return Problem(field, None, f"is required{about}", f"write {_example(field, info)}")
    must = f"must be {allowed(info.annotation, info.metadata)}{about}"
    return Problem(field, detail["input"], must, _correction(field, info))


def _unknown(field: str, key: str, value: Any, root: type[BaseModel], owner: type[BaseModel]) -> Problem:
    spellings = _spellings(owner)
    place = field.rpartition(".")[0]
    if near := nearest(key, spellings):
        meant = f"{place}.{spellings[near]}".strip(".")
        return Problem(field, value, "is not a known key", f"did you mean {meant}?")
    if homes := _elsewhere(root, key):
        return Problem(field, value, "is not a known key here", f"did you mean {' or '.join(homes)}?")
    return Problem(field, value, "is not a known key", f"remove it; known here: {', '.join(keys(owner))}")


def _contradiction(section: str, detail: Any, model: type[BaseModel] | None) -> Problem:
    """A contradiction of several fields. It is reported for the field that the message begins with, else for all."""
    message = str(detail["ctx"]["error"])
    named = [word for word in dict.fromkeys(re.findall(r"\w+", message)) if model and word in keys(model)]
    fields = [f"{section}.{key}".strip(".") for key in named]
    fix = f"change {' or '.join(fields) or section}"
    given = detail["input"] if isinstance(detail["input"], dict) else {}
    if sum(key in given for key in named) > 1:
        fix += " (an override KEY= takes a key out)"
    if named and message.startswith(named[0]):
        return Problem(fields[0], given.get(named[0]), message, fix)
    return Problem(section, None, message, fix)


def _correction(field: str, info: FieldInfo) -> str:
    if info.is_required():
        return f"write {_example(field, info)}"
    default = info.get_default()
    if default is None or isinstance(default, (BaseModel, tuple)):
        return "leave it out for the default"
    return f"the default is {field} = {literal(default)}"


def _example(field: str, info: FieldInfo) -> str:
    if typing.get_origin(info.annotation) is tuple:
        return f"at least one [[{field}]] table" if submodel(info.annotation) else f"{field} = a list"
    return f"a [{field}] table" if submodel(info.annotation) else f"{field} = {allowed(info.annotation, info.metadata)}"


_FIELD = re.compile(r"\b(?:data|inner|outer|sync|model)\.\w+(?:\.\w+)*")


def from_error(error: ValueError, field: str, recipe: BaseModel, fix: str) -> Problem:
    """A problem from a message `FIELD = VALUE: what is wrong; fix`. Field, value and fix may be missing."""
    text = " ".join(str(error).split())
    if named := _FIELD.search(text):
        field = named.group()
    value = _lookup(recipe, field)
    text = text.removeprefix(field).removeprefix(f" = {value!r}").removeprefix(repr(value)).lstrip(": ")
    message, separator, told = text.rpartition("; ")
    return Problem(field, value, message, told) if separator else Problem(field, value, text, fix)


def _lookup(recipe: BaseModel, field: str) -> Any:
    values: Any = recipe.model_dump(mode="json", by_alias=True, warnings=False)  # an incomplete recipe has only some
    return reduce(lambda table, key: table.get(key) if isinstance(table, dict) else None, field.split("."), values)
