"""The table of docs/paper.md: each claim of the paper with the test that proves it.

A claim is a test in tests/paper/test_section*.py. Its name says the claim in words, and its docstring begins with the
place in the paper. "Departure 0001" in the docstring names the decision record for a different rule of this project.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = "tests/paper/test_section*.py"
PLACE = re.compile(r"Section (\d[^.:]*)")  # up to the first stop or colon

# Claims about whole commands, whose tests are in folders of their own.
ELSEWHERE = {
    "A recorded run is repeated to the bit, deaths and recoveries included": ("6", "tests/replay/test_replayer.py"),
    "One learner that joins stops no other, and is there within a round if a copy takes less than 6 steps": (
        "6, upsizing",
        "tests/benchmarks/test_studies.py",
    ),
    "Table 1, with three of the numbers that are not published fitted to it": (
        "7",
        "tests/benchmarks/test_goodput.py",
    ),
    "Waiting for all costs a sixth of two generations' goodput, a grace window nothing": (
        "8, heterogeneous",
        "tests/benchmarks/test_studies.py",
    ),
    "Learners for half of the tokens save the time that they should": (
        "8, scavenging",
        "tests/benchmarks/test_studies.py",
    ),
    "The bandwidth table by closed forms": ("9", "tests/benchmarks/test_bandwidth.py"),
}


class Claim(NamedTuple):
    """A claim of the paper, and the test that proves it here."""

    place: str  # in the paper, without the word section
    words: str
    file: str  # relative to the repository
    departures: tuple[str, ...]  # numbers of decision records

    @property
    def section(self) -> str:
        return self.place[0]


def claims() -> Iterator[Claim]:
    """Yield every claim, in the order of the tests, then those in ELSEWHERE.

    Raises ValueError for a test that names no place in the paper, or a decision record that does not exist.
    """
    for path in sorted(ROOT.glob(TESTS)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield _claim(node, path.relative_to(ROOT).as_posix())
    for words, (place, file) in ELSEWHERE.items():
        if not (ROOT / file).exists():
            raise ValueError(f"the test {file} of the claim {words!r} does not exist")
        yield Claim(place, words, file, ())


def _claim(node: ast.FunctionDef, file: str) -> Claim:
    text = ast.get_docstring(node) or ""
    place = PLACE.match(text)
    if place is None or f"test_section{place[1][0]}_" not in file:
        raise ValueError(
            f"{file}: the docstring of {node.name} must begin with its place in the paper, in the section of its file"
        )
    departures = tuple(re.findall(r"[Dd]eparture (\d{4})", text))
    for number in departures:
        _record(number)
    return Claim(place[1], node.name.removeprefix("test_").replace("_", " "), file, departures)


def _record(number: str) -> str:
    found = sorted(path.name for path in (ROOT / "docs/decisions").glob(f"{number}-*.md"))
    if len(found) != 1:
        raise ValueError(f"there is no decision record {number}")
    return found[0]


def blocks() -> dict[str, str]:
    """The table, by the name of its place in the page."""
    return {"claims": _proved()}


def _proved() -> str:
    lines = ["|section|claim|", "|---|---|"]
    for claim in claims():
        records = "".join(f" ([{number}](decisions/{_record(number)}))" for number in claim.departures)
        lines.append(f"|[{claim.place}](../{claim.file})|{claim.words}{records}|")
    return "\n".join(lines)
