"""A recipe trained in lock-step on one device, as an ordinary run's folder.

Time is virtual: a step at slowdown 1 takes a second, everything else none, and nothing fails.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.harness.whole_log import write_log
from learners.training.devices.device import device_taken
from orchestrator.analysis.folder import check_run
from orchestrator.analysis.summary import summarise
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, LearnerRequested, LearnerStarted, RunFinished, RunStarted
from orchestrator.eventlog.reader import SEAL_FILE, LogReader, seal
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime.specs import versions
from orchestrator.store.export import write_final
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from outer.protocol.manifest import code_digest


class SeedRun:
    """Trains a recipe into `folder`, from its beginning."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        """`recipe`: resolved. Raises InputError for a task that cannot be built."""
        from benchmarks.harness.lockstep import LockStep  # JAX starts here
        from learners.training.evaluator import Evaluator
        from outer.protocol.syncer import Budget

        self._recipe, self._store = recipe, RunStore(folder)
        self._task = build_task(recipe)
        self._shell = LockStep(
            task=self._task,
            sync=recipe.sync,
            outer_config=recipe.outer,
            inner=recipe.inner,
            learners={name: pool.batch_size for name, pool in recipe.learners.items()},
            quorum=recipe.quorum,
            budget=Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
            span_steps=recipe.data.span_steps,
            seed=recipe.seed,
            warm_start=recipe.warm_start,
            slowdowns={name: pool.slowdown for name, pool in recipe.learners.items()},
        )
        sets = {n: build_task(recipe.model_copy(update={"data": d})) for n, d in recipe.held_out_sets.items()}
        self._evaluator = Evaluator(
            self._task, self._shell.fragments, recipe.eval.sequences, recipe.eval.batch_size, recipe.seed,
            recipe.warm_start, sets,
        )  # fmt: skip
        self._evaluations: list[tuple[int, float]] = []  # (syncer step, held-out loss)

    def train(self) -> dict[str, Any]:
        """Train to the end; returns ok, eval_loss, evaluations and digest. Raises OSError."""
        recipe, shell = self._recipe, self._shell
        self._store.create()
        self._store.write_text(RECIPE_FILE, dump(recipe))
        about = versions(code_digest()) | {"time": "virtual: lock-step"}
        self._emit(RunStarted(recipe.name, recipe.config_hash, recipe.seed, about))
        device = device_taken(1)
        for name, pool in recipe.learners.items():
            self._emit(LearnerRequested(name, 1, pool.name, pool.region))
            self._emit(LearnerStarted(name, 1, 0, ""))
            self._emit(device, writer=name)
        self._evaluate(0)
        shell.begin()
        while not shell.over:
            shell.advance()
            every, step = recipe.eval.every, shell.committed_step
            if every and step // every > self._evaluations[-1][0] // every:
                self._evaluate(step)
        if self._evaluations[-1][0] != shell.committed_step:
            self._evaluate(shell.committed_step)
        return self._finish()

    def _emit(self, fact: Any, writer: str = "orchestrator", later_s: float = 0.0) -> None:
        self._shell.say(writer, fact, later_s)

    def _evaluate(self, step: int) -> None:
        from learners.training.task import loss_unit

        loss, metrics = self._evaluator.measure(self._shell.parameters.thetas)
        self._evaluations.append((step, loss))
        tokens = self._task.tokens(self._recipe.eval.sequences)
        self._emit(Evaluated(step, loss, tokens, loss_unit(self._task), metrics))

    def _finish(self) -> dict[str, Any]:
        from learners.training.tree import left_out

        recipe, store, shell = self._recipe, self._store, self._shell
        absent = left_out(self._task)
        unsent = self._evaluator.unsent() if absent else {}
        write_final(store, shell.committed_step, shell.fragments, shell.parameters.thetas, absent, unsent)
        digest = shell.parameters.digest()
        self._emit(RunFinished("finished", "the budget is reached", digest), later_s=1.0)
        store.write_json(SEAL_FILE, seal(write_log(Folder(store.root.absolute()), self._events())))
        verdicts = check_run(store.root)
        summary = summarise(LogReader(store.root).rest(), recipe, verdicts)
        store.write_json("summary.json", summary)
        return {
            "ok": summary["ok"],
            "eval_loss": summary["eval_loss"],
            "evaluations": [list(each) for each in self._evaluations],
            "digest": digest,
        }

    def _events(self) -> list[Event]:
        numbers: Counter[str] = Counter()
        events = []
        for at, writer, incarnation, fact in self._shell.facts:
            events.append(Event(writer, incarnation, numbers[writer], at, fact))
            numbers[writer] += 1
        return events
