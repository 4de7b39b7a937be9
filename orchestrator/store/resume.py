"""Resuming a run that was stopped or died: which recipe changes are allowed, and which files of its end to remove."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from learners.training.data import byte_corpus, corpus
from orchestrator.eventlog.reader import SEAL_FILE
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.toml_text import stored_hash
from orchestrator.store.checkpoints import REQUEST_FILE
from orchestrator.store.readers import RECIPE_FILE, recipe_of, status_if_any
from orchestrator.store.run_store import RunStore
from outer.journal.chain import identity
from outer.journal.object_store import absolute, objects
from outer.protocol.manifest import flatten
from outer.protocol.schedule import Budget

CHANGEABLE = (
    "pools", "budget", "eval", "chaos", "run", "durability", "sync.quorum", "data.ahead_s", "data.span_steps",
    "data.set_aside",
)  # fmt: skip
JOURNAL = "journal"  # its folder
DATA_FILE = "corpus.sha256"  # of the names, sizes and times of the data's text files
FIXED = "durability.store"  # where journal and checkpoints are
FILLED_IN = ("sync.P", "init_digest", "data.digest")  # when a recipe is resolved; their sources are compared
# Written at the end that no longer holds, or for a process that is gone.
END_FILES = (SEAL_FILE, "summary.json", "outcome.json", "stop", REQUEST_FILE)


def occupied(store: RunStore, fresh: bool, recipe: Recipe) -> list[Problem]:
    """List why no run may start or resume in that folder: it holds something else, or a run of another recipe."""

    def problem(message: str, fix: str) -> list[Problem]:
        return [Problem("run.folder", str(store.root), message, fix)]

    if store.root.exists() and not store.exists:
        return problem("is a file", "give another")
    if store.empty:
        return list(taken(recipe))
    if stored_hash(store.read_text(RECIPE_FILE) or "") is None:
        return problem("is not empty and holds no run", "give another, or --set name=OTHER")
    return list(taken(recipe) if fresh else unlike(store, recipe))


def unlike(store: RunStore, recipe: Recipe) -> Iterator[Problem]:
    """Why this recipe cannot resume the run in the store. `recipe` need not be resolved."""
    begun = recipe_of(store)
    if store.granted("epoch", "syncer"):  # by then the orchestrator's log is there
        yield from taken(begun, begun=True)
    run = (status_if_any(store) or {}).get("run") or {}
    at = run.get("tokens_committed") or 0, run.get("syncer_step") or 0
    reached, over = (
        Budget(recipe.budget.tokens, recipe.budget.syncer_steps).reached(*at),
        run.get("state") == "finished",
    )
    if over if recipe.budget == begun.budget else reached:
        budget = recipe.budget.model_dump(exclude_none=True)
        told = "it has finished" if over else f"it has {at[0]:,} tokens and is at syncer step {at[1]:,}"
        fix = "give a larger one to train on, --fresh to begin anew, or another name (--set name=OTHER)"
        yield Problem("budget", budget, f"was reached by the run in this folder: {told}", fix)
    before, now = flatten(begun.canonical()), flatten(recipe.canonical())
    if recipe.init_from is not None:
        now["init_from"] = str(Path(recipe.init_from).expanduser().absolute())  # as a resolved recipe has it
    if recipe.durability.store is not None:
        now[FIXED] = absolute(recipe.durability.store)
    with suppress(ValueError):  # validation says why
        if (digest := corpus.digest(recipe.data)) is not None:
            now["data.digest"] = digest
    for key in sorted(before.keys() | now.keys()):
        if _changeable(key) or before.get(key) == now.get(key) or (key in FILLED_IN and key not in now):
            continue
        was = f"leave it as it was, {before[key]!r}" if key in before else "leave it out, as it was"
        fix = f"{was}; or give --fresh to begin anew, or another name (--set name=OTHER)"
        yield Problem(key, now.get(key), "is not what the run in this folder was begun with", fix)


def _changeable(key: str) -> bool:
    return key != FIXED and any(key == each or key.startswith(f"{each}.") for each in CHANGEABLE)


def taken(recipe: Recipe, begun: bool = False) -> Iterator[Problem]:
    """Why a new run cannot start in the store that its recipe names: another run's journal is there. Or why one that
    has `begun` there cannot go on: nothing is.
    """
    if (uri := recipe.durability.store) is None:
        return
    try:
        store = objects(uri)
        if (identity(store, JOURNAL) is None and not store.folders("log")) != begun:
            return
        message = "holds the journal of another run, or of this one, begun anew or with its folder not mounted"
        fix = f"give another, e.g. {uri.rstrip('/')}-2; or remove journal/, log/, checkpoints/ and mail/ there"
        if begun:
            message = "holds nothing, but this run has begun there, and would begin anew"
            fix = "see that it is mounted, and is what it was; or give --fresh to begin anew"
    except (OSError, ValueError) as error:
        message, fix = f"cannot be read: {error}", "see that this machine can reach it, or give another"
    yield Problem(FIXED, uri, message, fix)


def data_changed(store: RunStore, recipe: Recipe) -> bool:
    """Whether text files of the data have other names, sizes or times than when the run was last begun; notes them.

    Token shards have a digest in the recipe.
    """
    texts = [each for each in corpus.sources(recipe.data) if each.kind == "bytes" and each.path]
    files = [(name, path.stat()) for each in texts for name, path in byte_corpus.files(each)]
    found = [(name, status.st_size, status.st_mtime_ns) for name, status in files]
    before, now = store.read_text(DATA_FILE), hashlib.sha256(ascii(found).encode()).hexdigest()
    store.write_text(DATA_FILE, now)
    return before not in (None, now)


def reopen(store: RunStore) -> None:
    """Remove what was written at the run's end. The log's segments stay and are continued."""
    for name in END_FILES:
        store.path(name).unlink(missing_ok=True)
