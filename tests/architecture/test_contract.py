"""The import contract: the doors between the rooms, who may import Ray and JAX, and machines that import nothing.

The rules themselves are in .importlinter, for `lint-imports` and here; each is also shown to fail.
"""

from __future__ import annotations

import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
ROOMS = ("outer", "learners", "orchestrator", "chaos", "diloco")
MACHINES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ("outer/protocol", "learners/protocol")
    for path in (ROOT / room).rglob("[!_]*.py")
)
# Imports each of them in a fork of its own, and prints what that loaded beside the standard library.
LOAD = """
import importlib, os, sys
for module in sys.argv[1:]:
    if os.fork() == 0:
        before = set(sys.modules)
        importlib.import_module(module)
        new = set(sys.modules) - before
        print(module, *(name for name in new if name.partition(".")[0] not in sys.stdlib_module_names), flush=True)
        os._exit(0)
    os.wait()
"""


def lint(folder: Path, config: Path = ROOT / ".importlinter") -> subprocess.CompletedProcess[str]:
    """lint-imports by our contract on the rooms under a folder."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom importlinter.cli import lint_imports_command\nsys.path.insert(0, '')\n"
            "lint_imports_command()",
            *("--config", str(config), "--no-cache", "--no-logo"),
        ],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


# Each breaks one rule: file, statement, what the linter must say of it.
BREACHES = [
    ("outer/protocol/syncer.py", "import learners.protocol.learner", "outer.protocol.syncer -> learners."),
    ("outer/protocol/syncer.py", "import orchestrator.recipe.config", "outer.protocol.syncer -> orchestrator."),
    (
        "learners/protocol/learner.py",
        "def late():\n    import orchestrator.recipe.config",
        "learners.protocol.learner -> orchestrator.",
    ),
    ("orchestrator/recipe/config.py", "import chaos.plans", "orchestrator.recipe.config -> chaos."),
    ("outer/protocol/syncer.py", "import outer.numeric.optimizer", "outer.protocol.syncer -> outer.numeric."),
    (
        "orchestrator/recipe/config.py",
        "import orchestrator.runtime.actor",
        "orchestrator.recipe.config -> orchestrator.runtime.actor",
    ),
    ("outer/protocol/syncer.py", "import ray", "outer.protocol.syncer -> ray"),
    ("orchestrator/recipe/config.py", "import ray.util", "orchestrator.recipe.config -> ray"),
    ("chaos/plans.py", "from ray import get", "chaos.plans -> ray"),
    ("outer/shell.py", "import ray", "outer.shell -> ray"),
    ("outer/shell.py", "import outer.ray_ports", "outer.shell -> outer.ray_ports"),
    ("outer/protocol/syncer.py", "import jax.numpy", "outer.protocol.syncer -> jax"),
    ("learners/protocol/learner.py", "import optax", "learners.protocol.learner -> optax"),
    ("learners/training/data/byte_corpus.py", "import jax", "learners.training.data.byte_corpus -> jax"),
    ("orchestrator/runtime/actor.py", "import jax", "orchestrator.runtime.actor -> jax"),
]
CYCLES = [
    ("outer/protocol/leases.py", "import outer.protocol.syncer", "No cycles are allowed in outer.protocol"),
    (
        "learners/protocol/adoption.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import learners.protocol.learner",
        "No cycles are allowed in learners.protocol",
    ),
    ("orchestrator/recipe/config.py", "import orchestrator.cli.app", "No cycles are allowed in orchestrator"),
]
# What a small sound project of the same shape imports.
SOUND = {
    "outer/protocol/syncer.py": "import outer.protocol.leases\n",
    "outer/protocol/leases.py": "",
    "outer/numeric/optimizer.py": "import jax\n",
    "outer/actor.py": "import ray\nimport outer.ray_ports\nimport outer.shell\n",
    "outer/ray_ports.py": "import ray\n",
    "outer/shell.py": "import outer.protocol.syncer\n",
    "learners/protocol/learner.py": "import learners.protocol.adoption\nimport outer.protocol.syncer\n",
    "learners/protocol/adoption.py": "",
    "learners/training/data/byte_corpus.py": "import numpy\n",
    "learners/training/task.py": "import jax\nimport optax\n",
    "learners/training/models/decoder.py": "import jax\nimport learners.training.task\n",
    "orchestrator/recipe/config.py": "",
    "orchestrator/runtime/actor.py": "import ray\nimport orchestrator.recipe.config\n",
    "orchestrator/cli/app.py": "import orchestrator.cli.run\n",
    "orchestrator/cli/run.py": "def run():\n    import orchestrator.runtime.actor\n",
    "orchestrator/planner/sizing/memory.py": "",
    "orchestrator/__main__.py": "import chaos.actor\nimport orchestrator.cli.app\n",
    "chaos/plans.py": "import orchestrator.recipe.config\n",
    "chaos/actor.py": "import ray\nimport chaos.plans\n",
}


def project(folder: Path) -> Path:
    """Writes the sound project; returns our contract, less the demand that each of its exceptions be used."""
    for name, text in SOUND.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
    config = folder / "contract.ini"
    rules = (ROOT / ".importlinter").read_text()
    config.write_text(
        rules.replace("\nignore_imports =", "\nunmatched_ignore_imports_alerting = none\nignore_imports =")
    )
    return config


def test_the_contract_admits_a_sound_project(tmp_path: Path) -> None:
    done = lint(tmp_path, project(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("breaches", [BREACHES, CYCLES], ids=["forbidden imports", "cycles"])
def test_the_contract_refuses_each_breach(tmp_path: Path, breaches: list[tuple[str, str, str]]) -> None:
    config = project(tmp_path)
    for file, statement, _ in breaches:
        with open(tmp_path / file, "a") as module:
            module.write(statement + "\n")
    done = lint(tmp_path, config)
    assert done.returncode == 1, done.stdout + done.stderr
    for file, statement, told in breaches:
        assert told in done.stdout, (file, statement)


def test_no_two_modules_import_each_other_however_far_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 30
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the cycle


def test_a_machine_loads_nothing_but_the_standard_library_and_its_leaves() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *MACHINES],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    loads = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines()}
    assert loads.keys() == set(MACHINES), done.stderr
    for module, loaded in loads.items():
        assert module in loaded
        assert {name.partition(".")[0] for name in loaded} <= {"outer", "learners"}, module
        assert not loaded & {"outer.config", "learners.config", "learners.training.task"}, "these load pydantic or JAX"


def test_the_composition_root_is_short() -> None:
    assert len((ROOT / "orchestrator" / "__main__.py").read_text().splitlines()) < 50
