"""The runs of a comparison: which there are, which are finished, and how the others are trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator.compare.modes import DATA_PARALLEL, MODES, arm
from orchestrator.eventlog.reader import intact
from orchestrator.planner.sizing.traffic import ring_s
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.tasks import build_task, host_only
from orchestrator.recipe.toml_text import dump, stored_hash
from orchestrator.report.data import Data, all_reduced, collect
from orchestrator.report.render import contents_of
from orchestrator.runtime.data_parallel.history import History
from orchestrator.store.readers import RECIPE_FILE, object_of, status_if_any
from orchestrator.store.resume import reopen
from orchestrator.store.run_store import RunStore

OUTCOME_FILE = "outcome.json"
Point = tuple[int, float, float]  # tokens committed, seconds after the first step, held-out loss


@dataclass(frozen=True)
class RunOutcome:
    """One run that has ended. Times are seconds after its first step; what it does not know is None.

    A place is the hardware of one of the recipe's learners. `steps`: of one place, mean. `up_bytes`, `down_bytes`: sent
    and received by one place in one step, mean, payloads only; of gradients, what a ring all-reduce in float32 takes.
    """

    config_hash: str
    ok: bool
    state: str | None
    loss_unit: str
    eval_loss: float | None
    curve: tuple[Point, ...]
    committed: int
    steps: float
    wall_s: float | None
    tokens_per_s: float | None
    goodput_time: float | None
    participation: float | None
    up_bytes: float | None
    down_bytes: float | None

    @property
    def converged(self) -> bool:
        """Whether it came to the end of its budget with a finite loss."""
        return self.finished and self.eval_loss is not None and bool(self.curve)

    @property
    def finished(self) -> bool:
        """Whether it came to the end of its budget."""
        return self.state == "finished"

    def at_tokens(self, tokens: float) -> float | None:
        """The held-out loss after so many committed tokens, interpolated; None where the run did not get there."""
        return _at([(float(each[0]), each[2]) for each in self.curve], tokens)

    def at_seconds(self, seconds: float) -> float | None:
        """The held-out loss so many seconds after the first step, interpolated; None where it had ended before."""
        return _at([(each[1], each[2]) for each in self.curve], seconds)


def _at(points: Sequence[tuple[float, float]], place: float) -> float | None:
    if not points or not points[0][0] <= place <= points[-1][0]:
        return None
    for (left, before), (right, after) in pairwise(points):
        if place <= right:
            share = (place - left) / (right - left) if right > left else 1.0
            return before + share * (after - before)
    return points[-1][1]


def save(store: RunStore, found: RunOutcome) -> None:
    """Write what is finite: a run whose loss is not has none."""
    curve = tuple(point for point in found.curve if math.isfinite(point[2]))
    last = found.eval_loss if found.eval_loss is not None and math.isfinite(found.eval_loss) else None
    store.write_json(OUTCOME_FILE, asdict(replace(found, curve=curve, eval_loss=last)))


def loaded(told: Mapping[str, Any]) -> RunOutcome:
    """Return the result that `save` wrote."""
    curve = tuple((int(tokens), float(at), float(loss)) for tokens, at, loss in told["curve"])
    return RunOutcome(**dict(told) | {"curve": curve})


def _of_data(data: Data, recipe: Recipe) -> RunOutcome:
    summary = data.summary
    up, down = summary["wire_bytes"]["up"], summary["wire_bytes"]["down"]
    each = 1.0 / data.steps if data.steps else 0.0
    return _made(
        recipe,
        summary,
        summary["loss_unit"] or "",
        curve=tuple((point.tokens, point.at_s, point.value) for point in data.held_out),
        steps=data.steps / max(1, len(data.learners)),
        participation=(summary["participation"] or {}).get("mean"),
        up_bytes=None if up is None else up * each,
        down_bytes=None if down is None else (down + data.peer_bytes) * each,
    )


def of_history(found: History, recipe: Recipe, tokens_per_step: int, elements: int, loss_unit: str) -> RunOutcome:
    """The outcome of a run by Ray Train, which has ended. `elements`: of the model."""
    told = found.summary(tokens_per_step)
    sent = all_reduced(elements, len(recipe.learners))
    return _made(
        recipe,
        told,
        loss_unit,
        curve=tuple((step * tokens_per_step, at, loss) for step, at, loss in found.evaluations),
        steps=float(found.step),
        participation=None,
        up_bytes=sent,
        down_bytes=sent,
    )


def _made(recipe: Recipe, told: Mapping[str, Any], loss_unit: str, **more: Any) -> RunOutcome:
    """`told`: the summary, whose names mean the same for both."""
    same = {name: told[name] for name in ("ok", "state", "eval_loss", "wall_s", "tokens_per_s", "goodput_time")}
    committed = told["tokens"]["committed"]
    return RunOutcome(config_hash=recipe.config_hash, loss_unit=loss_unit, committed=committed, **same, **more)


OnNews = Callable[["ComparedRun", Mapping[str, Any]], None]  # a run; its progress in [0, 1] and newest held-out loss


@dataclass(frozen=True)
class ComparedRun:
    """One run of the comparison."""

    mode: str
    recipe: Recipe
    store: RunStore

    @property
    def finished(self) -> bool:
        if self.mode == DATA_PARALLEL:
            return (object_of(self.store, OUTCOME_FILE) or {}).get("state") == "finished"
        state = ((status_if_any(self.store) or {}).get("run") or {}).get("state")
        return state == "finished" and self.store.path("summary.json").exists()

    def outcome(self) -> RunOutcome:
        """The outcome of a finished run. Raises ValueError for a damaged log, OSError where it cannot be read."""
        told = object_of(self.store, OUTCOME_FILE)
        if told and told.get("config_hash") == self.recipe.config_hash:
            return loaded(told)
        contents = contents_of(intact(self.store.root), self.store.read_text(RECIPE_FILE) or "")
        save(self.store, _of_data(collect(contents.database, contents.summary, contents.verdicts), self.recipe))
        return loaded(object_of(self.store, OUTCOME_FILE) or {})


def in_tokens(recipe: Recipe) -> Recipe:
    """The recipe with its budget in tokens: syncer steps are not the same work in both modes. Raises InputError."""
    if (steps := recipe.budget.syncer_steps) is None:
        return recipe
    task = build_task(recipe)
    step = sum(task.tokens(pool.batch_size) for pool in recipe.learners.values())
    budget = {"tokens": step * steps}
    return Recipe.model_validate(recipe.canonical() | {"budget": budget, "fleet": recipe.fleet})


def planned(recipe: Recipe, folder: Path) -> list[ComparedRun]:
    """Both runs. Raises InputError with every folder that holds something else."""
    runs = []
    for mode in MODES:
        made, store = arm(recipe), recipe.durability.store
        if store is not None:  # each run has its own
            own = {"store": f"{store.rstrip('/')}/{mode}"}
            made = made.model_copy(update={"durability": made.durability.model_copy(update=own)})
        runs.append(ComparedRun(mode, made, RunStore(folder.absolute() / mode)))
    if problems := [problem for one in runs for problem in _occupied(one)]:
        raise InputError(problems)
    return runs


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


def train(run: ComparedRun, on_news: OnNews, address: str | None) -> None:
    """Train one run on a cluster or a local Ray, or continue it."""
    run.store.path(OUTCOME_FILE).unlink(missing_ok=True)  # of an end that was not the last
    if run.mode == DATA_PARALLEL:
        _by_ray_train(run, on_news, address)
        return
    from orchestrator.runtime import launch

    store = run.store
    store.create()
    if not store.empty:
        reopen(store)
    store.write_text(RECIPE_FILE, dump(run.recipe))

    def tell(status: Mapping[str, Any]) -> None:
        said = status.get("run") or {}
        on_news(run, {"progress": said.get("progress") or 0.0, "eval_loss": said.get("eval_loss")})

    if address:
        summary = launch.run_attached(run.recipe, store, address, None, tell, detach=False)
    else:
        summary = launch.run_embedded(run.recipe, store, None, tell)
    if summary["state"] == "stopped":  # by an interrupt, which is for the whole comparison
        raise KeyboardInterrupt


def _by_ray_train(run: ComparedRun, on_news: OnNews, address: str | None) -> None:
    from orchestrator.runtime.data_parallel import trainer

    recipe = run.recipe
    found = trainer.run(recipe, run.store, lambda news: on_news(run, news), address)
    with host_only():
        from learners.training.task import loss_unit
    task, tokens, elements = _sizes(recipe)
    save(run.store, of_history(found, recipe, tokens, elements, loss_unit(task)))


def _sizes(recipe: Recipe) -> tuple[Any, int, int]:
    """The task; the tokens of a step of all learners; the elements of its gradient."""
    task = build_task(recipe)
    with host_only():
        from learners.training.tree import tensors_of
    tokens = task.tokens(sum(pool.batch_size for pool in recipe.learners.values()))
    return task, tokens, sum(tensor.size for tensor in tensors_of(task) if tensor.sent)


@dataclass(frozen=True)
class IdealRing:
    """A step of data-parallel training that takes no longer than its all-reduce; see planner/sizing/traffic.ring_s."""

    seconds: float
    bytes: float  # that each place sends, and receives
    tokens_per_s: float


def ideal_ring(recipe: Recipe) -> IdealRing | None:
    """Of the recipe's regions and links. None: there is one region, or a link is not declared."""
    _, tokens, elements = _sizes(recipe)
    sent = all_reduced(elements, len(recipe.learners))
    seconds = ring_s(recipe, sent)
    return IdealRing(seconds, sent, tokens / seconds) if seconds else None


def reason(run: ComparedRun) -> str:
    """Why a run that ended is not sound, in words."""
    summary = object_of(run.store, "summary.json") or {}
    failed = [check["name"] for check in summary.get("checks") or [] if check["status"] in ("violated", "unknown")]
    return ", ".join(failed) or str(summary.get("reason") or "its accounts do not balance").strip().splitlines()[-1]
