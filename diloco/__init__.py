"""Train by a recipe, and read what a run left, from Python.

    import diloco

    run = diloco.run("my-run.toml", ["budget.tokens=200_000"])  # the same call resumes a run that was stopped
    run.losses().to_pandas()
    diloco.open("my-run").parameters()["blocks/0/attention/query"]

Only the names in `__all__` stay as they are; the packages beside this one may change.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learners.training.task import Task
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import dump, load
from orchestrator.store.readers import located, object_of, recipe_of, status_of
from orchestrator.store.run_store import RunStore
from outer.numeric.rules import Lengths, Rule

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from orchestrator.analysis.verdicts import Verdict

__all__ = ["InputError", "Lengths", "Recipe", "Rule", "Run", "Task", "load", "open", "run"]


@dataclass(frozen=True)
class Run:
    """A run, by its store. It may be going on: everything is read when it is asked for."""

    store: RunStore

    def __repr__(self) -> str:
        return f"diloco.open({str(self.store)!r})"

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe: every default is written out."""
        return recipe_of(self.store)

    @property
    def status(self) -> Mapping[str, Any]:
        """The newest status: what `diloco status --json` prints. Raises InputError where there is none yet."""
        return status_of(self.store)

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What the run came to, as `diloco run --json` prints it; None before its end."""
        return object_of(self.store, "summary.json")

    def losses(self) -> pa.Table:
        """Held-out losses: `step`, the syncer step of the parameters; `t`, Unix seconds; `tokens`, committed by then;
        `loss`, in the task's unit. At most about 512 of a long run.
        """
        return self.table("SELECT * FROM held_out ORDER BY step")

    def table(self, sql: str) -> pa.Table:
        """What a query of the log's tables gives (docs/run-folder.md). Reads the whole log: keep what you need."""
        import duckdb

        from orchestrator.analysis.folder import tables
        from orchestrator.eventlog.reader import LogReader
        from orchestrator.recipe.problems import Problem

        try:
            found = tables(LogReader(self.store.root)).sql(sql)
            return found.to_arrow_table()
        except duckdb.Error as error:
            raise InputError([Problem("sql", sql, str(error), 'see "SHOW TABLES" and "DESCRIBE steps"')]) from error

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """The final parameters, float32 arrays by their path in the tree. Raises InputError before the run's end."""
        from orchestrator.store.export import of_run

        return dict(of_run(self.store).tensors)

    def check(self) -> list[Verdict]:
        """Every check of the log, as `diloco check` makes them."""
        from orchestrator.analysis.folder import check_run

        return check_run(self.store.root)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the log as it is now, an HTML page, into the run's store or to `path`."""
        from orchestrator.report.write import write

        return write(self.store, None if path is None else Path(path))


def open(run: str | None = None) -> Run:
    """A run by its name in runs/, its folder, or its store's URI; without one, the only run in runs/.

    Raises InputError, which names the runs that there are.
    """
    return Run(located(run))


def run(
    recipe: str | Path | Recipe, overrides: Sequence[str] = (), *, address: str | None = None, fresh: bool = False
) -> Run:
    """Train to the end, or go on with a run that was stopped or died: `diloco run`, in this process.

    `recipe`: a TOML file, or a Recipe. `overrides`: such as "sync.quorum=2". `address`: a Ray cluster, HOST:PORT;
    without one, a local Ray. `fresh`: begin anew, and rename an earlier run's folder. Raises InputError with every
    problem at once; KeyboardInterrupt once learners have saved.
    """
    from chaos.actor import start
    from orchestrator.cli.start import train
    from orchestrator.cli.terminal import LiveView

    with contextlib.ExitStack() as stack:
        if isinstance(recipe, Recipe):
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "recipe.toml"
            path.write_text(dump(recipe), encoding="utf-8")
            recipe = path
        view = stack.enter_context(LiveView())
        view.stage("checking the recipe")
        store, _ = train(Path(recipe), address, overrides, fresh, start, view)
    return Run(store)
