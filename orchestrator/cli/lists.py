"""Options that are lists of numbers, and files that tables are written to: what `diloco simulate` reads and leaves."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from orchestrator.problems import Problem


def numbers(
    option: str, text: str, kind: Callable[[str], Any], fits: Callable[[Any], bool], must: str, found: list[Problem]
) -> list[Any]:
    """What stands between the commas, each once; the first part that does not fit is added to `found`."""
    read: list[Any] = []
    for part in text.split(","):
        try:
            number = kind(part.strip())
        except ValueError:
            number = None
        if number is None or not fits(number):
            found.append(Problem(option, part.strip(), f"must be {must}", "write numbers separated by commas"))
            break
        read.append(number)
    return list(dict.fromkeys(read))


def file_problems(option: str, path: Path | None, *suffixes: str) -> list[Problem]:
    """Why nothing could be written there."""
    if path is None:
        return []
    if path.suffix not in suffixes:
        end = f"must end in {' or '.join(suffixes)}"
        return [Problem(option, str(path), end, f"write {option} {path}{suffixes[0]}")]
    if not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        return [Problem(option, str(path), f"there is no folder {folder}", f"create it: mkdir -p {folder}")]
    return []


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Dataclasses of one kind as CSV, under the names of their fields."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(rows[0])])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
