"""The tree of the production code: how long a file may be, and how many modules a folder may hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("outer", "learners", "orchestrator", "chaos")
LINES_MOST = 400
MACHINES = {"outer/protocol/syncer.py", "learners/protocol/learner.py"}  # each one machine, which is read as a whole
MODULES_MOST = 17  # outer/protocol has 17, each a place that a reader looks for; see docs/decisions/0016-rooms.md
COMMANDS = "orchestrator/cli"  # a module for each command


def production() -> Iterator[Path]:
    """Every file of production code, relative to the repository."""
    for room in ROOMS:
        yield from (path.relative_to(ROOT) for path in sorted((ROOT / room).rglob("*.py")))


def test_no_file_but_the_two_machines_exceeds_400_lines() -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in production()}
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MOST and path not in MACHINES} == {}


def test_the_orchestrator_holds_only_folders_and_its_composition_root() -> None:
    files = {path.name for path in (ROOT / "orchestrator").iterdir() if path.is_file()}
    assert files == {"__main__.py", "__init__.py"}


def test_no_folder_but_that_of_the_commands_holds_more_than_17_modules() -> None:
    modules: dict[str, set[str]] = {}
    for path in production():
        if path.name != "__init__.py":
            modules.setdefault(str(path.parent), set()).add(path.stem)
    crowded = {folder: len(names) for folder, names in modules.items() if len(names) > MODULES_MOST}
    crowded.pop(COMMANDS, None)
    assert crowded == {}
