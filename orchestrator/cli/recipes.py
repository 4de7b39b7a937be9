"""Load, check and resolve a recipe for a command: the one way of run, plan, submit and compare."""

from __future__ import annotations

import importlib.machinery
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

import orchestrator
from orchestrator.cli.errors import reported
from orchestrator.recipe.config import Recipe, is_name
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import load, template
from orchestrator.recipe.validation import problems as semantic_problems
from orchestrator.recipe.validation import resolve
from orchestrator.store.run_store import RUNS, RunStore

ROOMS = ("outer", "learners", "orchestrator", "chaos", "diloco")


def prepare(
    path: Path,
    overrides: Sequence[str] | None,
    folder: Path | None = None,
    options: Iterable[Problem] = (),
    further: Callable[[Recipe], Iterable[Problem]] = lambda _: (),
) -> Recipe:
    """Return the resolved recipe. Raise InputError with all problems at once, in this order:

    packages of `folder` (where workers import from; default: the current one), the command's own `options`, the
    recipe's schema, and, where that holds, what the command asks `further` of it and what contradicts itself in it.
    """
    folder = folder or Path.cwd()
    import_from(folder)
    found = [*foreign_packages(folder), *options]
    try:
        recipe = load(path, overrides or ())
        found += [*further(recipe), *semantic_problems(recipe)]
    except InputError as error:
        found += error.problems
    if found:
        raise InputError(found)
    return resolve(recipe)


def store_of(recipe: Recipe) -> RunStore:
    """Return the store of the recipe's run. Raises InputError for what is no folder."""
    return RunStore(recipe.run.folder or RUNS / recipe.name)


def import_from(folder: Path) -> None:
    """Let a task of the user's own be imported from a folder, as workers find it; our own packages come first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def foreign_packages(folder: Path) -> list[Problem]:
    """List packages in a folder that have our names and are not ours. Ray's workers would import them instead."""
    ours = Path(orchestrator.__file__).resolve().parents[1]
    problems = []
    for room in ROOMS:
        spec = importlib.machinery.PathFinder.find_spec(room, [str(folder)])
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is not None and origin != ours / room / "__init__.py":
            message = f"a package {room} that is not this project's ({ours / room}); workers would import it"
            fix = f"start from another folder, or rename that {room}"
            problems.append(Problem("working directory", str(origin), message, fix))
    return problems


_OWN = re.compile(r"learners\.training\.models\.\w+:\w+")  # the tasks that come with this package


def permit(named: str, allowed: str | None, option: str = "--task") -> None:
    """Raise InputError unless the named task is built in, or is the one that the user allows with `option`."""
    if named == allowed or (allowed is None and _OWN.fullmatch(named)):
        return
    if allowed is None:
        message = f"is required: the run names {named}, whose code would run here"
        fix = f"if you trust that code, as it is on this machine, add {option} {shlex.quote(named)}"
    else:
        message, fix = f"is not the {option[2:]} of this run, {named}", "give that one, if you trust its code"
    raise InputError([Problem(option, allowed, message, fix)])


def init(path: Annotated[Path, typer.Argument(help="The file to write, for example my-run.toml.")]) -> None:
    """Write a commented recipe with good defaults."""
    with reported():
        name = path.stem if is_name(path.stem) else "my-run"
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(template(name))
        except FileExistsError:
            problem = Problem("PATH", str(path), "exists already", "give another path; nothing was overwritten")
            raise InputError([problem]) from None
        except OSError as error:
            problem = Problem("PATH", str(path), f"cannot be written: {error}", "give a path in a folder that exists")
            raise InputError([problem]) from error
        typer.echo(f"wrote {path}; start it with: diloco run {path}")
