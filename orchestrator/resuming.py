"""Going on with a run that was stopped, or died: what of its recipe may have changed, and what its end has left."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config import Recipe
from orchestrator.problems import Problem
from orchestrator.seal import SEAL_FILE
from orchestrator.store import RunStore
from orchestrator.stored import recipe_of, status_if_any
from outer.manifest import flatten

CHANGEABLE = ("pools", "budget", "eval", "chaos", "run", "durability", "sync.quorum")
END_FILES = ("events.jsonl", SEAL_FILE, "summary.json", "stop")  # said at an end that is none any more


def unlike(store: RunStore, recipe: Recipe) -> Iterator[Problem]:
    """What keeps this recipe from going on with the run that lies there. `recipe` need not be resolved."""
    begun = recipe_of(store)
    if ((status_if_any(store) or {}).get("run") or {}).get("state") == "finished" and recipe.budget == begun.budget:
        budget = recipe.budget.model_dump(exclude_none=True)
        fix = "give a larger one to train on, --fresh to begin anew, or another --name"
        yield Problem("budget", budget, "is what the run in this folder has reached: it has finished", fix)
    before, now = flatten(begun.canonical()), flatten(recipe.canonical())
    for key in sorted(before.keys() | now.keys()):
        if key.startswith(CHANGEABLE) or before.get(key) == now.get(key):
            continue
        if key not in now:
            continue  # filled in when the run was resolved
        fix = f"leave it as it was, {before.get(key)!r}; or give --fresh to begin anew, or another --name"
        yield Problem(key, now[key], "is not what the run in this folder was begun with", fix)


def reopen(store: RunStore) -> None:
    """Take back what only an end may have said; the log's segments stay, and are gone on with."""
    for name in END_FILES:
        store.path(name).unlink(missing_ok=True)
