"""An empty folder for a benchmark's run: what an earlier one left there goes, what anything else left stays.

Not a benchmark itself; the others call it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.run_store import RunStore

RUNS = ("grants",)  # folders that a run has from its beginning on


def emptied(folder: Path) -> RunStore:
    """A new store there. Ends the program where the folder holds something, and no run."""
    if folder.exists() and not (folder.is_dir() and (_is_run(folder) or not any(folder.iterdir()))):
        message = "is there, and neither empty nor a run's folder: it would be deleted"
        raise SystemExit(f"error: {InputError([Problem('--run-dir', str(folder), message, 'give another folder')])}")
    shutil.rmtree(folder, ignore_errors=True)
    store = RunStore(folder)
    store.create()
    return store


def _is_run(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in RUNS)
