"""One seed of a study: a recipe trained in lock-step on one device, as an ordinary run's folder.

Time is virtual: a step at slowdown 1 takes a second, everything else none, and nothing fails. What has been trained is
saved every half minute, and a later process continues from there with the same bits.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from learners import lockstep_state
from learners.lockstep import LockStep, LoggedFact, Stacked, single
from learners.training.devices.device import device_taken
from learners.training.evaluator import Evaluator
from learners.training.task import Task, loss_unit
from learners.training.tree import left_out
from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import check_run
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    Evaluated,
    LearnerRequested,
    LearnerStarted,
    ReferenceLosses,
    RunFinished,
    RunStarted,
)
from orchestrator.eventlog.log_writer import GrowingLog
from orchestrator.eventlog.reader import SEAL_FILE, blocks, seal
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task, held_out_tasks
from orchestrator.recipe.toml_text import dump, stored_hash
from orchestrator.replay.environment import STACKED
from orchestrator.runtime.specs import versions
from orchestrator.store.export import write_final
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore, alone
from outer.journal.object_store import Folder
from outer.journal.saving import saved
from outer.protocol.manifest import code_digest
from outer.protocol.syncer import Budget

ROW_FILE = "study.json"  # written last: the seed is finished
STATE_FILE = "study.state"
LOCK_FILE = "study.lock"
SAVE_S, NEWS_S = 30.0, 0.5

News = Mapping[str, Any]


@saved
@dataclass
class Recording:
    """What a run has beside its shell, and what is saved with it."""

    log: GrowingLog = field(default_factory=GrowingLog)
    numbers: Counter[tuple[str, int]] = field(default_factory=Counter)  # of facts, by writer and incarnation
    evaluations: list[tuple[int, float]] = field(default_factory=list)  # (syncer step, held-out loss)
    seconds: float = 0.0  # of all processes so far
    processes: int = 1

    def events(self, facts: list[LoggedFact]) -> Iterator[Event]:
        for at, writer, incarnation, fact in facts:
            number = self.numbers[writer, incarnation]
            self.numbers[writer, incarnation] += 1
            yield Event(writer, incarnation, number, at, fact)


class SeedRun:
    """Trains one seed into `folder`. `stacked`: learners of one batch size step as one program."""

    def __init__(self, recipe: Recipe, folder: Path, stacked: bool) -> None:
        """`recipe`: resolved. Raises InputError for a task that cannot be built."""
        self._recipe, self._store, self._stacked = recipe, RunStore(folder), stacked
        self._objects = Folder(folder.absolute())
        self._task: Task = build_task(recipe)
        self._shell = self._new_shell()
        self._recording = Recording()
        self._evaluator = Evaluator(
            self._task, self._shell.fragments, recipe.eval.sequences, recipe.eval.batch_size, recipe.seed,
            recipe.warm_start, held_out_tasks(recipe),
        )  # fmt: skip
        self._begun = self._saved = time.monotonic()

    def _new_shell(self) -> LockStep:
        recipe = self._recipe
        sizes = {name: pool.batch_size for name, pool in recipe.learners.items()}
        return LockStep(
            task=self._task,
            sync=recipe.sync,
            outer_config=recipe.outer,
            inner=recipe.inner,
            learners=sizes,
            quorum=recipe.quorum,
            budget=Budget(recipe.budget.tokens, recipe.budget.syncer_steps),
            span_steps=recipe.data.span_steps,
            seed=recipe.seed,
            warm_start=recipe.warm_start,
            slowdowns={name: pool.slowdown for name, pool in recipe.learners.items()},
            stepper=Stacked(self._task, recipe.inner, sizes.values()) if self._stacked else single,
        )

    def train(self, on_news: Callable[[News], None]) -> dict[str, Any]:
        """Train, or continue, to the end; returns the seed's row. Raises OSError."""
        self._store.create()
        with alone(self._store.path(LOCK_FILE)):
            if not self._continue():
                self._begin()
            told = 0.0
            while not self._shell.over:
                self._shell.advance()
                self._record()
                self._evaluate_if_due()
                now = time.monotonic()
                if now - self._saved >= SAVE_S:
                    self._save()
                if now - told >= NEWS_S:
                    told = now
                    on_news({"step": self._shell.committed_step, "loss": self._recording.evaluations[-1][1]})
            return self._finish()

    # -------------------------------------------------------------- begin, save, continue

    def _begin(self) -> None:
        shutil.rmtree(self._store.path("log"), ignore_errors=True)  # of a process that ended before it saved
        self._store.write_text(RECIPE_FILE, dump(self._recipe))
        recipe, shell = self._recipe, self._shell
        about = versions(code_digest()) | {"time": "virtual: a study in lock-step"}
        self._emit(RunStarted(recipe.name, recipe.config_hash, recipe.seed, about))
        device = device_taken(1)
        if self._stacked:
            device = replace(device, settings=device.settings | {STACKED: "1"})
        for name, pool in recipe.learners.items():
            self._emit(LearnerRequested(name, 1, pool.name, pool.region))
            self._emit(LearnerStarted(name, 1, 0, ""))
            shell.facts.append(LoggedFact(0.0, name, 1, device))
        self._evaluate(0)
        shell.begin()
        self._record()

    def _continue(self) -> bool:
        """Continue from what an earlier process of the same code saved. False if there is nothing."""
        try:
            head, _, content = self._store.path(STATE_FILE).read_bytes().partition(b"\n")
            if json.loads(head) != self._about_state:
                return False
            self._recording = lockstep_state.restore(self._shell, content)
        except FileNotFoundError:
            return False
        except ValueError:  # damaged: the seed begins anew, with nothing of it
            self._shell, self._recording = self._new_shell(), Recording()
            return False
        self._recording.processes += 1
        return True

    @property
    def _about_state(self) -> dict[str, Any]:
        return {"config_hash": self._recipe.config_hash, "code": code_digest(), "stacked": self._stacked}

    def _save(self) -> None:
        self._count_seconds()
        head = json.dumps(self._about_state).encode() + b"\n"
        self._store.write_bytes(STATE_FILE, head + lockstep_state.pack(self._shell, self._recording))
        self._saved = time.monotonic()

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self._recording.seconds += now - self._begun
        self._begun = now

    # -------------------------------------------------------------- the log

    def _emit(self, fact: Any, later_s: float = 0.0) -> None:
        said = [LoggedFact(self._shell.now + later_s, "orchestrator", 1, fact)]
        self._recording.log.add(self._objects, self._recording.events(said))

    def _record(self) -> None:
        facts, self._shell.facts = self._shell.facts, []
        self._recording.log.add(self._objects, self._recording.events(facts))

    def _evaluate_if_due(self) -> None:
        every, step = self._recipe.eval.every, self._shell.committed_step
        if every and step // every > self._recording.evaluations[-1][0] // every:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        loss, metrics = self._evaluator.measure(self._shell.parameters.thetas)
        self._recording.evaluations.append((step, loss))
        tokens = self._task.tokens(self._recipe.eval.sequences)
        self._emit(Evaluated(step, loss, tokens, loss_unit(self._task), metrics))

    # -------------------------------------------------------------- the end

    def _finish(self) -> dict[str, Any]:
        recipe, store, shell, recording = self._recipe, self._store, self._shell, self._recording
        if recording.evaluations[-1][0] != shell.committed_step:
            self._evaluate(shell.committed_step)
        tables = getattr(self._task, "ngram_losses", None)
        if recipe.eval.ngrams and tables and (found := tables(recipe.eval.sequences)) is not None:
            self._emit(ReferenceLosses(*found))
        absent = left_out(self._task)
        thetas, unsent = shell.parameters.thetas, self._evaluator.unsent() if absent else {}
        write_final(store, shell.committed_step, shell.fragments, thetas, absent, unsent)
        digest = shell.parameters.digest()
        self._emit(RunFinished("finished", "the budget is reached", digest), later_s=1.0)
        store.write_json(SEAL_FILE, seal(recording.log.close(self._objects)))
        verdicts = check_run(store.root)
        summary = summarise(blocks(store.root), recipe, verdicts)
        store.write_json("summary.json", summary)
        self._count_seconds()
        row = {
            "seed": recipe.seed,
            "config_hash": recipe.config_hash,
            "ok": summary["ok"],
            "eval_loss": summary["eval_loss"],
            "evaluations": [list(each) for each in recording.evaluations],
            "tokens": summary["tokens"]["committed"],
            "processed": summary["tokens"]["processed"],
            "syncer_steps": shell.committed_step,
            "seconds": round(recording.seconds, 3),
            "processes": recording.processes,
            "stacked": self._stacked,
            "digest": digest,
        }
        store.write_json(ROW_FILE, row)
        store.path(STATE_FILE).unlink(missing_ok=True)
        return row


def finished_row(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The row of a seed that is finished by this recipe. Raises ValueError where the folder holds anything else."""
    store = RunStore(folder)
    if store.root.is_file() or (not store.empty and stored_hash(store.read_text(RECIPE_FILE) or "") is None):
        if not store.root.is_dir() or [each.name for each in store.root.iterdir()] != [LOCK_FILE]:
            raise ValueError("holds no study")
    elif not store.empty and stored_hash(store.read_text(RECIPE_FILE) or "") != recipe.config_hash:
        raise ValueError("holds a study of another recipe")
    row: dict[str, Any] | None = store.read_json(ROW_FILE)
    return row
