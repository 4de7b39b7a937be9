"""`diloco sample RUN`: text from a trained language model.

A run's folder may come from anyone, and names the task whose code runs. That code runs only if it is built in, or if
the user names it too.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import apart, reported
from orchestrator.cli.options import AsJson, Run, Task
from orchestrator.cli.recipes import import_from, permit
from orchestrator.recipe.config import SEED_MAX, Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.tasks import build_task, host_only
from orchestrator.store.readers import located, recipe_of


def sample(
    run: Run = None,
    task: Task = None,
    prompt: Annotated[str, typer.Option(help="The beginning of the text.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Bytes to add.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the most likely byte.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among this many most likely bytes; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=SEED_MAX)] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a prompt and a trained model's continuation."""
    with reported(as_json):
        store = located(run)
        from orchestrator.store import export

        model, recipe = export.of_run(store), recipe_of(store)
        permit(recipe.task, task)
        import_from(Path.cwd())
        with host_only():
            from learners.training import evaluator, tree
        given = os.fsencode(prompt)  # bytes as they were typed, UTF-8 or not
        try:
            with apart(as_json):
                speaking = _speaking(recipe)
                params = tree.parameters(speaking, model.tensors, recipe.seed, recipe.warm_start)
                said = evaluator.sample(speaking, params, given, length, temperature, top_k, seed)
        except ValueError as error:
            message, _, fix = str(error).rpartition("; ")
            raise InputError([Problem("RUN", run, message or fix, fix)]) from error
        text = (given + said).decode(errors="replace")
        if as_json:
            told = {"text": text, "bytes": base64.b64encode(said).decode(), "seed": seed, "run": recipe.name}
            typer.echo(json.dumps(told))
        else:
            typer.echo(text)


def _speaking(recipe: Recipe) -> Any:
    """The recipe's task, which must be able to generate text."""
    task = build_task(recipe)
    if not hasattr(task, "sample"):
        fix = "give the task a method sample(params, prompt, length, temperature, top_k, rng); see docs/models.md"
        raise InputError([Problem("task", recipe.task, "does not give text: it has no method `sample`", fix)])
    return task
