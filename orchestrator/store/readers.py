"""Readers of the files in a run's folder that other processes write: status, recipe, requests.

They validate: a torn or foreign file is a clear error, and never a crash of the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import stored
from orchestrator.store.run_store import RunStore

STATUS_FILE = "status.json"
RECIPE_FILE = "config.toml"  # the resolved recipe; a run recognises its own folder by it
CLUSTER_FILE = "cluster.json"  # how other shells reach the run; on a local Ray with a token_path


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Run(_Part):
    name: str | None = None
    state: str | None = None
    pools: dict[str, int] = {}


class _Row(_Part):
    name: str
    pool: str | None = None
    state: str | None = None


class _Status(_Part):
    """The parts of a status that readers rely on."""

    run: _Run | None = None
    learners: list[_Row] | None = None
    syncer: dict[str, Any] | None = None
    written_at: FiniteFloat | None = None


def status_of(store: RunStore) -> dict[str, Any]:
    """The run's latest status. Raises InputError when there is none, or none that can be read."""
    try:
        status = store.read_json(STATUS_FILE)
        if status is None:
            fix = "give the folder of a run that has begun"
            raise InputError([Problem("run-dir", str(store.root), f"holds no {STATUS_FILE}", fix)])
        _Status.model_validate(status)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError([_damaged(store, STATUS_FILE, error)]) from error
    return dict(status)


def status_if_any(store: RunStore) -> dict[str, Any] | None:
    """`status_of`, but None instead of an error, for callers that poll."""
    try:
        return status_of(store)
    except InputError:
        return None


def recipe_of(store: RunStore) -> Recipe:
    """The recipe that the run was started with. Raises InputError when there is none, or none that can be read."""
    if not store.path(RECIPE_FILE).is_file():
        fix = "give the folder of a run; a run keeps its recipe there"
        raise InputError([Problem("run-dir", str(store.root), f"holds no {RECIPE_FILE}", fix)])
    try:
        return stored(store.path(RECIPE_FILE))
    except InputError as error:
        first = error.problems[0]
        raise InputError([_damaged(store, RECIPE_FILE, f"{first.field} {first.message}")]) from error


def object_of(store: RunStore, name: str) -> Mapping[str, Any] | None:
    """The JSON object in a file; None without a file, {} if the file holds something else."""
    try:
        value = store.read_json(name)
    except OSError:
        return None  # a shared file system may be away for a moment; callers look again
    except (ValueError, RecursionError):
        return {}
    return value if value is None or isinstance(value, dict) else {}


def _damaged(store: RunStore, name: str, error: object) -> Problem:
    said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    fix = "restore it; what the log tells needs neither: diloco check " + str(store.root)
    return Problem("run-dir", str(store.root), f"its {name} is damaged: {said}", fix)
