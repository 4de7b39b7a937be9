"""The result of one compared run: a plain file beside the run's other ones, computed once from its log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from orchestrator.eventlog.reader import intact
from orchestrator.recipe.config import Recipe
from orchestrator.report.data import Data, all_reduced, collect
from orchestrator.report.render import contents_of
from orchestrator.runtime.data_parallel.history import History
from orchestrator.store.readers import RECIPE_FILE, object_of
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
    seed: int
    ok: bool
    state: str | None
    loss_unit: str
    eval_loss: float | None
    curve: tuple[Point, ...]
    committed: int
    processed: int
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

    @property
    def goodput_tokens(self) -> float | None:
        """Tokens committed / tokens processed."""
        return self.committed / self.processed if self.processed else None

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


def outcome(store: RunStore, recipe: Recipe) -> RunOutcome:
    """The outcome of a run that has ended, whose recipe is `recipe`.

    Raises ValueError for a damaged log, OSError where it cannot be read.
    """
    told = object_of(store, OUTCOME_FILE)
    if told and told.get("config_hash") == recipe.config_hash:
        return loaded(told)
    text = store.read_text(RECIPE_FILE) or ""
    contents = contents_of(intact(store.root), text)
    found = _of_data(collect(contents.database, contents.summary, contents.verdicts), recipe)
    save(store, found)
    return loaded(object_of(store, OUTCOME_FILE) or {})


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
    same |= {name: told["tokens"][name] for name in ("committed", "processed")}
    return RunOutcome(config_hash=recipe.config_hash, seed=recipe.seed, loss_unit=loss_unit, **same, **more)
