"""docs/limits.md has the numbers of the code, and every bound that the code names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "limits.md"
BOUNDS = re.compile(r"[A-Z_]+_(MAX|KEPT)")
NO_GROWTH = {  # attempts, times, sizes of one thing
    "AUX_MAX", "BACKOFF_S_MAX", "DONORS_MAX", "IDLE_ROUNDS_MAX", "LOOKS_MAX", "NON_FINITE_MAX",
    "OPENING_ATTEMPTS_MAX", "PATIENCE_MAX", "REPORT_FACTS_MAX", "SECONDS_MAX", "START_ATTEMPTS_MAX",
}  # fmt: skip


def constants(path: Path) -> dict[str, float]:
    """Numbers that a module gives names to, also several at once."""
    found: dict[str, float] = {}
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[-1]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for name, value in zip(names, values, strict=False):
            if isinstance(name, ast.Name) and (number := _number(value)) is not None:
                found[name.id] = number
    return found


def _number(value: ast.expr) -> float | None:
    match value:
        case ast.Constant(int() | float() as number):
            return number
        case ast.BinOp(ast.Constant(int() as base), ast.Pow(), ast.Constant(int() as power)):
            return float(base**power)
    return None


def claims(page: str) -> list[tuple[str, float, str]]:
    """(name, number, file) of every constant on the page."""
    found = []
    for row in page.splitlines():
        named = re.findall(r"`([A-Z_]+)` = ([\d,]+)", row)
        paths = re.findall(r"`([\w/]+\.py)`", row)
        found += [(name, float(number.replace(",", "")), paths[0]) for name, number in named]
    return found


def wrong(page: str) -> list[str]:
    """What the page says otherwise than the code."""
    return [
        f"{name} is {constants(ROOT / path).get(name)} in {path}, not {number:g}"
        for name, number, path in claims(page)
        if constants(ROOT / path).get(name) != number
    ]


def test_every_number_is_that_of_the_code() -> None:
    assert len(claims(PAGE.read_text())) > 20
    assert wrong(PAGE.read_text()) == []


@pytest.mark.parametrize(("old", "new"), [("`CUTS_MAX` = 2", "`CUTS_MAX` = 3"), ("`LENT_MAX`", "`LENT_MOST`")])
def test_a_number_or_a_name_that_is_wrong_is_found(old: str, new: str) -> None:
    page = PAGE.read_text()
    assert old in page and len(wrong(page.replace(old, new))) == 1


def test_every_bound_of_the_machines_and_their_shells_is_on_the_page() -> None:
    named = {(name, path) for name, _, path in claims(PAGE.read_text())}
    in_code = {
        (name, str(path.relative_to(ROOT)))
        for room in ("outer", "learners", "orchestrator/lifecycle", "orchestrator/store")
        for path in (ROOT / room).rglob("*.py")
        for name in constants(path)
        if BOUNDS.fullmatch(name) and name not in NO_GROWTH
    }
    assert in_code - named == set()
