"""A run as a Ray job: its id, its command, and the folder to send. cli/jobs.py sends it."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.cli.recipes import ROOMS
from orchestrator.recipe.problems import Problem
from outer import heap

# Never sent, since everyone who reaches the cluster can read what was sent. Named as in deploy/tls/ and the runbook.
SECRETS = ("*.key", "*.pem", "certs/", "token", ".env*")
# Ray also leaves out .git, .venv, venv, __pycache__, and what .gitignore and .rayignore say.
EXCLUDES = ("/runs", ".git", ".venv", "*.egg-info", ".mypy_cache", ".pytest_cache", ".ruff_cache", *SECRETS)
BEGINS_S = 600.0  # for a run that was submitted before
CPUS = 0.1  # of the entrypoint: never zero, or it hangs while any node is partitioned


@dataclass(frozen=True)
class Submission:
    """A job to ask a cluster's job server for."""

    submission_id: str
    entrypoint: str
    folder: Path  # the working directory, here
    metadata: Mapping[str, str]
    control: Mapping[str, str]  # labels of the nodes that share the run's folder: the driver goes there too


def submission(
    recipe: Path,
    folder: Path,
    run_folder: str,
    overrides: Sequence[str],
    fresh: bool,
    metadata: Mapping[str, str],
    control: Mapping[str, str],
) -> Submission:
    """The job that runs `diloco run` with these arguments. `metadata` names the run, `control` is its run.control."""
    inside = recipe.resolve().relative_to(folder.resolve())
    words = ["python", "-m", "orchestrator", "run", str(inside)]
    words += [word for override in overrides for word in ("--set", override)] + ["--fresh"] * fresh
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    identifier = f"diloco-{metadata['run']}-{moment}-{secrets.token_hex(2)}"
    return Submission(identifier, shlex.join(words), folder, dict(metadata) | {"run_folder": run_folder}, control)


def joining(run: Submission, store: str, region: str) -> Submission:
    """The job that makes its cluster a region of the run that another job starts."""
    words = ["python", "-m", "orchestrator", "join", store, "--region", region, "--wait", f"{BEGINS_S:g}"]
    about = {"run": run.metadata["run"], "region": region}
    return replace(
        run, submission_id=f"{run.submission_id}-{region}", entrypoint=shlex.join(words), metadata=about, control={}
    )


def problems(recipe: Path, folder: Path) -> list[Problem]:
    """List what is wrong with the folder that is to be sent."""
    found = []
    if not folder.is_dir():
        found.append(Problem("--working-dir", str(folder), "is not a folder", "give the one that holds the recipe"))
    elif recipe.exists() and not recipe.resolve().is_relative_to(folder.resolve()):
        fix = f"give --working-dir {recipe.resolve().parent}, or copy the recipe"
        found.append(Problem("recipe", str(recipe), f"is outside of the folder that is sent, {folder.resolve()}", fix))
    return found


def carries_sources(folder: Path) -> bool:
    """Whether the folder holds this project's packages, as a checkout does."""
    return all((folder / room / "__init__.py").exists() for room in ROOMS)


@contextlib.contextmanager
def packed(folder: Path) -> Iterator[Path]:
    """The folder to send: itself if it holds this project's packages, else one of links to all in it and to them.

    So the cluster runs the very sources that this command runs from, installed there or not.
    """
    if carries_sources(folder):
        yield folder
        return
    sources = Path(orchestrator.__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="diloco-") as staged:
        own = [entry for entry in folder.resolve().iterdir() if entry.name not in ROOMS]
        for entry in [*own, *(sources / room for room in ROOMS)]:
            (Path(staged) / entry.name).symlink_to(entry)
        yield Path(staged)


def runtime_env(folder: Path) -> dict[str, Any]:
    return {"working_dir": str(folder), "excludes": list(EXCLUDES), "env_vars": dict(heap.ONE_HEAP)}
