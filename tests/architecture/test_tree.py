"""The tree: how many lines a room may have, and that a class name stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("outer", "learners", "orchestrator", "chaos", "diloco")

# Lines of Python that a folder may have, less those of its own folders that are listed too. A room over its budget
# gives something up, or a decision record says why it may have more.
BUDGETS = {
    "outer/protocol": 4232,
    "outer/numeric": 1956,
    "outer/journal": 2353,
    "outer": 2340,
    "learners/protocol": 1920,
    "learners/training": 4290,
    "learners/conformance": 580,
    "learners": 2420,
    "orchestrator/recipe": 1503,
    "orchestrator/store": 1835,
    "orchestrator/planner": 2411,
    "orchestrator/report": 961,
    "orchestrator/replay": 1330,
    "orchestrator/runtime": 2341,
    "orchestrator/compare": 464,
    "orchestrator/prepare": 710,
    "orchestrator/regions": 1462,
    "orchestrator/lifecycle": 2508,
    "orchestrator/watch": 720,
    "orchestrator/cli": 2842,
    "orchestrator/eventlog": 1426,
    "orchestrator/analysis": 630,
    "orchestrator/telemetry": 375,
    "orchestrator/simulation": 2193,
    "orchestrator": 50,
    "chaos/simulation": 3580,
    "chaos/suite": 590,
    "chaos": 470,
    "diloco": 140,
}
TOTALS = {PACKAGES: 48_545, ("tests",): 36_309, ("benchmarks",): 7630}

# Class names with two definitions: the events and effects of the two machines.
TWO_SIDES = {"Answer", "Cut", "Emit", "Fetched", "Inherit", "Merged", "Send", "Stage", "State"}


def files(folders: Iterable[str]) -> list[Path]:
    """Every file of Python under the folders, relative to the repository."""
    return [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def lines(path: Path) -> int:
    return len((ROOT / path).read_text().splitlines())


def test_no_room_exceeds_its_budget_of_lines() -> None:
    found = dict.fromkeys(BUDGETS, 0)
    for path in files(PACKAGES):
        room = next(str(folder) for folder in path.parents if str(folder) in BUDGETS)
        found[room] += lines(path)
    assert all(found.values()), "each is there"
    assert {room: count for room, count in found.items() if count > BUDGETS[room]} == {}


def test_production_tests_and_benchmarks_keep_to_their_totals() -> None:
    found = {folders: sum(map(lines, files(folders))) for folders in TOTALS}
    assert {folders: count for folders, count in found.items() if count > TOTALS[folders]} == {}


def test_a_class_name_is_defined_once_in_production_but_for_the_two_sides_of_a_protocol() -> None:
    defined = defaultdict(set)
    for path in files(PACKAGES):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].add(str(path))
    twice = {name: sorted(where) for name, where in defined.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in TWO_SIDES} == {}


def test_the_orchestrator_holds_only_folders_and_its_composition_root() -> None:
    held = {path.name for path in (ROOT / "orchestrator").iterdir() if path.is_file()}
    assert held == {"__main__.py", "__init__.py"}


def test_every_task_and_thread_beside_the_calls_has_an_owner_that_hears_of_its_end() -> None:
    """They are started in one place, which asks who hears; a future of a pool is read by who asked for it."""
    starts = ("create_task(", "Thread(target")
    found = {str(path): [each for each in starts if each in (ROOT / path).read_text()] for path in files(PACKAGES)}
    virtual = {"orchestrator/simulation/process.py": ["create_task("]}  # there a task is what is simulated
    assert {path: each for path, each in found.items() if each} == {"outer/background.py": list(starts)} | virtual
