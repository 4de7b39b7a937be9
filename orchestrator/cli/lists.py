"""Options that are lists of numbers or have bounds, and files to write: what `diloco simulate` reads and leaves."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from orchestrator.cli.errors import reported
from orchestrator.recipe.problems import InputError, Problem


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
    if path.is_dir():
        return [Problem(option, str(path), "is a folder", f"name a file: {option} {path / 'rows'}{suffixes[0]}")]
    if not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        return [Problem(option, str(path), f"there is no folder {folder}", f"create it: mkdir -p {folder}")]
    return []


def bounded(most: Mapping[str, tuple[float, float]]) -> list[Problem]:
    """Which options, each with its value and the most that it may be, are above that, or nan."""
    return [
        Problem(option, value, f"must be at most {limit:,.12g}", f"write {option} {limit:.12g} or less")
        for option, (value, limit) in most.items()
        if not value <= limit
    ]


def write(option: str, path: Path | None, made: Callable[[], str]) -> None:
    """Write what `made` gives, if a file is asked for: after the answer, so that a disk that fails loses nothing.

    Raises typer.Exit once it has said on stderr why it cannot be, naming the option: stdout has the answer already.
    """
    if path is None:
        return
    with reported():
        text = made()
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            words = f"cannot be written: {error.strerror or error}"
            raise InputError([Problem(option, str(path), words, "name another file, or make room")]) from error


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows that have the same columns."""
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
