"""The runs of a comparison: which there are, which are finished, and how the others are trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.compare.modes import Mode, transformed
from orchestrator.compare.outcome import OUTCOME_FILE, RunOutcome, of_history, outcome, save
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.tasks import build_task, host_only
from orchestrator.recipe.toml_text import dump, stored_hash
from orchestrator.store.readers import RECIPE_FILE, object_of, status_if_any
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore

Starter = Callable[..., Any]  # starts chaos beside a run
OnNews = Callable[["ComparedRun", Mapping[str, Any]], None]  # a run; its progress in [0, 1] and newest held-out loss


@dataclass(frozen=True)
class ComparedRun:
    """One run of the comparison: a mode, and a recipe with its seed."""

    mode: Mode
    recipe: Recipe
    store: RunStore

    @property
    def finished(self) -> bool:
        if self.mode.by_ray_train:
            return (object_of(self.store, OUTCOME_FILE) or {}).get("state") == "finished"
        state = ((status_if_any(self.store) or {}).get("run") or {}).get("state")
        return state == "finished" and self.store.path("summary.json").exists()

    def outcome(self) -> RunOutcome:
        """The outcome of a finished run."""
        return outcome(self.store, self.recipe)


def in_tokens(recipe: Recipe) -> Recipe:
    """The recipe with its budget in tokens: syncer steps are not the same work in all modes. Raises InputError."""
    if recipe.budget.tokens is not None:
        return recipe
    task = build_task(recipe)
    step = sum(task.tokens(pool.batch_size) for pool in recipe.learners.values())
    budget = {"tokens": step * recipe.target_syncer_steps}
    return Recipe.model_validate(recipe.canonical() | {"budget": budget, "fleet": recipe.fleet})


def planned(recipe: Recipe, modes: Sequence[Mode], seeds: Sequence[int], folder: Path) -> list[ComparedRun]:
    """Every run, mode by mode.

    Raises InputError with every mode that the recipe cannot have, and every folder that holds something else.
    """
    runs, problems = list[ComparedRun](), list[Problem]()
    for mode in modes:
        try:
            made = transformed(recipe, mode)
        except InputError as error:
            problems += error.problems
            continue
        for seed in seeds:
            place = folder.absolute() / mode.name / f"seed-{seed}"
            one = ComparedRun(mode, _seeded(made, seed, mode), RunStore(place))
            problems += _occupied(one)
            runs.append(one)
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return runs


def _seeded(recipe: Recipe, seed: int, mode: Mode) -> Recipe:
    plain = recipe.canonical() | {"seed": seed, "fleet": recipe.fleet}
    if recipe.durability.store is not None:  # each run has its own
        own = f"{recipe.durability.store.rstrip('/')}/{mode.name}/seed-{seed}"
        plain["durability"] = plain["durability"] | {"store": own}
    return Recipe.model_validate(plain)


def _occupied(run: ComparedRun) -> Iterator[Problem]:
    store = run.store
    fix = "give another --out, or remove the folder"
    if store.root.exists() and not store.root.is_dir():
        yield Problem("--out", str(store.root), "is a file", fix)
        return
    if store.empty:
        return
    text = store.read_text(RECIPE_FILE) or ""
    if (found := stored_hash(text)) is None:
        yield Problem("--out", str(store.root), "is not empty and holds no run", fix)
    elif found != run.recipe.config_hash:
        yield Problem("--out", str(store.root), "holds a run of another recipe", fix)


# ------------------------------------------------------------------ training


@dataclass(frozen=True)
class Real:
    """What real runs need."""

    starter: Starter | None

    def train(self, run: ComparedRun, on_news: OnNews) -> None:
        """Train one run on a local Ray, or continue it where its learners do not wait for each other."""
        run.store.path(OUTCOME_FILE).unlink(missing_ok=True)  # of an end that was not the last
        if run.mode.by_ray_train:
            self._by_ray_train(run, on_news)
            return
        from orchestrator.runtime import launch

        store = run.store
        if run.recipe.sync.overlap == "strict" and not store.empty:
            shutil.rmtree(store.root)  # a syncer whose learners wait has one epoch: nobody takes it over
        store.create()
        if not store.empty:
            reopen(store)
        store.write_text(RECIPE_FILE, dump(run.recipe))

        def tell(status: Mapping[str, Any]) -> None:
            said = status.get("run") or {}
            on_news(run, {"progress": said.get("progress") or 0.0, "eval_loss": said.get("eval_loss")})

        summary = launch.run_embedded(run.recipe, store, self.starter, tell)
        if summary["state"] == "stopped":  # by an interrupt, which is for the whole comparison
            raise KeyboardInterrupt

    def _by_ray_train(self, run: ComparedRun, on_news: OnNews) -> None:
        from orchestrator.runtime.data_parallel import trainer

        recipe = run.recipe
        found = trainer.run(recipe, run.store, lambda news: on_news(run, news))
        task = build_task(recipe)
        with host_only():
            from learners.training.task import loss_unit
            from learners.training.tree import tensors_of
        elements = sum(tensor.size for tensor in tensors_of(task) if tensor.sent)
        tokens = task.tokens(sum(pool.batch_size for pool in recipe.learners.values()))
        save(run.store, of_history(found, recipe, tokens, elements, loss_unit(task)))


def reason(run: ComparedRun) -> str:
    """Why a run that ended is not sound, in words."""
    summary = object_of(run.store, "summary.json") or {}
    failed = [check["name"] for check in summary.get("checks") or [] if check["status"] in ("violated", "unknown")]
    return ", ".join(failed) or str(summary.get("reason") or "its accounts do not balance").strip().splitlines()[-1]
