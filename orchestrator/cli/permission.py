"""Permission to run code that a run's folder or an exported file names, and which may come from anyone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.recipes import import_from
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import parse

if TYPE_CHECKING:
    from orchestrator.store.export import ExportedModel

_OWN = re.compile(r"learners\.training\.models\.\w+:\w+")  # the tasks that come with this package


def permit(
    named: str,
    allowed: str | None,
    who: str = "the parameters name",
    whose: str = "these parameters",
    option: str = "--task",
) -> None:
    """Raise InputError unless the named task is built in, or is the one that the user allows with `option`."""
    if named == allowed or (allowed is None and _OWN.fullmatch(named)):
        return
    if allowed is None:
        message = f"is required: {who} {named}, whose code would run here"
        fix = f"if you trust that code, as it is on this machine, add {option} {shlex.quote(named)}"
    else:
        message, fix = f"is not the {option[2:]} of {whose}, {named}", "give that one, if you trust its code"
    raise InputError([Problem(option, allowed, message, fix)])


def recipe_of_parameters(model: ExportedModel, allowed: str | None) -> Recipe:
    """A recipe with the task, model, data and seed of exported or kept parameters, once their code may run.

    The task is also found in the working directory, as for a run. Raises InputError as `permit`.
    """
    permit(model.metadata["task"], allowed)
    import_from(Path.cwd())
    return parse({"name": "parameters", "pools": [{"name": "a"}], "budget": {"syncer_steps": 100}} | model.task)
