"""The recipe in a run's folder is the one that its log was begun with.

Its hash is taken of what the file holds: what a later version would take for default does not matter. Does not know
what a recipe means.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.events import Event, RunStarted
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import hash_in
from orchestrator.store.readers import RECIPE_FILE

NAME, PROMISE = (
    "log.recipe",
    "the recipe that lies beside the log is the one that the run was begun, or last gone on, with",
)


def check(run_dir: Path, events: Iterable[Event]) -> Verdict:
    begun = [event.fact.config_hash for event in events if isinstance(event.fact, RunStarted)][-1:]
    path = run_dir / RECIPE_FILE
    if not begun or not path.is_file():
        lacking = f"no {RECIPE_FILE} is in the folder" if begun else "the log does not say with which the run was begun"
        return Verdict(NAME, PROMISE, "unknown", lacking)
    try:
        here = hash_in(path)
    except InputError as error:
        return Verdict(NAME, PROMISE, "violated", f"{RECIPE_FILE} {error.problems[0].message}")
    told = f"{RECIPE_FILE} has the config hash {here}, the run was begun with {begun[0]}"
    return judge(NAME, PROMISE, 1, "recipe", [] if begun == [here] else [told])
