"""What the code imports is what pyproject.toml declares, and the other way round."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("outer", "learners", "orchestrator", "chaos", "diloco")
BESIDE = ("tests", "benchmarks", "docs", "examples", "deploy")
NAMES = {
    "yaml": "pyyaml",
    "sklearn": "scikit_learn",
    "tensorboardX": "tensorboardx",
    "xdist": "pytest_xdist",
}  # importable name: package
APART = (  # with an environment of its own: another project's training, and what makes checkpoints for tests
    ROOT / "benchmarks" / "torchft",
    ROOT / "tests" / "learners" / "training" / "huggingface",
)
ASKED_FOR = ("data", "suite")  # extras that production code imports where a recipe, an option or pytest asks for them
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def packages(requirements: Iterable[str]) -> set[str]:
    """The importable names of requirements: "ray[default]>=2.60" is ray, "tomli-w>=1.2" is tomli_w."""
    return {re.split(r"[\[<>=;]", one)[0].strip().replace("-", "_").lower() for one in requirements}


def imported(folders: Iterable[str]) -> set[str]:
    return {
        name
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not any(path.is_relative_to(apart) for apart in APART)
        for name in _of(path)
    }


def _of(path: Path) -> Iterator[str]:
    beside = {other.stem for other in path.parent.glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in beside:
                yield top


def test_production_code_imports_what_is_declared_and_nothing_is_declared_in_vain() -> None:
    extras = [one for extra in ASKED_FOR for one in PROJECT["optional-dependencies"][extra]]
    found = {NAMES.get(name, name) for name in imported(ROOMS)}
    assert not found & set(BESIDE), "production never imports tests, benchmarks or docs"
    assert found - set(ROOMS) == packages([*PROJECT["dependencies"], *extras])


def test_tests_benchmarks_and_examples_import_only_what_an_extra_declares() -> None:
    extras = {one for requirements in PROJECT["optional-dependencies"].values() for one in requirements}
    named = {*ROOMS, *BESIDE} | packages([*PROJECT["dependencies"], *extras])
    assert {NAMES.get(name, name) for name in imported(BESIDE)} <= named


def test_constraints_pin_every_declared_package_to_one_version_and_name_no_index() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line) for line in lines)
    pinned = packages(lines)
    assert packages([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]) <= pinned
