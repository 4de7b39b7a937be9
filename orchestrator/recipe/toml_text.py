"""Recipes as TOML: read with overrides, report all errors of the schema at once, write the resolved recipe.

`load` checks the schema, and runs no code of a user's; `validate` (orchestrator/recipe/validation.py) checks what the
schema cannot.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from orchestrator.recipe.config import Recipe, hashed
from orchestrator.recipe.problems import InputError, Problem, explain
from orchestrator.recipe.validation import validate

__all__ = ["InputError", "Problem", "dump", "hash_in", "load", "stored_hash", "template", "validate"]


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file with `a.b=value` overrides applied in order.

    A value is read as TOML, else as a string. An empty value removes the key. Elements of lists are addressed by
    number (`pools.0.learners=2`) or by their `name`. Raises InputError with every problem that the schema finds.
    """
    return parse(_read(Path(path)), overrides)


def parse(raw: dict[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """`load`, from the tables of a recipe."""
    raw = copy.deepcopy(raw)
    found = [problem for override in overrides for problem in _override(raw, override)]
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        raise InputError([*found, *explain(error, Recipe)]) from None
    if found:
        raise InputError(found)
    return recipe


def hash_in(path: Path) -> str:
    """The config hash of a run's own recipe, whatever this version's defaults are. Raises InputError."""
    return hashed(_read(path))


def dump(recipe: Recipe) -> str:
    """TOML of the resolved recipe, every default written out; loading it gives the same `config_hash`."""
    return f"# config hash {recipe.config_hash}\n" + tomli_w.dumps(recipe.canonical(), multiline_strings=False)


def stored_hash(text: str) -> str | None:
    """The hash that `dump` wrote on top of a resolved recipe."""
    match = re.match(r"# config hash ([0-9a-f]+)\n", text)
    return match.group(1) if match else None


# ------------------------------------------------------------------ reading


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        problem = Problem(
            "recipe", str(path), "no such file", f"give the path of a recipe, or write one: diloco init {path.name}"
        )
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("recipe", str(path), f"cannot be read: {error}", "give a TOML file in UTF-8")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = Problem("recipe", str(path), f"is not TOML: {error}", "correct that line; see https://toml.io")
    raise InputError([problem])


def _override(raw: dict[str, Any], text: str) -> list[Problem]:
    """Apply one `a.b=value`. One that cannot be applied changes nothing and is returned as a problem."""
    path, equals, value = text.partition("=")
    *parents, last = (key.strip() for key in path.split("."))
    if any("\ud800" <= character <= "\udfff" for character in text):
        return [Problem("--set", ascii(text), "is not UTF-8", "give text in UTF-8")]
    if not equals or not all((*parents, last)):
        return [Problem("--set", text, "is not KEY=VALUE", "write for example --set sync.quorum=2")]
    table: Any = raw
    for depth, key in enumerate(parents, start=1):
        inner = _enter(table, key)
        if inner is None:
            return [_unreachable(text, ".".join(parents[:depth]), table)]
        table = inner
    if isinstance(table, list):
        if not (last.isdecimal() and int(last) < len(table)):
            return [_unreachable(text, ".".join((*parents, last)), table)]
        table[int(last)] = _value(value)
    elif value.strip() == "":
        table.pop(last, None)
    else:
        table[last] = _value(value)
    return []


def _enter(table: Any, key: str) -> dict[str, Any] | list[Any] | None:
    if isinstance(table, list):
        inner = table[int(key)] if key.isdecimal() and int(key) < len(table) else _named(table).get(key)
    else:
        inner = table.setdefault(key, {})
    return inner if isinstance(inner, (dict, list)) else None


def _named(elements: list[Any]) -> dict[str, Any]:
    return {each["name"]: each for each in elements if isinstance(each, dict) and isinstance(each.get("name"), str)}


def _unreachable(text: str, place: str, table: Any) -> Problem:
    if isinstance(table, list):
        known = ", ".join((f"0 to {len(table) - 1}", *_named(table))) if table else "none: it is empty"
        return Problem("--set", text, f"{place} names no element of the list", f"its elements are {known}")
    return Problem("--set", text, f"{place} is a single value, with nothing inside", f"set it whole: --set {place}=...")


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text


# ------------------------------------------------------------------ writing one's own


def template(name: str) -> str:
    """A commented recipe with good defaults and no faults: four learners on this machine's CPUs."""
    return Path(__file__).with_name("template.toml").read_text(encoding="utf-8").replace("NAME", name, 1)
