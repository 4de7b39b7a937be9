"""What the studies' scripts share: their options, and rows as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any


def options(words: str, plot: bool = True) -> argparse.ArgumentParser:
    """A parser that has --json and, unless `plot` is False, --plot."""
    parser = argparse.ArgumentParser(
        description=words.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    if plot:
        parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw them")
    return parser


def numbers(text: str) -> list[float]:
    """Of an option such as 0.5,1,2."""
    return [float(part) for part in text.split(",")]


def show(rows: Sequence[Any], as_json: bool) -> None:
    """Print dataclasses of one kind: as a list in JSON, or as a table with a column for each field."""
    if as_json:
        told = [{name: None if value != value else value for name, value in asdict(row).items()} for row in rows]
        print(json.dumps(told, allow_nan=False))
        return
    names = [field.name for field in fields(rows[0])]
    lines = [names, *([_text(getattr(row, name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)
