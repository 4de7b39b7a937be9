"""The settings name what is there: files in pyproject.toml, programs in .ci/run, commands in the Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CI = (ROOT / ".ci" / "run").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_exceptions_to_the_linter_are_for_files_that_are_there() -> None:
    assert [path for path in TOOLS["ruff"]["lint"]["per-file-ignores"] if not list(ROOT.glob(path))] == []


def test_folders_of_package_data_are_there() -> None:
    for package, patterns in TOOLS["setuptools"]["package-data"].items():
        folder = ROOT / package.replace(".", "/")
        assert all(list(folder.glob(pattern)) for pattern in patterns), package


def test_ci_installs_every_program_that_a_test_needs() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    needed = {program for text in texts for program in re.findall(r'^@needs\("(\w+)"', text, re.MULTILINE)}
    assert needed and needed <= set(re.findall(r"(\w+):\w+", CI))


def test_ci_runs_the_commands_of_the_makefile_and_every_test() -> None:
    commands = re.findall(r"^make ([\w-]+)$", CI, re.MULTILINE)
    assert commands == ["check", "test", "test-all"]
    assert set(commands) <= set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
