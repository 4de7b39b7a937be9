"""What other processes have left in a run's folder, read without trust: its status, its recipe, requests to it.

Every reader of these files goes through here, so that a file that is torn, or was written by another program, is an
error in words, and never one inside the run itself.
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
RECIPE_FILE = "config.toml"  # the resolved recipe, by which a run knows its own folder again
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
    """As much of the form of a status as its readers rely on."""

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
    """`status_of`, for those who look again later: None instead of an error."""
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
    """The JSON object in a file; None where there is none, empty where the file holds something else."""
    try:
        value = store.read_json(name)
    except OSError:
        return None  # not now, on a shared file system; it is looked for again
    except (ValueError, RecursionError):
        return {}
    return value if value is None or isinstance(value, dict) else {}


def _damaged(store: RunStore, name: str, error: object) -> Problem:
    said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    fix = "restore it; what the log tells needs neither: diloco check " + str(store.root)
    return Problem("run-dir", str(store.root), f"its {name} is damaged: {said}", fix)
