"""The tables of docs/recipe.md: every key of a recipe, from the descriptions of its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from learners.training.models.decoder_config import DecoderConfig
from orchestrator.recipe.config import Recipe

UNITS = {  # by how a key ends
    "gbit_s": "Gbit/s", "per_gb": "price", "per_hour": "price", "_ms": "milliseconds", "_s": "seconds",
    "_hours": "hours",
}  # fmt: skip
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
NONE = {"type": "null"}, {"maxItems": 0, "minItems": 0, "type": "array"}
MORE = {  # by table
    "": "[Write a recipe](getting-started.md#write-a-recipe), [Bring your own model](models.md)",
    "data": "[Train on tokens](models.md#train-on-tokens), [Data](protocol.md#data)",
    "inner": "[Precision and memory of a step](models.md#precision-and-memory-of-a-step)",
    "sync": "[The protocol](protocol.md)",
    "outer": "[How it is merged](models.md#how-it-is-merged), [Your own rules](models.md#your-own-rules)",
    "pools": "[Run on a cluster](clusters.md), [Several devices in one learner]"
    "(models.md#several-devices-in-one-learner)",
    "chaos": "[Break it on purpose](failures.md#break-it-on-purpose), [Faults](run-folder.md#faults)",
    "durability": "[Durability](failures.md#durability)",
    "run": "[What happens](failures.md#what-happens), [Which process runs where](clusters.md#which-process-runs-where)",
    "fleet": "[Describe the fleet](planning.md#describe-the-fleet)",
}


def blocks() -> dict[str, str]:
    """The tables, by the name of their place in the page."""
    schema = Recipe.model_json_schema()
    tables = [*_tables(schema, schema["$defs"], "", repeated=False)]
    tables += _tables(DecoderConfig.model_json_schema(), {}, "`[model]` of `CausalLM`", repeated=False)
    return {"recipe": "\n\n".join(tables)}


def _tables(schema: Mapping[str, Any], known: Mapping[str, Any], place: str, repeated: bool) -> Iterator[str]:
    """One table of the recipe, and then those inside it."""
    rows, inner = [], []
    for key, given in schema["properties"].items():
        if found := re.search(r'"#/\$defs/(\w+)"', text := json.dumps(given)):
            inner.append((known[found[1]], known, f"{place}.{key}".strip("."), '"items"' in text))
            continue
        default = "required" if key in schema.get("required", ()) else _default(given.get("default"))
        rows.append(f"|`{key}`|{_values(given, key)}|{default}|{given['description']}|")
    heading = "At the top" if not place else f"`[[{place}]]`" if repeated else f"`[{place}]`"
    heading = place if place.startswith("`") else heading
    more = f" More: {MORE[place]}." if place in MORE else ""
    says = " ".join(schema["description"].split())
    yield "\n".join([f"## {heading}", "", says + more, "", "|key|value|default|effect|", "|---|---|---|---|", *rows])
    for each in inner:
        yield from _tables(*each)


def _values(given: Mapping[str, Any], key: str) -> str:
    """What a key may be: its choices, or its kind with the unit that its name ends with, and its bounds."""
    if "anyOf" in given:
        return " or ".join(_values(each, key) for each in given["anyOf"] if each not in NONE)
    if choices := given.get("enum", [given["const"]] if "const" in given else []):
        return ", ".join(f"`{json.dumps(each)}`" for each in choices)
    if given["type"] == "array":
        return f"list of {_values(given.get('items') or given['prefixItems'][0], key)}"
    if given["type"] == "object":
        values = given.get("additionalProperties")
        return f"table, name = {_values(values, key)}" if isinstance(values, dict) else "table"
    if given["type"] == "integer" and "exclusiveMinimum" in given:
        given = {"type": "integer", "minimum": given["exclusiveMinimum"] + 1}
    unit = next((unit for end, unit in UNITS.items() if key.endswith(end)), "number")
    words = {"integer": "whole number", "boolean": "`true`, `false`", "string": "text"}.get(given["type"], unit)
    bounds = [f"{sign} {_plain(given[bound])}" for bound, sign in BOUNDS.items() if bound in given]
    return " ".join([words, " and ".join(bounds)]).strip()


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else str(bound)


def _default(value: Any) -> str:
    """As in TOML; a dash where there is none, and the description tells what happens then."""
    if value in (None, [], {}):
        return "–"
    inside = ", ".join(f"{name} = {each}" for name, each in value.items()) if isinstance(value, dict) else ""
    return f"`{{{inside}}}`" if inside else f"`{json.dumps(value)}`"
