"""Readers of the files in a run's folder that other processes write: status, recipe, requests.

They validate: a torn or foreign file is a clear error, and never a crash of the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.store.published import stored
from orchestrator.store.run_store import RUNS, RunStore, known_runs

if TYPE_CHECKING:
    from orchestrator.recipe.config import Recipe

STATUS_FILE = "status.json"
RECIPE_FILE = "config.toml"  # the resolved recipe; a run recognises its own folder by it
LOG = "log"  # a folder
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


def located(run: str | None, any_folder: bool = False) -> RunStore:
    """Return the store of a run by its folder, its name or the URI of its store; of None, the only run in runs/.

    `any_folder`: also of a folder that has lost all by which a run is known.
    Raises InputError, which names the known runs.
    """
    known = known_runs()
    fix = f"known runs: {', '.join(known)}" if known else f"no runs are kept in {RUNS.absolute()}; give a run's folder"
    if run is None:
        if len(known) == 1:
            return RunStore.named(known[0])
        raise InputError([Problem("RUN", None, "name one run, by its name or its folder", fix)])
    if (found := stored(run)) is not None:
        return found
    for store in (RunStore(run), RunStore.named(run)):
        if any(store.path(name).exists() for name in (RECIPE_FILE, STATUS_FILE, LOG)):
            return store
    if any_folder and RunStore(run).exists:
        return RunStore(run)
    near = nearest(run, known)
    fix = f'did you mean "{near}"? {fix}' if near else fix
    raise InputError([Problem("RUN", run, "is no run's folder or name", fix)])


def status_of(store: RunStore) -> dict[str, Any]:
    """The run's latest status. Raises InputError when there is none, or none that can be read."""
    try:
        status = store.read_json(STATUS_FILE)
        if status is None:
            fix = "give the folder of a run that has begun"
            raise InputError([Problem("RUN", str(store.root), f"holds no {STATUS_FILE}", fix)])
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
        raise InputError([Problem("RUN", str(store.root), f"holds no {RECIPE_FILE}", fix)])
    from orchestrator.recipe.toml_text import load  # which takes its time to import

    try:
        return load(store.path(RECIPE_FILE))
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
    return Problem("RUN", str(store.root), f"its {name} is damaged: {said}", fix)
